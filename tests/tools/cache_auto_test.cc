// larder generate --cache auto: the run outlives its memory limit.
#include <gtest/gtest.h>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

std::vector<std::string> arguments(const std::string& cache, const std::string& limit) {
  std::vector<std::string> all = {"generate", "-m",           toy_folder("toy-llama"),
                                  "-p",       "To be",        "-n",
                                  "600",      "--ignore-eos", "--threads",
                                  "1",        "--json",       "--cache",
                                  cache};
  if (!limit.empty()) {
    all.emplace_back("--memory-limit");
    all.push_back(limit);
  }
  return all;
}

TEST(CacheAuto, GoesOnWhereTheDynamicCacheEnds) {
  const CommandResult free = run_larder(arguments("dynamic", ""));
  ASSERT_EQ(free.code, 0) << free.err;
  const Json memory = parse_json(free.out, "the output").at("memory");
  const std::string limit =
      str(memory.at("scratch_bytes").get<int64_t>() + memory.at("kv_bytes").get<int64_t>() / 2);
  EXPECT_EQ(run_larder(arguments("dynamic", limit)).code, 1);
  const CommandResult result = run_larder(arguments("auto", limit));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(parse_json(result.out, "the output").at("output_ids").size(), 600u);
  EXPECT_NE(result.err.find("the cache is now quantized"), std::string::npos) << result.err;
}

TEST(CacheAuto, WithoutALimitIsTheDynamicCache) {
  const CommandResult result = run_larder(arguments("auto", ""));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

}  // namespace
}  // namespace larder::test
