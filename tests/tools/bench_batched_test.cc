// larder bench --batched, as a user meets it.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

CommandResult bench(const Arguments& more) {
  Arguments all = {"bench", "-m", toy_folder("toy-llama")};
  all.insert(all.end(), more.begin(), more.end());
  return run_larder(all);
}

std::vector<Json> rows(const Arguments& more) {
  const CommandResult result = bench(more);
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::vector<Json> found;
  for (std::string line; std::getline(lines, line);) found.push_back(parse_json(line, "a row"));
  return found;
}

TEST(BatchedBench, GivesALineOfLlamaBatchedBenchsFieldsForEveryCombination) {
  const auto found = rows({"--batched", "-p", "8,16", "-n", "4", "-b", "1,3", "--json"});
  ASSERT_EQ(found.size(), 4u);
  for (const Json& row : found) {
    const auto number = [&](const char* key) { return row.at(key).get<double>(); };
    EXPECT_EQ(number("n_kv"), number("pl") * (number("pp") + number("tg")));
    EXPECT_GT(number("t_pp"), 0);
    EXPECT_GT(number("t_tg"), 0);
    EXPECT_DOUBLE_EQ(number("t"), number("t_pp") + number("t_tg"));
    EXPECT_DOUBLE_EQ(number("speed_pp"), number("pl") * number("pp") / number("t_pp"));
    EXPECT_DOUBLE_EQ(number("speed_tg"), number("pl") * number("tg") / number("t_tg"));
    EXPECT_DOUBLE_EQ(number("speed"), number("n_kv") / number("t"));
    for (const char* key : {"n_kv_max", "n_batch", "n_ubatch", "is_pp_shared", "n_threads"})
      EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_GE(found[0].at("n_kv_max"), 3 * (16 + 4)) << "what the pool holds";
  EXPECT_EQ(found[1].at("pl"), 3);
  EXPECT_EQ(found[2].at("pp"), 16);
}

TEST(BatchedBench, PrintsATableWhenNothingElseIsAsked) {
  const std::string table = bench({"--batched", "-p", "8", "-n", "4", "-b", "2"}).out;
  EXPECT_TRUE(table.starts_with("| PP | TG | B | N_KV |")) << table;
  EXPECT_NE(table.find("\n| 8 | 4 | 2 | 24 | "), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 3);
}

TEST(BatchedBench, ASharedPrefixIsComputedOnce) {
  const Arguments shared = {"--batched",       "-p",  "512",    "-n", "2", "-b", "8",
                            "--shared-prefix", "512", "--json", "-r", "3"};
  Arguments apart = shared;
  apart.insert(apart.end(), {"--prefix-cache", "off"});
  const Json once = rows(shared).at(0), each = rows(apart).at(0);
  EXPECT_EQ(once.at("is_pp_shared"), 1);
  EXPECT_LT(once.at("t_pp").get<double>(), each.at("t_pp").get<double>() / 2);
}

TEST(BatchedBench, PromptsMayTakeSeveralSteps) {
  const auto found = rows({"--batched", "-p", "24", "-n", "3", "-b", "5", "--max-tokens-per-step",
                           "16", "--json", "--block-size", "4"});
  EXPECT_EQ(found.at(0).at("n_kv"), 5 * 27);
  EXPECT_EQ(found.at(0).at("n_batch"), 16);
}

TEST(BatchedBench, WhatCannotBeMeasuredIsOneLine) {
  const auto refused = [](const Arguments& more, const std::string& error, int code = 2) {
    const CommandResult result = bench(more);
    EXPECT_EQ(result.code, code) << error;
    EXPECT_NE(result.err.find(error), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  };
  refused({"-b", "2"}, "needs --batched");
  refused({"--shared-prefix", "2"}, "--shared-prefix needs --batched");
  refused({"--blocks", "2"}, "--blocks needs --batched");
  refused({"--batched", "-d", "4"}, "-d cannot be used with --batched");
  refused({"--batched", "-o", "csv"}, "-o csv cannot be used");
  refused({"--batched", "-b", "0"}, "-b 0 must be at least 1");
  refused({"--batched", "-p", "0"}, "-p 0 must be at least 1");
  refused({"--batched", "-p", "4", "--shared-prefix", "5"}, "--shared-prefix 5 must be 0 to the 4");
  refused({"--batched", "-p", "2000", "-n", "64", "-b", "1"}, "max_position_embeddings) is 2048");
  refused({"--batched", "--cache", "static"}, "share the cache \"paged\"");
  refused({"--batched", "-p", "32", "-n", "8", "-b", "4", "--blocks", "8"}, "give more --blocks",
          1);
}

}  // namespace
}  // namespace larder::test
