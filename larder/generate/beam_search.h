// Beam search over a batch of prompts.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "larder/generate/beam_scorer.h"
#include "larder/generate/generation.h"

namespace larder {

// One found sequence. finish_reason is kStop where it ends with an end token.
struct BeamResult : Result {
  double score = 0;  // transformers' sequences_scores; see BeamParams
};

// The step by step face of a search, as Generation's. A prompt is fed once; its cache row is then
// repeated for the beams, and from step to step the cache's rows follow the beams
// (Cache::select_rows: rows share what they have in common, and the encoder's output of their
// source). Prompts that are done cost nothing, and each finds what it would find alone.
//
// Of GenerationOptions on_token is never called, since no token is settled before the end. Memory
// beyond the cache and the logits of a step does not depend on the vocabulary.
class BeamSearch {
 public:
  // Checks as Generation does; refuses sampling and stop strings too. max_new_tokens 0 gives one
  // empty sequence of score 0.
  BeamSearch(Session& session, const std::vector<Request>& requests, const BeamParams& params,
             GenerationOptions options = {});
  ~BeamSearch();

  // One forward. False when every search is done. When it throws, nothing has changed, and it may
  // be called again; it also throws when a prompt's settings forbid every token.
  bool step();
  void run() {
    while (step()) {
    }
  }

  size_t batch() const { return rows_.size(); }
  // At most num_return_sequences, best first; empty until the search is done.
  std::span<const BeamResult> results(size_t row) const;
  const std::vector<int32_t>& prompt_ids(size_t row) const;
  int64_t prompt_tokens() const;
  int64_t prompt_tokens_fed() const;
  int64_t new_tokens() const;  // of a beam, summed over the prompts
  bool prefilled() const;

 private:
  void add_row(const Request& request, const BeamParams& params);
  bool any_running() const;
  struct Row;
  void follow_beams();
  void plan_step();
  void consider(const Step& step, const TensorView& logits);
  void settle(Row& row, FinishReason reason);

  Session& session_;
  GenerationOptions options_;
  SamplerScratch sampler_scratch_;
  std::vector<std::unique_ptr<Row>> rows_;
  Sources sources_;
  StepPlan plan_;
  std::vector<std::pair<Row*, size_t>> owner_;  // row and beam of each row of the step
  std::vector<int32_t> source_;
  bool beams_moved_ = false;  // the cache's rows are still those before the last advance
};

}  // namespace larder
