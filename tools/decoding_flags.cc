#include "tools/decoding_flags.h"

#include "larder/base/error.h"
#include "tools/numbers.h"

namespace larder::tools {

void DecodingFlags::add_to(CLI::App& app) {
  add_number(app, "--num-beams", beams.num_beams,
             "Beam search with so many beams; 1 is greedy or sampling (default 1)");
  of_beams_ = {
      add_number(app, "--num-return-sequences", beams.num_return_sequences,
                 "Show so many of the found sequences, best first (default 1)"),
      add_number(app, "--length-penalty", beams.length_penalty,
                 "A sequence's score is its log-probability / length to this power; above 0 "
                 "favours longer ones (default 1)"),
      app.add_option_function<std::string>(
             "--early-stopping",
             [this](const std::string& text) {
               beams.early_stopping = parse_early_stopping("--early-stopping", text);
             },
             "End once num-beams sequences are complete: true = at once, false = when the best "
             "beam looks no better, never = when none can become better (default false)")
          ->type_name("true|false|never"),
  };
  app.add_option("--draft-model", draft_model,
                 "Let this smaller model of the same vocabulary guess tokens, and verify them "
                 "several at a time; changes speed, not text")
      ->type_name("DIR");
  has_lookup_ = add_number(app, "--prompt-lookup", lookup.prompt_lookup_num_tokens,
                           "Guess up to so many tokens from repetitions in prompt and text");
}

void DecodingFlags::check(bool sampled, bool has_stop_strings) const {
  validate(beams);
  const bool guesses = !draft_model.empty() || has_lookup_->count() > 0;
  if (has_lookup_->count() > 0) {
    if (!draft_model.empty()) fail("give --draft-model or --prompt-lookup, not both");
    PromptLookup{lookup};
  }
  if (searches_beams()) {
    if (sampled) fail("--num-beams searches and does not sample; leave the sampling flags out");
    if (has_stop_strings) fail("--stop cannot be used with --num-beams");
    if (guesses) fail("--draft-model and --prompt-lookup cannot be used with --num-beams");
    return;
  }
  for (const CLI::Option* option : of_beams_)
    if (option->count() > 0) fail(option->get_name(), " needs --num-beams of 2 or more");
}

int64_t DecodingFlags::rollback() const {
  if (!draft_model.empty()) return AssistantParams{}.max_assistant_tokens;
  return has_lookup_->count() > 0 ? lookup.prompt_lookup_num_tokens : 0;
}

Speculation DecodingFlags::speculation(LoadedModel& loaded, int64_t needed) const {
  Speculation out;
  if (!draft_model.empty()) {
    out.draft = loaded.draft_session(draft_model, needed, rollback());
    out.drafter = std::make_shared<AssistantModel>(*out.draft);
  } else if (has_lookup_->count() > 0) {
    out.drafter = std::make_shared<PromptLookup>(lookup);
  }
  return out;
}

}  // namespace larder::tools
