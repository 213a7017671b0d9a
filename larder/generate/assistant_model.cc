#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/logits_process.h"
#include "larder/generate/speculation.h"

namespace larder {
namespace {

constexpr int64_t kPrefillChunk = 512;

}  // namespace

AssistantModel::AssistantModel(Session& session, const AssistantParams& params)
    : session_(session), params_(params) {
  if (params.num_assistant_tokens < 1 ||
      params.max_assistant_tokens < params.num_assistant_tokens) {
    fail("num_assistant_tokens is ", params.num_assistant_tokens,
         ", must be in 1..max_assistant_tokens, which is ", params.max_assistant_tokens);
  }
  if (session.model().info().is_encoder_decoder)
    fail_as(ErrorKind::kUnsupported, "the draft model is an encoder-decoder, must be a decoder");
  if (session.cache().tentative_limit(0) == 0)
    fail_as(ErrorKind::kUnsupported,
            "the draft model's cache cannot step back, as recurrent states cannot");
}

void AssistantModel::begin(const Model& model) {
  const int64_t ours = session_.model().info().vocab_size, theirs = model.info().vocab_size;
  if (ours != theirs)
    fail("the draft model has a vocabulary of ", ours, " ids, the model one of ", theirs,
         "; they must have the same tokens");
  if (session_.cache().batch() > 0)
    fail("the draft model's cache still holds an earlier generation; call reset() first");
  lengths_.clear();
}

// Tokens that a row of the draft model can hold.
int64_t AssistantModel::room() const {
  const int64_t positions = session_.model().info().max_position_embeddings;
  const int64_t max_len = session_.cache().max_len();
  return max_len < 0 ? positions : std::min(positions, max_len);
}

int64_t& AssistantModel::length_of(int32_t row) {
  const auto index = static_cast<size_t>(row);
  if (index >= lengths_.size()) lengths_.resize(index + 1, params_.num_assistant_tokens);
  return lengths_[index];
}

// Brings every row to all tokens but the newest.
void AssistantModel::align(std::span<const Draft> drafts) {
  drop_wrong(drafts);
  while (plan_missing(drafts)) session_.forward(plan_.step(), plan_.ids(), plan_.logit_rows());
}

// Whatever a row holds beyond what is settled was a guess.
void AssistantModel::drop_wrong(std::span<const Draft> drafts) {
  Cache& cache = session_.cache();
  kept_.clear();
  for (int32_t row = 0; row < cache.batch(); ++row) kept_.push_back(cache.seq_len(row));
  bool wrong = false;
  for (const Draft& draft : drafts) {
    const int64_t settled = static_cast<int64_t>(draft.ids.size()) - 1;
    if (draft.row >= cache.batch() || cache.seq_len(draft.row) <= settled) continue;
    kept_[static_cast<size_t>(draft.row)] = settled;
    wrong = true;
  }
  if (wrong) cache.crop(kept_);
}

bool AssistantModel::plan_missing(std::span<const Draft> drafts) {
  plan_.clear();
  for (const Draft& draft : drafts) {
    const int64_t held = session_.cache().seq_len(draft.row);
    const int64_t settled = std::min(static_cast<int64_t>(draft.ids.size()) - 1, room());
    const int64_t count = std::min(
        {settled - held, kPrefillChunk - plan_.tokens(), session_.cache().step_limit(draft.row)});
    if (count <= 0) continue;
    plan_.add(draft.row, draft.ids.subspan(static_cast<size_t>(held), static_cast<size_t>(count)),
              held, LogitsOf::kNone);
  }
  return !plan_.empty();
}

// Tokens that a row can be fed one by one so that all but the first can be taken back: a window
// must not have passed them, and no quantized layer may flush behind the first.
int64_t AssistantModel::most_steps(int32_t row) const {
  const Cache& cache = session_.cache();
  const int64_t flush = cache.tentative_limit(row);
  int64_t most = std::max<int64_t>(flush - 1, 1);
  for (int32_t i = 0; i < cache.num_layers(); ++i)
    if (cache.layer(i).spec().window > 0) most = std::min(most, session_.rollback() + 1);
  return std::min(most, room() - cache.seq_len(row));
}

// How many guesses each row gets.
void AssistantModel::choose_lengths(std::span<const Draft> drafts) {
  wanted_.clear();
  for (const Draft& draft : drafts) {
    const int64_t held = session_.cache().seq_len(draft.row);
    const bool aligned = held + 1 == static_cast<int64_t>(draft.ids.size());
    wanted_.push_back(aligned ? std::min({draft.most, length_of(draft.row), most_steps(draft.row)})
                              : 0);
  }
}

// Feeds the newest token of every row that wants guess number `guess`, or the guess before.
bool AssistantModel::plan_guess(std::span<const Draft> drafts, int64_t guess) {
  plan_.clear();
  for (size_t i = 0; i < drafts.size(); ++i) {
    if (guess >= wanted_[i]) continue;
    const std::span<const int32_t> ids = guess == 0 ? drafts[i].ids : drafts[i].tokens;
    plan_.add(drafts[i].row, ids.last(1), session_.cache().seq_len(drafts[i].row), LogitsOf::kLast);
  }
  return !plan_.empty();
}

void AssistantModel::propose(std::span<Draft> drafts) {
  align(drafts);
  choose_lengths(drafts);
  for (int64_t guess = 0; plan_guess(drafts, guess); ++guess) {
    const TensorView logits = session_.forward(plan_.step(), plan_.ids(), plan_.logit_rows());
    const auto vocab = static_cast<size_t>(logits.shape[1]);
    size_t next = 0;
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (guess >= wanted_[i]) continue;
      const std::span<const float> scores(logits.as<float>() + next++ * vocab, vocab);
      const auto best = std::find(scores.begin(), scores.end(), largest(scores));
      const auto id = best == scores.end() ? 0 : best - scores.begin();  // NaN: any guess will do
      drafts[i].tokens.push_back(static_cast<int32_t>(id));
    }
  }
}

// A row that cannot be brought up to date now, for want of memory say, is so in the next round.
void AssistantModel::verified(std::span<const Draft> drafts) noexcept {
  for (const Draft& draft : drafts) {
    if (draft.tokens.empty()) continue;
    int64_t& length = length_of(draft.row);
    const bool all = draft.right == static_cast<int64_t>(draft.tokens.size());
    length = std::clamp<int64_t>(length + (all ? 2 : -1), 1, params_.max_assistant_tokens);
  }
  try {
    align(drafts);
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace larder
