// The steps that a decoder is made of.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "larder/text/stage.h"

namespace larder {

// Where a step puts what it makes of a token.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void put(std::string_view token) = 0;
};

// One step of a chain, within one text. It takes token after token and puts what is certain.
// Everything that it is given and puts is whole characters.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void take(std::string_view token, TokenSink& out) = 0;
  // The text is over: puts what is held.
  virtual void finish(TokenSink&) {}
  // What is held begins a character, so the text would end in U+FFFD if it ended now.
  virtual bool has_half_character() const { return false; }
};

using StepMaker = std::function<std::unique_ptr<DecodeStep>()>;

// The steps of a chain while they are read. `fused`: what flows are fragments of one single token,
// not tokens.
struct StepList {
  std::vector<StepMaker> makers;
  bool fused = false;
};

// Appends the steps of one decoder of a tokenizer.json, of the steps of a Sequence all.
void read_decode_steps(const Json& spec, const std::string& what, StepList& steps);

// For a tokenizer without a decoder: tokens with spaces between.
std::unique_ptr<DecodeStep> make_join_spaces();

}  // namespace larder
