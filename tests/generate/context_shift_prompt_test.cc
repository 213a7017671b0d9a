// What a context that shifts asks of a prompt.
#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

TEST(Case48, APromptMustFitTheContextThatShifts) {
  HostAllocator host;
  SessionOptions options;
  options.cache_implementation = "static";
  options.max_cache_len = 12;
  options.threads = 1;
  Session session(Model::load(toy_folder("toy-llama"), DType::kF32, host), options, host);
  GenerationOptions shifting;
  shifting.context_shift = ContextShiftParams{2, 7};
  const auto start = [&](int64_t length) -> std::string {
    try {
      Generation(session, {{some_ids(length, 2048, 1), 40, {}, {}, {}}}, shifting);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(start(12), "");
  EXPECT_NE(start(13).find("max_cache_len is 12"), std::string::npos);
}

}  // namespace
}  // namespace larder::test
