#include "tests/support/generate_conformance.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;

int64_t padded_length(const Json& json) {
  return static_cast<int64_t>(json.at("input_ids").at(0).size());
}

int64_t max_new_tokens(const Json& json) {
  const Json& config = json.at("generation_config");
  if (config.contains("max_new_tokens")) return config.at("max_new_tokens");
  return config.at("max_length").get<int64_t>() - padded_length(json);
}

Request request_of(const Json& json, size_t row) {
  const Json& config = json.at("generation_config");
  Request request;
  const Json& mask = json.at("attention_mask").at(row);
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] != 0) request.prompt_ids.push_back(json.at("input_ids").at(row).at(i));
  }
  request.max_new_tokens = max_new_tokens(json);
  SamplingParams& sampling = request.sampling;
  for (const auto& [key, value] : config.items()) {
    if (key == "repetition_penalty")
      sampling.repetition_penalty = value;
    else if (key == "no_repeat_ngram_size")
      sampling.no_repeat_ngram_size = value;
    else if (key == "min_new_tokens")
      sampling.min_new_tokens = value;
    else if (key == "bad_words_ids")
      sampling.bad_words_ids = value.get<std::vector<Ids>>();
    else if (key == "eos_token_id")
      request.eos_token_ids = value.is_array() ? value.get<Ids>() : Ids{value.get<int32_t>()};
    else if (key != "max_new_tokens" && key != "max_length" && key != "pad_token_id" &&
             key != "do_sample" && key != "num_beams")
      fail("generation_config has ", key, ", which this runner does not know");
  }
  return request;
}

}  // namespace

std::string generate_case_needs(const Json& json) {
  if (json.at("generation_config").value("num_beams", 1) > 1) return "beam search";
  if (json.contains("prompt_lookup_num_tokens")) return "prompt lookup";
  if (json.contains("assistant_model")) return "an assistant model";
  return {};
}

int64_t generate_case_length(const Json& json) {
  return padded_length(json) + max_new_tokens(json);
}

void check_generate_case(const ConformanceCase& test, Session& session, Comparison& result) {
  const Json& json = test.json();
  const size_t rows = json.at("input_ids").size();
  std::vector<Request> requests;
  for (size_t row = 0; row < rows; ++row) requests.push_back(request_of(json, row));
  session.reset();
  Generation generation(session, requests);
  generation.run();
  size_t longest = 0;
  for (size_t row = 0; row < rows; ++row)
    longest = std::max(longest, generation.result(row).output_ids.size());
  for (size_t row = 0; row < rows; ++row) {
    Ids sequence = json.at("input_ids").at(row).get<Ids>();
    const Ids& output = generation.result(row).output_ids;
    sequence.insert(sequence.end(), output.begin(), output.end());
    const int32_t pad = json.at("generation_config").value("pad_token_id", 0);
    sequence.insert(sequence.end(), longest - output.size(), pad);
    const Ids expected = json.at("expected").at("sequences").at(row).get<Ids>();
    if (sequence != expected)
      result.note(
          str("row ", row, ": got ", join(sequence, " "), ", expected ", join(expected, " ")));
  }
  session.reset();
}

}  // namespace larder::test
