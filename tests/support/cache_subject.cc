#include "tests/support/cache_subject.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder::test {
namespace {

// The same token is the same numbers in every cache, between -1 and 1.
float number(int32_t story, int64_t position, int64_t layer, int64_t channel) {
  uint64_t x = static_cast<uint64_t>(story) * 0x9E3779B97F4A7C15u +
               static_cast<uint64_t>(position) * 0xBF58476D1CE4E5B9u +
               static_cast<uint64_t>(layer) * 0x94D049BB133111EBu +
               static_cast<uint64_t>(channel) * 0xD6E8FEB86659FD93u;
  x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93u;
  x ^= x >> 29;
  return static_cast<float>(static_cast<double>(x >> 40) / 0x1p23 - 1);
}

}  // namespace

std::vector<CacheSubject> cache_subjects() {
  std::vector<CacheSubject> subjects;
  for (const std::string& kind : CacheRegistry().names()) {
    if (kind == "quantized") {
      const std::string tail = R"("q_group_size":16,"residual_length":4})";
      subjects.push_back({"quantized, quanto", kind, R"({"backend":"quanto",)" + tail, false});
      subjects.push_back({"quantized, hqq", kind, R"({"backend":"hqq",)" + tail, false});
      subjects.push_back({"quantized, larder", kind, R"({"backend":"larder",)" + tail, false});
    } else if (kind == "paged") {
      subjects.push_back({kind, kind, R"({"block_size":4})", false});
      subjects.push_back({"paged, quantized", kind,
                          R"({"quantized":{"q_group_size":16,"residual_length":4}})", false});
    } else {
      subjects.push_back({kind, kind, "", kind == "mamba" || kind == "recurrent"});
    }
  }
  return subjects;
}

void PrintTo(const CacheSubject& subject, std::ostream* out) { *out << subject.title; }

bool operator==(const RowContent& a, const RowContent& b) {
  const auto same = [](const RowContent::Layer& x, const RowContent::Layer& y) {
    return x.kept == y.kept && x.k == y.k && x.v == y.v;
  };
  return a.seq_len == b.seq_len && std::ranges::equal(a.layers, b.layers, same);
}

SubjectCache::SubjectCache(CacheSubject subject) : subject_(std::move(subject)) {
  cache_.emplace(make());
}

std::vector<LayerSpec> SubjectCache::specs() const {
  LayerSpec full, sliding, state;
  full.num_kv_heads = 2, full.head_dim = 16;
  sliding = full;
  sliding.window = 6;
  state.kind = LayerKind::kState;
  state.conv_channels = 3, state.conv_kernel = 4, state.state_size = 5;
  return subject_.state ? std::vector{state, state} : std::vector{full, sliding};
}

Cache SubjectCache::make(const std::string& kind, const std::string& config) const {
  CacheOptions options;
  options.max_cache_len = kMaxLen;
  options.rollback = kRollback;
  options.config = config;
  return CacheRegistry().make(kind, specs(), options, host_);
}

