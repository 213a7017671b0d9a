#include <gtest/gtest.h>

#include "larder/tensor/safetensors.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/temp_folder.h"

namespace larder {
namespace {

using test::braces;
using test::container;
using test::entry;
using test::error_text;
using test::one_tensor_file;
using test::TempFolder;
using test::zeros;

std::string folder_error(const TempFolder& folder) {
  return error_text([&] { SafetensorsFolder opened(folder.path()); });
}

constexpr std::string_view kIndex = "model.safetensors.index.json";

TEST(Case34, AllMissingFilesAreListedAtOnce) {
  const TempFolder folder;
  folder.write("one.safetensors", one_tensor_file("a", 1));
  folder.write(kIndex, R"({"metadata":{"total_size":3},"weight_map":{"a":"one.safetensors",
    "b":"two.safetensors","c":"three.safetensors","d":"two.safetensors"}})");
  EXPECT_NE(folder_error(folder).find("2 of 3 files named by its index are missing: "
                                      "\"three.safetensors\", \"two.safetensors\""),
            std::string::npos)
      << folder_error(folder);
}

TEST(Case34, ATruncatedFileOfTheIndexIsRefusedByName) {
  const TempFolder folder;
  folder.write("one.safetensors", one_tensor_file("a", 1));
  const std::string two = one_tensor_file("b", 2);
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  for (size_t size = 0; size < two.size(); ++size) {
    folder.write("two.safetensors", two.substr(0, size));
    EXPECT_NE(folder_error(folder).find("two.safetensors: "), std::string::npos) << size;
  }
  folder.write("two.safetensors", two);
  EXPECT_EQ(folder_error(folder), "");
}

TEST(Case34, FilesNotInTheIndexAreNotMerged) {
  const TempFolder folder;
  folder.write("one.safetensors", one_tensor_file("a", 1));
  folder.write("two.safetensors", one_tensor_file("b", 2));
  folder.write("extra.safetensors", one_tensor_file("c", 3));
  folder.write("broken.safetensors", "x");
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const SafetensorsFolder opened(folder.path());
  ASSERT_EQ(opened.tensors().size(), 2u);
  EXPECT_EQ(opened.files().size(), 2u);
  EXPECT_EQ(opened.tensors()[0]->name, "a");
  EXPECT_EQ(static_cast<int>(*opened.find("b")->data), 2);
  EXPECT_EQ(opened.find("c"), nullptr);
}

TEST(Case34, TheSingleFileWinsOverAnIndex) {
  const TempFolder folder;
  folder.write("model.safetensors", one_tensor_file("single", 7));
  folder.write(kIndex, R"({"weight_map":{"a":"absent.safetensors"}})");
  const SafetensorsFolder opened(folder.path());
  ASSERT_EQ(opened.tensors().size(), 1u);
  EXPECT_NE(opened.find("single"), nullptr);
}

TEST(Case34, PathsStayInsideTheModelFolder) {
  const TempFolder folder;
  folder.write("out.safetensors", one_tensor_file("a", 1));
  folder.write("model/sub/in.safetensors", one_tensor_file("a", 1));
  const auto index = [&](std::string_view file) {
    folder.write("model/" + std::string(kIndex), str("{\"weight_map\":{\"a\":\"", file, "\"}}"));
    return error_text([&] { SafetensorsFolder opened(folder / "model"); });
  };
  for (const std::string& file :
       {std::string("../out.safetensors"), std::string("sub/../../out.safetensors"),
        (folder / "out.safetensors").string(), std::string(""), std::string("..")}) {
    EXPECT_NE(index(file).find("not inside the model folder"), std::string::npos) << file;
  }
  EXPECT_EQ(index("sub/in.safetensors"), "");
  EXPECT_NE(index("sub").find("missing: \"sub\""), std::string::npos);
}

TEST(Case34, AnIndexThatContradictsItsFilesIsRefused) {
  const TempFolder folder;
  folder.write("one.safetensors", one_tensor_file("a", 1));
  folder.write("two.safetensors", one_tensor_file("b", 2));
  folder.write("again.safetensors", one_tensor_file("a", 3));
  folder.write(kIndex, R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})");
  EXPECT_NE(folder_error(folder).find("2 tensors are not where"), std::string::npos);
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","lost":"one.safetensors"}})");
  EXPECT_NE(folder_error(folder).find("\"lost in one.safetensors\""), std::string::npos);
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors",
    "x":"again.safetensors"}})");
  EXPECT_NE(folder_error(folder).find("\"x in again.safetensors\""), std::string::npos);
  folder.write("again.safetensors", container(braces(entry("a", "U8", "[1]", "[0,1]") + "," +
                                                     entry("x", "U8", "[1]", "[1,2]")),
                                              zeros(2)));
  EXPECT_NE(folder_error(folder).find("tensor \"a\" is in two files"), std::string::npos);
}

TEST(Case34, MalformedIndexesAreRefused) {
  const TempFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"", "not valid JSON"},
      {"[]", "expected a JSON object"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map":null})", "weight_map is missing"},
      {R"({"weight_map":[]})", "weight_map must be an object"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":{"a":1}})", "must be a file name, found 1"},
      {R"({"weight_map":{"a":"x\u0000.safetensors"}})", "not inside the model folder"},
  };
  for (const auto& [content, expected] : cases) {
    folder.write(kIndex, content);
    EXPECT_NE(folder_error(folder).find(expected), std::string::npos) << folder_error(folder);
  }
  std::filesystem::remove(folder / kIndex);
  EXPECT_NE(folder_error(folder).find("neither model.safetensors nor"), std::string::npos);
  EXPECT_NE(
      error_text([&] { SafetensorsFolder opened(folder / "absent"); }).find("no model folder"),
      std::string::npos);
}

}  // namespace
}  // namespace larder
