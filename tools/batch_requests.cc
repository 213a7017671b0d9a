#include "tools/batch_requests.h"

#include <algorithm>
#include <array>
#include <limits>

#include "larder/base/error.h"
#include "tools/sampling_fields.h"

namespace larder::tools {
namespace {

constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostSamples = 1024;  // each has a row of its own in the end
constexpr const char* kWhat = "request";
constexpr const char* kLookup = "prompt_lookup_num_tokens";
constexpr const char* kNgram = "max_matching_ngram_size";
constexpr std::array kKeys = {"id", "prompt",   "prompt_ids", "max_new_tokens", "stop",
                              "n",  "priority", "ignore_eos", kLookup,          kNgram};

void refuse_unknown(const Json& object) {
  const auto sampling = sampling_keys();
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kKeys, key) != kKeys.end() ||
        std::ranges::find(sampling, key) != sampling.end())
      continue;
    fail(kWhat, ": no setting is called ", in_quotes(key), "; there are: ", join(kKeys, ", "), ", ",
         join(sampling, ", "));
  }
}

int64_t integer_in(const JsonFields& fields, const char* key, int64_t otherwise, int64_t least,
                   int64_t most) {
  const int64_t value = fields.integer(key).value_or(otherwise);
  if (value < least || value > most)
    fail(fields.what(), ": ", key, " ", value, " must be ", least, " to ", most);
  return value;
}

std::vector<int32_t> read_prompt(const JsonFields& fields, const BatchDefaults& defaults) {
  if (fields.has("prompt") == fields.has("prompt_ids"))
    fail(fields.what(), ": give either prompt or prompt_ids");
  if (fields.has("prompt")) {
    const std::optional<std::string> text = fields.string("prompt");
    if (!text) fields.wrong_type("prompt", "a string");
    if (defaults.tokenizer == nullptr)
      fail(fields.what(),
           ": the model has no tokenizer.json to read a prompt with; give prompt_ids");
    return defaults.tokenizer->encode(*text, true);
  }
  if (!fields.find("prompt_ids")->is_array())
    fields.wrong_type("prompt_ids", "a list of token ids");
  const std::vector<int64_t> given = fields.integers("prompt_ids").value();
  std::vector<int32_t> ids;
  for (const int64_t id : given) {
    if (id < 0 || id > kMostInt32) fail(fields.what(), ": ", id, " of prompt_ids is no token id");
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

std::vector<std::string> read_stop(const JsonFields& fields) {
  const Json* stop = fields.find("stop");
  if (stop != nullptr && stop->is_string()) return {stop->get<std::string>()};
  return fields.strings("stop").value_or(std::vector<std::string>());
}

// 0 guesses: none, whatever the default.
std::optional<PromptLookupParams> read_lookup(const JsonFields& fields, int64_t otherwise) {
  PromptLookupParams params;
  params.prompt_lookup_num_tokens = integer_in(fields, kLookup, otherwise, 0, kMostInt32);
  params.max_matching_ngram_size =
      integer_in(fields, kNgram, params.max_matching_ngram_size, 1, kMostInt32);
  if (params.prompt_lookup_num_tokens == 0) return std::nullopt;
  return params;
}

}  // namespace

EngineRequest read_batch_request(const Json& object, const BatchDefaults& defaults) {
  const JsonFields fields(object, kWhat);
  refuse_unknown(object);
  EngineRequest asked;
  Request& request = asked.request;
  request.prompt_ids = read_prompt(fields, defaults);
  request.max_new_tokens =
      integer_in(fields, "max_new_tokens", defaults.max_new_tokens, 0, kMostInt32);
  request.sampling = read_sampling(fields);
  if (!fields.boolean("ignore_eos").value_or(false)) request.eos_token_ids = defaults.eos_token_ids;
  request.stop_strings = read_stop(fields);
  asked.num_samples = static_cast<int32_t>(integer_in(fields, "n", 1, 1, kMostSamples));
  asked.prompt_lookup = read_lookup(fields, defaults.prompt_lookup);
  asked.priority = static_cast<int32_t>(integer_in(fields, "priority", 0, -kMostInt32, kMostInt32));
  return asked;
}

std::optional<BatchLine> BatchReader::next() {
  std::string text;
  while (std::getline(input_, text)) {
    ++line_;
    if (text.find_first_not_of(" \t\r") != std::string::npos) return parse(text);
  }
  if (input_.bad()) fail_as(ErrorKind::kIo, "the input cannot be read beyond line ", line_);
  return std::nullopt;
}

BatchLine BatchReader::parse(const std::string& text) {
  const std::string name = str("line ", line_);
  BatchLine line{name, "", {}};
  try {
    const Json object = parse_json(text, name, DuplicateKeys::kRefuse);
    line.id = take_id(object, name);
    line.request = read_batch_request(object, defaults_);
  } catch (const Error& error) {
    line.error = error.what();
  }
  return line;
}

// An id belongs to the first line that has it: a second one must not pass for its result.
Json BatchReader::take_id(const Json& object, const std::string& name) {
  const JsonFields fields(object, name);
  const Json* id = fields.find("id");
  if (id == nullptr) fail(name, ": a request needs an id");
  if (!id->is_string() && !id->is_number_integer())
    fields.wrong_type("id", "a string or an integer");
  const auto [at, is_new] = line_of_.emplace(id->dump(), line_);
  if (!is_new) fail(name, ": id ", describe(*id), " is that of line ", at->second, " already");
  return *id;
}

}  // namespace larder::tools
