#include "tests/support/logits_conformance.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <span>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/generate/logits_process.h"
#include "larder/tensor/safetensors.h"

namespace larder {
namespace {

template <class T>
std::vector<T> values_of(const SafetensorsFile& file, const std::string& name, DType dtype) {
  const StoredTensor* tensor = file.find(name);
  if (tensor == nullptr) fail(file.path().string(), ": no tensor ", in_quotes(name));
  if (tensor->dtype != dtype || tensor->shape.size() != 2)
    fail(file.path().string(), ": tensor ", in_quotes(name), " is not a matrix of ",
         dtype_name(dtype));
  std::vector<T> out(tensor->bytes / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), tensor->data, tensor->bytes);
  return out;
}

// One processor of a case, with the row that it is applied to.
struct Call {
  std::span<float> scores;
  std::span<const int32_t> ids;
  SamplerScratch& scratch;
  const Json& value;
  size_t keep;
  std::vector<int32_t> eos;
  int64_t prompt;

  double number() const { return value.get<double>(); }
  int64_t integer() const { return value.get<int64_t>(); }
  int64_t length() const { return static_cast<int64_t>(ids.size()); }
};

using Processor = std::function<void(const Call&)>;

std::map<std::string, Processor> processors() {
  return {
      {"repetition_penalty",
       [](const Call& c) { apply_repetition_penalty(c.scores, c.ids, c.number(), c.scratch); }},
      {"no_repeat_ngram_size",
       [](const Call& c) { apply_no_repeat_ngram(c.scores, c.ids, c.integer()); }},
      {"bad_words_ids",
       [](const Call& c) {
         apply_bad_words(c.scores, c.ids, c.value.get<std::vector<std::vector<int32_t>>>(), c.eos);
       }},
      {"min_length",
       [](const Call& c) { apply_min_length(c.scores, c.length(), c.integer(), c.eos); }},
      {"min_new_tokens",
       [](const Call& c) {
         apply_min_new_tokens(c.scores, c.length() - c.prompt, c.integer(), c.eos);
       }},
      {"temperature", [](const Call& c) { apply_temperature(c.scores, c.number()); }},
      {"top_k", [](const Call& c) { apply_top_k(c.scores, c.integer(), c.scratch, c.keep); }},
      {"top_p", [](const Call& c) { apply_top_p(c.scores, c.number(), c.scratch, c.keep); }},
      {"min_p", [](const Call& c) { apply_min_p(c.scores, c.number(), c.scratch, c.keep); }},
      {"typical_p",
       [](const Call& c) { apply_typical_p(c.scores, c.number(), c.scratch, c.keep); }},
      {"epsilon_cutoff",
       [](const Call& c) { apply_epsilon_cutoff(c.scores, c.number(), c.scratch, c.keep); }},
      {"eta_cutoff",
       [](const Call& c) { apply_eta_cutoff(c.scores, c.number(), c.scratch, c.keep); }},
  };
}

std::vector<int32_t> narrow(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

void apply(const Json& list, const std::string& what, std::span<float> scores,
           std::span<const int32_t> ids, SamplerScratch& scratch) {
  const auto known = processors();
  for (const Json& one : list) {
    const JsonFields fields(one, what);
    const auto name = fields.string("name").value_or("");
    const Json* value = fields.find("value");
    const auto found = known.find(name);
    if (found == known.end() || value == nullptr) fail(what, ": no processor ", in_quotes(name));
    found->second({scores, ids, scratch, *value,
                   static_cast<size_t>(fields.integer("keep").value_or(1)),
                   narrow(fields.integers("eos").value_or(std::vector<int64_t>{})),
                   fields.integer("prompt").value_or(0)});
  }
}

bool equal(float got, float want, double atol, double rtol) {
  if (std::isinf(want) || std::isinf(got)) return got == want;
  const auto allowed = static_cast<float>(atol) + static_cast<float>(rtol) * std::fabs(want);
  return std::fabs(got - want) <= allowed;
}

std::string required(const JsonFields& fields, std::string_view key) {
  const auto value = fields.string(key);
  if (!value) fail(fields.what(), ": no ", key);
  return *value;
}

}  // namespace

std::vector<std::string> check_logits_case(const std::filesystem::path& case_folder) {
  const auto what = (case_folder / "case.json").string();
  const Json json = parse_json(read_file(case_folder / "case.json"), what);
  const JsonFields fields(json, what);
  const SafetensorsFile file(case_folder / "tensors.safetensors");
  const auto ids = narrow(values_of<int64_t>(file, required(fields, "input_ids"), DType::kI64));
  auto scores = values_of<float>(file, required(fields, "scores"), DType::kF32);
  const auto expected = values_of<float>(file, required(fields, "expected"), DType::kF32);
  const auto rows = static_cast<size_t>(file.find(required(fields, "scores"))->shape[0]);
  const Json* list = fields.find("processors");
  if (expected.size() != scores.size() || rows == 0 || list == nullptr) fail(what, ": incomplete");

  const size_t vocab = scores.size() / rows, length = ids.size() / rows;
  SamplerScratch scratch(vocab);
  for (size_t row = 0; row < rows; ++row)
    apply(*list, what, std::span(scores).subspan(row * vocab, vocab),
          std::span(ids).subspan(row * length, length), scratch);

  const double atol = fields.number("atol").value_or(0), rtol = fields.number("rtol").value_or(0);
  std::vector<std::string> wrong;
  for (size_t i = 0; i < scores.size() && wrong.size() < 8; ++i)
    if (!equal(scores[i], expected[i], atol, rtol))
      wrong.push_back(str("row ", i / vocab, " id ", i % vocab, ": got ", scores[i], ", expected ",
                          expected[i]));
  return wrong;
}

}  // namespace larder
