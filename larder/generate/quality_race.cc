#include "larder/generate/quality_race.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "larder/base/error.h"

namespace larder {
namespace {

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

}  // namespace

// The distributions after the tokens of one step.
class QualityRace::Comparison {
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

void check_race(const Model& model, std::span<const int32_t> ids, const QualitySteps& steps) {
  if (model.info().is_encoder_decoder)
    fail_as(ErrorKind::kUnsupported, model.info().architecture,
            " reads a source beside the text; verify needs a model that reads text alone");
  if (ids.size() < 2) fail("a text of ", ids.size(), " tokens; a comparison needs at least 2");
  if (steps.first < 1 || steps.chunk < 1)
    fail("steps of ", steps.first, " and ", steps.chunk, " tokens; they must be at least 1");
}

QualityRace::QualityRace(std::span<const int32_t> ids, const QualitySteps& steps,
                         std::unique_ptr<Contender> exact)
    : ids_(ids),
      steps_(steps),
      vocab_(exact->session.model().info().vocab_size),
      exact_(std::move(exact)),
      comparison_(std::make_unique<Comparison>(vocab_)) {}

QualityRace::~QualityRace() = default;

bool QualityRace::run() {
  for (int64_t at = 0; at < tokens();) {
    if (steps_.interrupted && steps_.interrupted()) return false;
    const int64_t n = std::min(at == 0 ? steps_.first : steps_.chunk, tokens() - at);
    feed(at, n);
    at += n;
  }
  return true;
}

// Tokens [at, at + n) of the text.
void QualityRace::feed(int64_t at, int64_t n) {
  position_.resize(static_cast<size_t>(n));
  rows_.resize(position_.size());
  std::iota(position_.begin(), position_.end(), at);
  std::iota(rows_.begin(), rows_.end(), 0);
  const bool watched = at + n > tokens() - watched_tokens_;
  const float* exact = forward(*exact_, watched ? watched_ : nullptr);
  std::vector<const float*> logits;
  for (const auto& other : others_) logits.push_back(forward(*other));
  for (int64_t i = 0; i < n; ++i) {
    const auto next = static_cast<size_t>(at + i + 1);
    const int32_t id = next < ids_.size() ? ids_[next] : -1;
    comparison_->begin_token(exact + i * vocab_, id, *exact_);
    for (size_t f = 0; f < others_.size(); ++f)
      comparison_->add(logits[f] + i * vocab_, id, *others_[f]);
  }
}

const float* QualityRace::forward(Contender& contender, const Kernels* kernels) const {
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

Divergence QualityRace::divergence(const Contender& contender) const {
  const auto n = static_cast<double>(ids_.size());
  return {contender.sum_kl / n, contender.max_kl, static_cast<double>(contender.same_top) / n,
          std::exp(contender.sum_nll / (n - 1))};
}

}  // namespace larder
