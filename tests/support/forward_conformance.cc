#include "tests/support/forward_conformance.h"

#include <algorithm>
#include <numeric>

#include "larder/models/t5.h"

namespace larder::test {
namespace {

// A padded batch of a case: ids [B, S], and where its real tokens lie.
struct Batch {
  int64_t rows = 0, columns = 0;
  std::vector<int64_t> ids, mask, positions;

  bool real(int64_t row, int64_t column) const {
    return mask.empty() || mask[static_cast<size_t>(row * columns + column)] != 0;
  }
};

Batch read_batch(const ConformanceCase& test, const Json& names) {
  const TensorView ids = test.tensor(names.at("input_ids"));
  Batch batch{ids.shape[0], ids.shape[1], test.integers(names.at("input_ids")), {}, {}};
  if (names.contains("attention_mask")) {
    batch.mask = test.integers(names.at("attention_mask"));
    batch.positions = test.integers(names.at("position_ids"));
  }
  return batch;
}

// Feeds columns [begin, end), packed, and compares the logits of the real tokens.
void run_columns(const Batch& batch, int64_t begin, int64_t end, const TensorView& expected,
                 Session& session, Comparison& result) {
  std::vector<int32_t> ids, slot, q_start{0}, logit_rows;
  std::vector<int64_t> position, at;
  for (int64_t row = 0; row < batch.rows; ++row) {
    int64_t next = session.cache().seq_len(static_cast<int32_t>(row));
    for (int64_t column = begin; column < end; ++column) {
      if (!batch.real(row, column)) continue;
      const auto cell = static_cast<size_t>(row * batch.columns + column);
      ids.push_back(static_cast<int32_t>(batch.ids[cell]));
      if (!batch.positions.empty() && batch.positions[cell] != next)
        result.note("position_ids are not the count of real tokens");
      position.push_back(next++);
      at.push_back(static_cast<int64_t>(cell));
    }
    slot.push_back(static_cast<int32_t>(row));
    q_start.push_back(static_cast<int32_t>(ids.size()));
  }
  logit_rows.resize(ids.size());
  std::iota(logit_rows.begin(), logit_rows.end(), 0);
  const Step step{static_cast<int32_t>(batch.rows),
                  static_cast<int32_t>(ids.size()),
                  q_start.data(),
                  position.data(),
                  slot.data(),
                  false};
  const TensorView logits = session.forward(step, ids, logit_rows);
  const int64_t vocab = logits.shape[1];
  for (size_t i = 0; i < at.size(); ++i) {
    for (int64_t j = 0; j < vocab; ++j) {
      result.check(str("logit of column ", at[i] % batch.columns, " row ", at[i] / batch.columns,
                       " token ", j),
                   logits.as<float>()[static_cast<int64_t>(i) * vocab + j],
                   expected.as<float>()[at[i] * vocab + j]);
    }
  }
}

// The states that the case lists: of every row, the convolution's window and the recurrent state.
void check_states(const ConformanceCase& test, const Json& final_cache, Cache& cache,
                  Comparison& result) {
  for (const Json& entry : final_cache) {
    if (!entry.contains("conv_state")) continue;
    const int32_t index = entry.at("layer");
    StateLayer& layer = cache.state(index);
    const auto compare = [&](const char* key, const float* (StateLayer::*part)(int32_t) const) {
      const TensorView expected = test.tensor(entry.at(key));
      const int64_t floats = expected.count() / expected.shape[0];
      for (int64_t i = 0; i < expected.count(); ++i) {
        const auto row = static_cast<int32_t>(i / floats);
        result.check(str(key, " of layer ", index, " row ", row, " at ", i % floats),
                     (layer.*part)(row)[i % floats], expected.as<float>()[i]);
      }
    };
    compare("conv_state", &StateLayer::conv_of);
    compare("ssm_state", &StateLayer::state_of);
  }
}

// The real tokens of a batch, row after row, as a first step.
struct Sources {
  explicit Sources(const Batch& batch) {
    for (int64_t row = 0; row < batch.rows; ++row) {
      int64_t next = 0;
      for (int64_t column = 0; column < batch.columns; ++column) {
        if (!batch.real(row, column)) continue;
        at.push_back(row * batch.columns + column);
        ids.push_back(static_cast<int32_t>(batch.ids[static_cast<size_t>(at.back())]));
        position.push_back(next++);
      }
      slot.push_back(static_cast<int32_t>(row));
      q_start.push_back(static_cast<int32_t>(ids.size()));
    }
    step = {static_cast<int32_t>(batch.rows),
            q_start.back(),
            q_start.data(),
            position.data(),
            slot.data(),
            false};
  }
  std::vector<int32_t> ids, slot, q_start{0};
  std::vector<int64_t> position, at;  // at: cell of the batch
  Step step;
};

// Encodes the sources that `names` gives, and compares the encoder's output where it is given.
void encode(const ConformanceCase& test, const Json& names, Session& session, Comparison& result) {
  const TensorView ids = test.tensor(names.at("encoder_input_ids"));
  Batch batch{ids.shape[0], ids.shape[1], test.integers(names.at("encoder_input_ids")), {}, {}};
  if (names.contains("encoder_attention_mask"))
    batch.mask = test.integers(names.at("encoder_attention_mask"));
  const Sources sources(batch);
  if (names.contains("encoder_hidden")) {
    const auto& model = dynamic_cast<const T5&>(session.model());
    const TensorView hidden =
        model.encoder_hidden(session.exec(), sources.step, sources.ids, AttentionKind::kFused);
    const TensorView expected = test.tensor(names.at("encoder_hidden"));
    const int64_t width = hidden.shape[1];
    for (size_t i = 0; i < sources.at.size(); ++i) {
      for (int64_t j = 0; j < width; ++j)
        result.check(str("encoder_hidden of token ", i, " channel ", j),
                     hidden.as<float>()[static_cast<int64_t>(i) * width + j],
                     expected.as<float>()[sources.at[i] * width + j]);
    }
  }
  session.encode(sources.step, sources.ids);
}

// Keys and values of an encoder-decoder cache, as its rows keep them.
void check_parts(const ConformanceCase& test, const Json& final_cache, Cache& cache,
                 Comparison& result) {
  HostAllocator host;
  for (const Json& entry : final_cache) {
    const int32_t index = entry.at("layer");
    const bool cross = entry.at("part") == "cross";
    const KVLayer& layer = cross ? cache.cross(index) : cache.kv(index);
    const TensorView keys = test.tensor(entry.at("keys")), values = test.tensor(entry.at("values"));
    const int64_t row_floats = keys.count() / keys.shape[0];
    for (int32_t row = 0; row < static_cast<int32_t>(keys.shape[0]); ++row) {
      if (layer.seq_len(row) != entry.at("seq_length") || layer.kept_len(row) != keys.shape[2])
        return result.note(str("layer ", index, " row ", row, " has ", layer.seq_len(row)));
      const Shape shape{keys.shape[1], keys.shape[2], keys.shape[3]};
      const Tensor k(host, shape, DType::kF32, "test"), v(host, shape, DType::kF32, "test");
      layer.read(row, k, v);
      for (int64_t i = 0; i < row_floats; ++i) {
        result.check(str("key of layer ", index), k.as<float>()[i],
                     keys.as<float>()[row * row_floats + i]);
        result.check(str("value of layer ", index), v.as<float>()[i],
                     values.as<float>()[row * row_floats + i]);
      }
    }
  }
}

void check_encoder_decoder_case(const ConformanceCase& test, Session& session, Comparison& result) {
  const Json& json = test.json();
  const auto decode = [&](const Json& names, int64_t begin, int64_t end) {
    const TensorView ids = test.tensor(names.at("decoder_input_ids"));
    const Batch batch{
        ids.shape[0], ids.shape[1], test.integers(names.at("decoder_input_ids")), {}, {}};
    run_columns(batch, begin, end < 0 ? batch.columns : end, test.tensor(names.at("logits")),
                session, result);
  };
  if (json.contains("encoder_input_ids")) {
    encode(test, json, session, result);
    for (const Json& step : json.at("steps")) decode(json, step.at("start"), step.at("end"));
    if (json.contains("final_cache"))
      check_parts(test, json.at("final_cache"), session.cache(), result);
  } else {
    for (const Json& step : json.at("steps")) {
      session.reset();
      encode(test, step, session, result);
      decode(step, 0, -1);
    }
  }
}

}  // namespace

void check_forward_case(const ConformanceCase& test, Session& session, Comparison& result) {
  const Json& json = test.json();
  session.reset();
  if (session.model().info().is_encoder_decoder) {
    check_encoder_decoder_case(test, session, result);
  } else if (json.contains("input_ids")) {
    const Batch batch = read_batch(test, json);
    for (const Json& step : json.at("steps")) {
      run_columns(batch, step.at("start"), step.at("end"), test.tensor(json.at("logits")), session,
                  result);
    }
    if (json.contains("final_cache"))
      check_states(test, json.at("final_cache"), session.cache(), result);
  } else {
    for (const Json& step : json.at("steps")) {
      const Batch batch = read_batch(test, step);
      run_columns(batch, 0, batch.columns, test.tensor(step.at("logits")), session, result);
    }
  }
  session.reset();
}

}  // namespace larder::test