SubjectCache::Fed SubjectCache::write(Cache& cache, const std::vector<int32_t>& slot,
                                      const std::vector<int32_t>& count,
                                      const std::vector<int32_t>& story, bool tentative) {
  Fed fed;
  std::vector<int32_t> who;
  for (size_t b = 0; b < slot.size(); ++b) {
    for (int32_t i = 0; i < count[b]; ++i) {
      fed.position.push_back(cache.seq_len(slot[b]) + i);
      who.push_back(story[b]);
    }
    fed.slot.push_back(slot[b]);
    fed.q_start.push_back(static_cast<int32_t>(fed.position.size()));
  }
  fed.step = {static_cast<int32_t>(slot.size()),
              fed.q_start.back(),
              fed.q_start.data(),
              fed.position.data(),
              fed.slot.data(),
              tentative};
  cache.begin(fed.step);
  for (int32_t l = 0; l < cache.num_layers(); ++l) {
    if (subject_.state) {
      StateLayer& layer = cache.state(l);
      const LayerSpec& spec = layer.spec();
      const int64_t window = int64_t{spec.conv_channels} * spec.conv_kernel;
      for (int32_t b = 0; b < fed.step.batch; ++b) {
        // A toy recurrence: what was there, halved, plus the row's new numbers.
        const StateLayer::Row row = layer.row(fed.step, b);
        std::copy_n(row.conv_before, window, row.conv);
        std::copy_n(row.state_before, spec.state_size, row.state);
        for (int32_t i = fed.q_start[static_cast<size_t>(b)];
             i < fed.q_start[static_cast<size_t>(b) + 1]; ++i) {
          const auto at = static_cast<size_t>(i);
          for (int64_t c = 0; c < window; ++c)
            row.conv[c] = row.conv[c] / 2 + number(who[at], fed.position[at], l, c);
          for (int64_t c = 0; c < spec.state_size; ++c)
            row.state[c] = row.state[c] / 2 + number(who[at], fed.position[at], l, c);
        }
      }
    } else {
      const LayerSpec& spec = cache.kv(l).spec();
      const int64_t floats = int64_t{spec.num_kv_heads} * spec.head_dim;
      const Shape shape{fed.step.total_q, spec.num_kv_heads, spec.head_dim};
      const Tensor k(host_, shape, DType::kF32, "test"), v(host_, shape, DType::kF32, "test");
      for (int64_t i = 0; i < fed.step.total_q * floats; ++i) {
        const auto at = static_cast<size_t>(i / floats);
        k.as<float>()[i] = number(who[at], fed.position[at], 2 * l, i % floats);
        v.as<float>()[i] = number(who[at], fed.position[at], 2 * l + 1, i % floats);
      }
      cache.kv(l).append(machine_.exec, k, v, fed.step);
    }
    cache.layer(l).commit(fed.step);
  }
  return fed;
}

void SubjectCache::feed(Cache& cache, const std::vector<int32_t>& slot,
                        const std::vector<int32_t>& count, const std::vector<int32_t>& story,
                        bool tentative) {
  write(cache, slot, count, story, tentative);
}

RowContent SubjectCache::row(Cache& cache, int32_t index) const {
  RowContent content;
  content.seq_len = cache.seq_len(index);
  for (int32_t l = 0; l < cache.num_layers(); ++l) {
    RowContent::Layer layer;
    const LayerSpec& spec = cache.layer(l).spec();
    if (subject_.state) {
      const StateLayer& from = cache.state(l);
      const int64_t window = int64_t{spec.conv_channels} * spec.conv_kernel;
      layer.k.assign(from.conv_of(index), from.conv_of(index) + window);
      layer.v.assign(from.state_of(index), from.state_of(index) + spec.state_size);
    } else {
      const KVLayer& from = cache.kv(l);
      layer.kept = from.kept_len(index);
      layer.heads = spec.num_kv_heads, layer.head_dim = spec.head_dim;
      const Shape shape{spec.num_kv_heads, layer.kept, spec.head_dim};
      const Tensor k(host_, shape, from.dtype(), "test"), v(host_, shape, from.dtype(), "test");
      from.read(index, k, v);
      layer.k.assign(k.as<float>(), k.as<float>() + shape.count());
      layer.v.assign(v.as<float>(), v.as<float>() + shape.count());
    }
    content.layers.push_back(std::move(layer));
  }
  return content;
}

std::vector<RowContent> SubjectCache::rows(Cache& cache) const {
  std::vector<RowContent> rows;
  for (int32_t r = 0; r < cache.batch(); ++r) rows.push_back(row(cache, r));
  return rows;
}

RowContent tokens_between(const RowContent& content, int64_t first, int64_t last) {
  RowContent part;
  part.seq_len = last;
  for (const RowContent::Layer& from : content.layers) {
    RowContent::Layer to;
    to.heads = from.heads, to.head_dim = from.head_dim;
    const int64_t begin = content.seq_len - from.kept;  // position of the first kept token
    const int64_t from_index = std::max<int64_t>(first - begin, 0);
    const int64_t to_index = std::max(from_index, std::min(last - begin, from.kept));
    to.kept = to_index - from_index;
    for (int64_t head = 0; head < from.heads; ++head) {
      const int64_t at = (head * from.kept + from_index) * from.head_dim;
      const int64_t floats = to.kept * from.head_dim;
      to.k.insert(to.k.end(), from.k.begin() + at, from.k.begin() + at + floats);
      to.v.insert(to.v.end(), from.v.begin() + at, from.v.begin() + at + floats);
    }
    part.layers.push_back(std::move(to));
  }
  return part;
}

}  // namespace larder::test
