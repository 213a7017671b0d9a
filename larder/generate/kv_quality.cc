#include "larder/generate/kv_quality.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "larder/base/error.h"
#include "larder/generate/head_errors.h"

namespace larder {
namespace {

constexpr int64_t kWatchedTokens = 64;  // at the text's end, whose queries are kept

// One cache with what it has shown so far.
struct Contender {
  Contender(const std::shared_ptr<const Model>& model, const SessionOptions& options,
            Allocator& allocator)
      : memory(allocator), session(model, options, memory) {}
  TrackingAllocator memory;
  Session session;
  double sum_kl = 0, max_kl = 0, sum_nll = 0;
  int64_t same_top = 0;
};

// log softmax in double.
void log_softmax(const float* logits, std::vector<double>& out) {
  const double most = *std::max_element(logits, logits + out.size());
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += std::exp(logits[i] - most);
  const double log_sum = most + std::log(sum);
  for (size_t i = 0; i < out.size(); ++i) out[i] = logits[i] - log_sum;
}

size_t top_of(const std::vector<double>& log_p) {
  return static_cast<size_t>(std::max_element(log_p.begin(), log_p.end()) - log_p.begin());
}

// The distributions after the tokens of one step.
class Comparison {
 public:
  explicit Comparison(int64_t vocab)
      : exact_(static_cast<size_t>(vocab)), p_(static_cast<size_t>(vocab)), other_(exact_) {}

  // The exact distribution after one token; `next` is the text's next token, or -1.
  void begin_token(const float* logits, int32_t next, Contender& exact) {
    log_softmax(logits, exact_);
    for (size_t i = 0; i < p_.size(); ++i) p_[i] = std::exp(exact_[i]);
    top_ = top_of(exact_);
    if (next >= 0) exact.sum_nll -= exact_[static_cast<size_t>(next)];
    ++exact.same_top;
  }
  void add(const float* logits, int32_t next, Contender& other) {
    log_softmax(logits, other_);
    double kl = 0;
    for (size_t i = 0; i < p_.size(); ++i) kl += p_[i] * (exact_[i] - other_[i]);
    other.sum_kl += kl;
    other.max_kl = std::max(other.max_kl, kl);
    other.same_top += top_of(other_) == top_ ? 1 : 0;
    if (next >= 0) other.sum_nll -= other_[static_cast<size_t>(next)];
  }

 private:
  std::vector<double> exact_, p_, other_;
  size_t top_ = 0;
};

// The exact cache and the others, fed with the same text in the same steps.
class Race {
 public:
  Race(std::span<const int32_t> ids, int64_t vocab, std::unique_ptr<Contender> exact)
      : ids_(ids), vocab_(vocab), comparison_(vocab), exact_(std::move(exact)) {}

  void add(std::unique_ptr<Contender> other) { others_.push_back(std::move(other)); }
  Contender& exact() { return *exact_; }
  const Contender& other(size_t index) const { return *others_[index]; }
  // From here on the exact cache's forwards run with these kernels.
  void watch(const Kernels& kernels) { watched_ = &kernels; }

  // Tokens [at, at + n) of the text.
  void feed(int64_t at, int64_t n) {
    position_.resize(static_cast<size_t>(n));
    rows_.resize(position_.size());
    std::iota(position_.begin(), position_.end(), at);
    std::iota(rows_.begin(), rows_.end(), 0);
    const float* exact = forward(*exact_, watched_);
    std::vector<const float*> logits;
    for (const auto& other : others_) logits.push_back(forward(*other));
    for (int64_t i = 0; i < n; ++i) {
      const auto next = static_cast<size_t>(at + i + 1);
      const int32_t id = next < ids_.size() ? ids_[next] : -1;
      comparison_.begin_token(exact + i * vocab_, id, *exact_);
      for (size_t f = 0; f < others_.size(); ++f)
        comparison_.add(logits[f] + i * vocab_, id, *others_[f]);
    }
  }

 private:
  const float* forward(Contender& contender, const Kernels* kernels = nullptr) const {
    const auto n = static_cast<int32_t>(rows_.size());
    const int32_t q_start[] = {0, n}, slot = 0;
    const Step step{1, n, q_start, position_.data(), &slot, false};
    const auto part = ids_.subspan(static_cast<size_t>(position_[0]), rows_.size());
    Session& session = contender.session;
    if (kernels == nullptr) return session.forward(step, part, rows_).as<float>();
    Exec exec{*kernels, session.exec().threads, session.exec().scratch};
    return session.model()
        .forward(exec, step, part, rows_, session.cache(), AttentionKind::kFused)
        .as<float>();
  }

