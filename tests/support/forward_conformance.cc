#include "tests/support/forward_conformance.h"

#include <algorithm>
#include <numeric>

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

}  // namespace

void check_forward_case(const ConformanceCase& test, Session& session, Comparison& result) {
  const Json& json = test.json();
  session.reset();
  if (json.contains("input_ids")) {
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
