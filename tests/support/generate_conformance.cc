#include "tests/support/generate_conformance.h"

#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/beam_search.h"

namespace larder::test {
namespace {

using Ids = std::vector<int32_t>;

// Cases of encoder-decoder models name the token that their sequences begin with.
bool has_encoder(const Json& json) {
  return json.at("generation_config").contains("decoder_start_token_id");
}

int64_t padded_length(const Json& json) {
  if (has_encoder(json)) return 1;
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
    else if (key == "decoder_start_token_id")
      request.decoder_start_token_id = value.get<int32_t>();
    else if (key != "max_new_tokens" && key != "max_length" && key != "pad_token_id" &&
             key != "do_sample" && key != "num_beams" && key != "length_penalty" &&
             key != "early_stopping" && key != "num_return_sequences")
      fail("generation_config has ", key, ", which this runner does not know");
  }
  return request;
}

BeamParams beam_params_of(const Json& config) {
  const Json stopping = config.value("early_stopping", Json(false));
  const std::string text = stopping.is_string() ? stopping.get<std::string>() : stopping.dump();
  return {config.value("num_beams", int64_t{1}), config.value("length_penalty", 1.0),
          parse_early_stopping("early_stopping", text),
          config.value("num_return_sequences", int64_t{1})};
}

struct Found {
  size_t row;
  Ids output;
  double score;
};

std::vector<Found> search_beams(const Json& json, Session& session,
                                const std::vector<Request>& requests) {
  BeamSearch search(session, requests, beam_params_of(json.at("generation_config")));
  search.run();
  std::vector<Found> found;
  for (size_t row = 0; row < requests.size(); ++row)
    for (const BeamResult& result : search.results(row))
      found.push_back({row, result.output_ids, result.score});
  return found;
}

std::vector<Found> search_greedily(Session& session, const std::vector<Request>& requests,
                                   std::shared_ptr<Drafter> drafter) {
  GenerationOptions options;
  options.drafter = std::move(drafter);
  Generation generation(session, requests, std::move(options));
  generation.run();
  std::vector<Found> found;
  for (size_t row = 0; row < requests.size(); ++row)
    found.push_back({row, generation.result(row).output_ids, 0});
  return found;
}

void compare(const Json& json, const std::vector<Found>& found, Comparison& result) {
  const Json& expected = json.at("expected");
  const Json& sequences = expected.at("sequences");
  if (found.size() != sequences.size())
    return result.note(str(found.size(), " sequences, expected ", sequences.size()));
  size_t longest = 0;
  for (const Found& one : found) longest = std::max(longest, one.output.size());
  const Json& config = json.at("generation_config");
  int32_t pad = config.value("pad_token_id", 0);
  // The reference's beam search takes a pad of 0 for none.
  if (pad == 0 && expected.contains("sequences_scores") && config.contains("eos_token_id")) {
    const Json& eos = config.at("eos_token_id");
    pad = (eos.is_array() ? eos.at(0) : eos).get<int32_t>();
  }
  for (size_t i = 0; i < found.size(); ++i) {
    Ids sequence = has_encoder(json) ? Ids{config.at("decoder_start_token_id").get<int32_t>()}
                                     : json.at("input_ids").at(found[i].row).get<Ids>();
    sequence.insert(sequence.end(), found[i].output.begin(), found[i].output.end());
    sequence.insert(sequence.end(), longest - found[i].output.size(), pad);
    const Ids wanted = sequences.at(i).get<Ids>();
    if (sequence != wanted)
      result.note(
          str("sequence ", i, ": got ", join(sequence, " "), ", expected ", join(wanted, " ")));
    if (expected.contains("sequences_scores"))
      result.check(str("score ", i), static_cast<float>(found[i].score),
                   expected.at("sequences_scores").at(i));
  }
}

}  // namespace

int64_t generate_case_length(const Json& json) {
  return padded_length(json) + max_new_tokens(json);
}

void check_generate_case(const ConformanceCase& test, Session& session, Session* assistant,
                         Comparison& result) {
  const Json& json = test.json();
  const size_t rows = json.at("input_ids").size();
  std::vector<Request> requests;
  for (size_t row = 0; row < rows; ++row) requests.push_back(request_of(json, row));
  session.reset();
  const bool beams = json.at("generation_config").value("num_beams", 1) > 1;
  std::shared_ptr<Drafter> drafter;
  if (assistant) {
    assistant->reset();
    drafter = std::make_shared<AssistantModel>(*assistant);
  } else if (json.contains("prompt_lookup_num_tokens")) {
    drafter = std::make_shared<PromptLookup>(
        PromptLookupParams{json.at("prompt_lookup_num_tokens").get<int64_t>(), 2});
  }
  compare(json,
          beams ? search_beams(json, session, requests)
                : search_greedily(session, requests, std::move(drafter)),
          result);
  session.reset();
}

}  // namespace larder::test
