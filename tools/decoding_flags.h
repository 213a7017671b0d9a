// The flags of `larder generate` that choose how tokens are found: beam search and speculation.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "larder/generate/beam_search.h"
#include "tools/model_flags.h"

namespace larder::tools {

struct Speculation {
  std::unique_ptr<Session> draft;    // of the draft model, if there is one
  std::shared_ptr<Drafter> drafter;  // null: no guesses
};

struct DecodingFlags {
  BeamParams beams;
  std::string draft_model;
  PromptLookupParams lookup{0, 2};

  void add_to(CLI::App& app);
  // Throws for combinations that make no sense, before anything is read.
  void check(bool sampled, bool has_stop_strings) const;
  bool searches_beams() const { return beams.num_beams > 1; }
  // Tokens that the model's cache must be able to take back.
  int64_t rollback() const;
  Speculation speculation(LoadedModel& loaded, int64_t needed) const;

 private:
  std::vector<CLI::Option*> of_beams_;  // those that say nothing without beams
  CLI::Option* has_lookup_ = nullptr;
};

}  // namespace larder::tools
