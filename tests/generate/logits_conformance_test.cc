#include "tests/support/logits_conformance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "tests/support/source_dir.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

fs::path logits_folder() {
  const char* given = std::getenv("LARDER_CONFORMANCE_DIR");
  const fs::path root = given != nullptr ? given : test::source_path("tests/data/conformance");
  return root / "logits";
}

std::vector<fs::path> cases() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(logits_folder()))
    if (fs::exists(entry.path() / "case.json")) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

TEST(LogitsConformance, EveryCaseOfTheFolderIsMet) {
  if (!fs::is_directory(logits_folder())) GTEST_SKIP() << "no " << logits_folder();
  const auto all = cases();
  ASSERT_FALSE(all.empty()) << logits_folder();
  for (const auto& one : all)
    for (const auto& line : check_logits_case(one)) ADD_FAILURE() << one << ": " << line;
  std::printf("%zu cases of %s\n", all.size(), logits_folder().c_str());
}

// A check that cannot fail proves nothing: the same case with another value must be reported.
TEST(LogitsConformance, AWrongResultIsReported) {
  const fs::path source = test::source_path("tests/data/conformance/logits/02-top_k");
  const fs::path copy = fs::path(testing::TempDir()) / "larder-wrong-logits-case";
  fs::remove_all(copy);
  fs::create_directories(copy);
  fs::copy_file(source / "tensors.safetensors", copy / "tensors.safetensors");
  const auto write = [&](const std::string& processors) {
    const std::string text = R"({"kind": "logits", "name": "x", "processors": [)" + processors +
                             R"(], "input_ids": "input_ids", "scores": "scores", )" +
                             R"("expected": "expected", "atol": 1e-5, "rtol": 1e-5})";
    AtomicFile file(copy / "case.json");
    file.write(text.data(), text.size());
    file.commit();
  };
  write(R"({"name": "top_k", "value": 5})");
  EXPECT_TRUE(check_logits_case(copy).empty());
  write(R"({"name": "top_k", "value": 6})");
  EXPECT_EQ(check_logits_case(copy).size(), 3u);  // one token more in each of three rows
  write(R"({"name": "top_q", "value": 6})");
  EXPECT_THROW(check_logits_case(copy), Error);
  fs::remove_all(copy);
}

}  // namespace
}  // namespace larder
