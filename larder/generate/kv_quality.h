// What a cache format costs in quality: next-token distributions with it, beside those with an
// exact f32 cache.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "larder/generate/session.h"

namespace larder {

struct CacheFormat {
  std::string cache, config;  // as SessionOptions has them; config may be empty
};

// How a text is fed.
struct QualitySteps {
  int64_t first = 64, chunk = 8;      // tokens of the first step, and of every one after it
  std::function<bool()> interrupted;  // asked between steps; true ends early
};

struct KVQualityOptions {
  QualitySteps steps;
  bool per_head = false;  // attention is the fused one then
};

// What is like the exact model, and how well it predicts the text.
struct Divergence {
  // KL(exact || other) in nats, in double: over all tokens, and of the worst one.
  double mean_kl = 0, max_kl = 0;
  double same_top = 0;    // share of tokens after which both find the same token likeliest
  double perplexity = 0;  // of the text
};

// sqrt(sum of squared errors / sum of squares) over the tokens that the layer keeps, when the exact
// keys and values of the text are converted to the format: rounding alone, without what it does to
// later layers. `output`: of attention over them, for the queries of the text's last steps (64
// tokens at least, where it has them) that share the head of keys and values.
struct HeadError {
  int32_t layer = 0, head = 0;
  double key = 0, value = 0, output = 0;
};

struct FormatQuality : Divergence {
  CacheFormat format;
  double bytes_per_token = 0;  // that the cache holds after the last step, by its allocator
  std::vector<HeadError> heads;
};

struct KVQuality {
  int64_t tokens = 0;   // 0 when interrupted
  FormatQuality exact;  // the f32 dynamic cache itself
  std::vector<FormatQuality> formats;
};

// Feeds `ids` to the model once with the exact cache and once with each format, in the same steps.
// `options` gives dtype of the caches, attention, kernels and threads. Throws Error for fewer than
// two ids, and for a format that the model cannot have.
KVQuality measure_kv_quality(const std::shared_ptr<const Model>& model,
                             const SessionOptions& options, std::span<const int32_t> ids,
                             std::span<const CacheFormat> formats, const KVQualityOptions& quality,
                             Allocator& allocator);

// The quantized formats that are worth comparing, for `larder verify` without a list.
std::vector<CacheFormat> standard_kv_formats();

}  // namespace larder
