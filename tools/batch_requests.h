// The input of `larder batch`: one request a line, as a JSON object.
#pragma once

#include <istream>
#include <string>
#include <unordered_map>

#include "larder/base/json.h"
#include "larder/generate/engine.h"
#include "larder/text/tokenizer.h"

namespace larder::tools {

// What a request gets where its line says nothing, and what its text is read with.
struct BatchDefaults {
  int64_t max_new_tokens = 128;
  std::vector<int32_t> eos_token_ids = {};
  const Tokenizer* tokenizer = nullptr;  // null: prompt_ids alone
  int64_t prompt_lookup = 0;             // guesses a step at most; 0: none
};

// One line: a request, or what is wrong with it.
struct BatchLine {
  // As the line has it, a string or an integer; "line N" where it has none that could be its own.
  Json id;
  std::string error;  // empty: `request` is right as far as it can be said without the model
  EngineRequest request;
};

// Reads a line of the file. Throws Error for whatever is wrong with it.
EngineRequest read_batch_request(const Json& object, const BatchDefaults& defaults);

// The lines of a file in their order; empty ones are left out. One bad line hinders no other. Both
// arguments must outlive it.
class BatchReader {
 public:
  BatchReader(std::istream& input, const BatchDefaults& defaults)
      : input_(input), defaults_(defaults) {}

  // nullopt at the end. Throws Error when the file cannot be read further.
  std::optional<BatchLine> next();

 private:
  BatchLine parse(const std::string& text);
  Json take_id(const Json& object, const std::string& name);

  std::istream& input_;
  const BatchDefaults& defaults_;
  int64_t line_ = 0;
  std::unordered_map<std::string, int64_t> line_of_;  // by id, as JSON: 1 is not "1"
};

}  // namespace larder::tools
