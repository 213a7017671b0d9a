#include "tools/batch_requests.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/support/error_of.h"
#include "tests/support/logits_run.h"

namespace larder::tools {
namespace {

std::vector<BatchLine> read(const std::string& text, const BatchDefaults& defaults = {}) {
  std::istringstream input(text);
  BatchReader reader(input, defaults);
  std::vector<BatchLine> lines;
  while (auto line = reader.next()) lines.push_back(std::move(*line));
  return lines;
}

EngineRequest request(const std::string& json, const BatchDefaults& defaults = {}) {
  return read_batch_request(parse_json(json, "the test"), defaults);
}

TEST(BatchRequest, HasTheDefaultsWhereItSaysNothing) {
  const EngineRequest asked = request(R"({"prompt_ids": [1, 5]})", {40, {2, 7}, nullptr});
  EXPECT_EQ(asked.request.prompt_ids, (std::vector<int32_t>{1, 5}));
  EXPECT_EQ(asked.request.max_new_tokens, 40);
  EXPECT_EQ(asked.request.eos_token_ids, (std::vector<int32_t>{2, 7}));
  EXPECT_FALSE(asked.request.sampling.do_sample);
  EXPECT_TRUE(asked.request.stop_strings.empty());
  EXPECT_EQ(asked.num_samples, 1);
  EXPECT_EQ(asked.priority, 0);
}

TEST(BatchRequest, ReadsEverySettingUnderItsName) {
  const EngineRequest asked = request(R"({
    "id": 1, "prompt_ids": [3], "max_new_tokens": 9, "stop": ["a", "b"], "n": 4, "priority": -2,
    "ignore_eos": true, "do_sample": true, "temperature": 0.5, "top_k": 3, "top_p": 0.25,
    "min_p": 0.125, "typical_p": 0.75, "epsilon_cutoff": 0.01, "eta_cutoff": 0.02,
    "seed": 18446744073709551615, "min_length": 6, "repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2, "bad_words_ids": [[1], [2, 3]], "min_new_tokens": 5})",
                                      {40, {2}, nullptr});
  const SamplingParams& p = asked.request.sampling;
  EXPECT_EQ(asked.request.max_new_tokens, 9);
  EXPECT_EQ(asked.request.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(asked.request.eos_token_ids.empty());
  EXPECT_EQ(asked.num_samples, 4);
  EXPECT_EQ(asked.priority, -2);
  EXPECT_TRUE(p.do_sample);
  EXPECT_EQ(p.temperature, 0.5);
  EXPECT_EQ(p.top_k, 3);
  EXPECT_EQ(p.top_p, 0.25);
  EXPECT_EQ(p.min_p, 0.125);
  EXPECT_EQ(p.typical_p, 0.75);
  EXPECT_EQ(p.epsilon_cutoff, 0.01);
  EXPECT_EQ(p.eta_cutoff, 0.02);
  EXPECT_EQ(p.seed, UINT64_MAX);
  EXPECT_EQ(p.min_length, 6);
  EXPECT_EQ(p.repetition_penalty, 1.5);
  EXPECT_EQ(p.no_repeat_ngram_size, 2);
  EXPECT_EQ(p.bad_words_ids, (std::vector<std::vector<int32_t>>{{1}, {2, 3}}));
  EXPECT_EQ(p.min_new_tokens, 5);
}

TEST(BatchRequest, SamplesWhenASettingOfSamplingIsGiven) {
  const auto samples = [](const std::string& more) {
    return request("{\"prompt_ids\": [1]" + more + "}").request.sampling.do_sample;
  };
  EXPECT_FALSE(samples(""));
  EXPECT_FALSE(samples(R"(, "repetition_penalty": 2, "seed": 3)"));
  EXPECT_TRUE(samples(R"(, "top_p": 0.5)"));
  EXPECT_FALSE(samples(R"(, "top_p": 0.5, "do_sample": false)"));
  EXPECT_FALSE(samples(R"(, "top_k": null)")) << "null leaves a setting off";
}

TEST(BatchRequest, OneStopStringNeedsNoList) {
  EXPECT_EQ(request(R"({"prompt_ids": [1], "stop": "x"})").request.stop_strings,
            std::vector<std::string>{"x"});
}

TEST(BatchRequest, TextIsReadAsGenerateReadsIt) {
  const Tokenizer tokenizer = Tokenizer::load(test::toy_folder("toy-llama"));
  const EngineRequest asked = request(R"({"prompt": "To be"})", {1, {}, &tokenizer});
  EXPECT_EQ(asked.request.prompt_ids, tokenizer.encode("To be", true));
}

TEST(BatchRequest, WhatIsWrongIsNamed) {
  const auto refused = [](const std::string& json, const std::string& text) {
    const std::string error = error_of([&] { request(json); });
    EXPECT_NE(error.find(text), std::string::npos) << json << " gave " << error;
  };
  refused("[1]", "expected a JSON object");
  refused("{}", "either prompt or prompt_ids");
  refused(R"({"prompt": "a", "prompt_ids": [1]})", "either prompt or prompt_ids");
  refused(R"({"prompt": "a"})", "no tokenizer.json");
  refused(R"({"prompt": 1})", "prompt must be a string");
  refused(R"({"prompt": null})", "prompt must be a string");
  refused(R"({"prompt_ids": 1})", "prompt_ids must be a list");
  refused(R"({"prompt_ids": null})", "prompt_ids must be a list");
  refused(R"({"prompt_ids": ["a"]})", "prompt_ids must be");
  refused(R"({"prompt_ids": [1.5]})", "prompt_ids must be");
  refused(R"({"prompt_ids": [-1]})", "-1 of prompt_ids is no token id");
  refused(R"({"prompt_ids": [2147483648]})", "2147483648 of prompt_ids is no token id");
  refused(R"({"prompt_ids": [1], "tmperature": 1})", "no setting is called \"tmperature\"");
  refused(R"({"prompt_ids": [1], "max_new_tokens": -1})", "max_new_tokens -1 must be 0 to");
  refused(R"({"prompt_ids": [1], "max_new_tokens": "4"})", "max_new_tokens must be a whole number");
  refused(R"({"prompt_ids": [1], "n": 0})", "n 0 must be 1 to 1024");
  refused(R"({"prompt_ids": [1], "n": 1025})", "n 1025 must be 1 to 1024");
  refused(R"({"prompt_ids": [1], "priority": 1e12})", "priority 1000000000000 must be");
  refused(R"({"prompt_ids": [1], "stop": [1]})", "stop must be a list of strings");
  refused(R"({"prompt_ids": [1], "seed": -1})", "seed must be a whole number, 0 or above");
  refused(R"({"prompt_ids": [1], "top_p": 3})", "top_p is 3");
  refused(R"({"prompt_ids": [1], "do_sample": 1})", "do_sample must be true or false");
  refused(R"({"prompt_ids": [1], "bad_words_ids": 4})", "bad_words_ids must be a list of lists");
  refused(R"({"prompt_ids": [1], "bad_words_ids": [4]})", "bad_words_ids must be a list of lists");
  refused(R"({"prompt_ids": [1], "bad_words_ids": [[-4]]})",
          "must be a list of lists of token ids");
}

TEST(BatchReader, GivesLinesInTheirOrderAndLeavesEmptyOnesOut) {
  const auto lines = read(
      "{\"id\": \"a\", \"prompt_ids\": [1]}\r\n\n \t\r\n"
      "{\"id\": 2, \"prompt_ids\": [2]}");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].id, "a");
  EXPECT_EQ(lines[0].error, "");
  EXPECT_EQ(lines[1].id, 2);
  EXPECT_EQ(lines[1].request.request.prompt_ids, std::vector<int32_t>{2});
  EXPECT_TRUE(read("").empty());
}

TEST(BatchReader, ABadLineKeepsItsIdAndIsElseKnownByItsNumber) {
  const auto lines = read(
      "{\"id\": 1, \"prompt_ids\": [1], \"x\": 1}\n"
      "{\"prompt_ids\": [1]}\n"
      "not JSON\n"
      "{\"id\": [1], \"prompt_ids\": [1]}\n"
      "{\"id\": null, \"prompt_ids\": [1]}\n"
      "[]\n"
      "{\"id\": 9, \"id\": 9, \"prompt_ids\": [1]}\n"
      "{\"id\": 3, \"prompt_ids\": [1]}\n");
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[0].id, 1);
  for (size_t i = 1; i < 7; ++i) EXPECT_EQ(lines[i].id, "line " + std::to_string(i + 1));
  for (size_t i = 0; i < 7; ++i) EXPECT_NE(lines[i].error, "") << i;
  EXPECT_EQ(lines[7].id, 3);
  EXPECT_EQ(lines[7].error, "");
}

TEST(BatchReader, AnIdBelongsToItsFirstLineEvenIfThatOneIsBad) {
  const auto lines =
      read("{\"id\": 1}\n{\"id\": 1, \"prompt_ids\": [1]}\n{\"id\": \"1\", \"prompt_ids\": [1]}\n");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1].id, "line 2");
  EXPECT_NE(lines[1].error.find("id 1 is that of line 1 already"), std::string::npos);
  EXPECT_EQ(lines[2].error, "") << "a number is not a string";
}

}  // namespace
}  // namespace larder::tools
