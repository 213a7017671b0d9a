// The reference results of tests/data/conformance/tokenizer, one test a tokenizer.
#include <gtest/gtest.h>

#include <filesystem>

#include "larder/base/str.h"
#include "tests/support/source_dir.h"
#include "tests/support/tokenizer_conformance.h"

namespace larder {
namespace {

class TokenizerConformance : public ::testing::TestWithParam<std::string> {};

TEST_P(TokenizerConformance, EveryCaseOfTheFolderIsEqual) {
  const auto folder =
      std::filesystem::path(test::source_path("tests/data/conformance/tokenizer")) / GetParam();
  for (const std::string& message : check_tokenizer_folder(folder)) ADD_FAILURE() << message;
}

INSTANTIATE_TEST_SUITE_P(Shipped, TokenizerConformance,
                         ::testing::Values("gpt2", "smollm", "llama2", "gemma", "llama3", "qwen2",
                                           "mistral"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace larder
