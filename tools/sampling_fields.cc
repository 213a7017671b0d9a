#include "tools/sampling_fields.h"

#include <algorithm>
#include <array>
#include <limits>

#include "larder/base/error.h"
#include "larder/base/json.h"

namespace larder::tools {
namespace {

constexpr std::array kKeys = {
    "do_sample",          "temperature",          "top_k",         "top_p",          "min_p",
    "typical_p",          "epsilon_cutoff",       "eta_cutoff",    "seed",           "min_length",
    "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "min_new_tokens",
};
// Those that say nothing of a greedy choice.
constexpr std::array kOfSampling = {"temperature", "top_k",          "top_p",     "min_p",
                                    "typical_p",   "epsilon_cutoff", "eta_cutoff"};

// All of 64 bits, which JsonFields::integer() has not.
uint64_t read_seed(const JsonFields& fields, uint64_t otherwise) {
  const Json* value = fields.find("seed");
  if (value == nullptr || value->is_null()) return otherwise;
  if (!value->is_number_unsigned()) fields.wrong_type("seed", "a whole number, 0 or above");
  return value->get<uint64_t>();
}

std::vector<std::vector<int32_t>> read_bad_words(const JsonFields& fields) {
  constexpr const char* kKey = "bad_words_ids";
  const Json* value = fields.find(kKey);
  std::vector<std::vector<int32_t>> words;
  if (value == nullptr || value->is_null()) return words;
  const auto is_id = [](const Json& id) {
    return id.is_number_unsigned() &&
           id.get<uint64_t>() <= uint64_t{std::numeric_limits<int32_t>::max()};
  };
  for (const Json& word : value->is_array() ? *value : Json::array({*value})) {
    if (!word.is_array() || !std::ranges::all_of(word, is_id))
      fields.wrong_type(kKey, "a list of lists of token ids");
    words.push_back(word.get<std::vector<int32_t>>());
  }
  return words;
}

}  // namespace

std::span<const char* const> sampling_keys() { return kKeys; }

SamplingParams read_sampling(const JsonFields& fields) {
  const auto is_given = [&](const char* key) { return fields.has(key) && !fields.is_null(key); };
  SamplingParams p;
  p.do_sample = fields.boolean("do_sample").value_or(std::ranges::any_of(kOfSampling, is_given));
  p.temperature = fields.number("temperature").value_or(p.temperature);
  p.top_k = fields.integer("top_k").value_or(p.top_k);
  p.top_p = fields.number("top_p").value_or(p.top_p);
  p.min_p = fields.number("min_p").value_or(p.min_p);
  p.typical_p = fields.number("typical_p").value_or(p.typical_p);
  p.epsilon_cutoff = fields.number("epsilon_cutoff").value_or(p.epsilon_cutoff);
  p.eta_cutoff = fields.number("eta_cutoff").value_or(p.eta_cutoff);
  p.repetition_penalty = fields.number("repetition_penalty").value_or(p.repetition_penalty);
  p.no_repeat_ngram_size = fields.integer("no_repeat_ngram_size").value_or(p.no_repeat_ngram_size);
  p.bad_words_ids = read_bad_words(fields);
  p.min_new_tokens = fields.integer("min_new_tokens").value_or(p.min_new_tokens);
  p.min_length = fields.integer("min_length").value_or(p.min_length);
  p.seed = read_seed(fields, p.seed);
  validate(p);
  return p;
}

}  // namespace larder::tools