  std::span<const int32_t> ids_;
  int64_t vocab_;
  Comparison comparison_;
  std::unique_ptr<Contender> exact_;
  std::vector<std::unique_ptr<Contender>> others_;
  std::vector<int64_t> position_;  // of the step
  std::vector<int32_t> rows_;
  const Kernels* watched_ = nullptr;
};

FormatQuality summary(const Contender& contender, const CacheFormat& format, int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return {format,
          contender.sum_kl / n,
          contender.max_kl,
          static_cast<double>(contender.same_top) / n,
          std::exp(contender.sum_nll / (n - 1)),
          static_cast<double>(contender.memory.of("kv").live) / n,
          {}};
}

void check_quality(const Model& model, std::span<const int32_t> ids,
                   const KVQualityOptions& quality) {
  if (model.info().is_encoder_decoder)
    fail_as(ErrorKind::kUnsupported, model.info().architecture,
            " reads a source beside the text; verify needs a model that reads text alone");
  if (ids.size() < 2) fail("a text of ", ids.size(), " tokens; a comparison needs at least 2");
  if (quality.first < 1 || quality.chunk < 1)
    fail("steps of ", quality.first, " and ", quality.chunk, " tokens; they must be at least 1");
}

}  // namespace

KVQuality measure_kv_quality(const std::shared_ptr<const Model>& model,
                             const SessionOptions& options, std::span<const int32_t> ids,
                             std::span<const CacheFormat> formats, const KVQualityOptions& quality,
                             Allocator& allocator) {
  check_quality(*model, ids, quality);
  const auto total = static_cast<int64_t>(ids.size());
  const auto open = [&](const CacheFormat& format, std::optional<DType> dtype) {
    SessionOptions own = options;
    own.cache_implementation = format.cache;
    own.cache_config = format.config;
    own.cache_dtype = dtype;
    own.max_cache_len = total;
    if (quality.per_head) own.attention = AttentionKind::kFused;
    return std::make_unique<Contender>(model, own, allocator);
  };
  const CacheFormat plain{"dynamic", ""};
  Race race(ids, model->info().vocab_size, open(plain, DType::kF32));
  for (const CacheFormat& format : formats) race.add(open(format, options.cache_dtype));
  const WatchedKernels queries(race.exact().session.exec().kernels, allocator);
  for (int64_t at = 0; at < total;) {
    if (quality.interrupted && quality.interrupted()) return {};
    const int64_t n = std::min(at == 0 ? quality.first : quality.chunk, total - at);
    if (quality.per_head && at + n > total - kWatchedTokens) race.watch(queries);
    race.feed(at, n);
    at += n;
  }

  KVQuality result{total, summary(race.exact(), plain, total), {}};
  for (size_t f = 0; f < formats.size(); ++f) {
    result.formats.push_back(summary(race.other(f), formats[f], total));
    if (quality.per_head)
      result.formats.back().heads =
          head_errors(race.exact().session, queries, formats[f], allocator);
  }
  return result;
}

std::vector<CacheFormat> standard_kv_formats() {
  std::vector<CacheFormat> formats;
  for (const char* config : {
           R"({"backend": "quanto", "nbits": 4})",
           R"({"backend": "quanto", "nbits": 4, "axis_key": -1, "axis_value": -1})",
           R"({"backend": "quanto", "nbits": 2})",
           R"({"backend": "hqq", "nbits": 8})",
           R"({"backend": "hqq", "nbits": 4})",
           R"({"backend": "hqq", "nbits": 2})",
           R"({"backend": "larder", "nbits": 8})",
           R"({"backend": "larder", "nbits_key": 8, "nbits_value": 4})",
           R"({"backend": "larder", "nbits": 4})",
           R"({"backend": "larder", "nbits": 4, "keys_per_channel": false})",
           R"({"backend": "larder", "nbits": 3})",
           R"({"backend": "larder", "nbits": 2})",
       })
    formats.push_back({"quantized", config});
  return formats;
}

}  // namespace larder
