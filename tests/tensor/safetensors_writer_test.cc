#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "larder/tensor/safetensors.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/temp_folder.h"

namespace larder {
namespace {

using test::error_text;
using test::one_tensor_file;
using test::TempFolder;

TEST(SafetensorsWriter, WhatWasWrittenReadsBack) {
  const TempFolder folder;
  const std::array<float, 6> floats = {1, 2, 3, 4, 5, 6};
  const std::array<uint16_t, 3> halves = {0x3F80, 0x4000, 0x4040};
  const std::array<int64_t, 1> number = {-5};
  const std::array<uint8_t, 1> flag = {1};
  const auto path = folder / "out.safetensors";
  write_safetensors(path,
                    {{"flag", DType::kBool, {1}, flag.data()},
                     {"bf", DType::kBF16, {3}, halves.data()},
                     {"f32", DType::kF32, {2, 3}, floats.data()},
                     {"empty", DType::kF32, {0, 4}, nullptr},
                     {"scalar", DType::kI64, {}, number.data()},
                     {"\xc3\xa9\"\\\n", DType::kU8, {1}, flag.data()}},
                    {{"format", "pt"}, {"quote", "\"\n"}});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("quote"), "\"\n");
  ASSERT_EQ(file.tensors().size(), 6u);
  EXPECT_EQ(file.find("f32")->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file.find("f32")->data, floats.data(), sizeof floats), 0);
  EXPECT_EQ(std::memcmp(file.find("bf")->data, halves.data(), sizeof halves), 0);
  EXPECT_EQ(std::memcmp(file.find("scalar")->data, number.data(), sizeof number), 0);
  EXPECT_TRUE(file.find("scalar")->shape.empty());
  EXPECT_EQ(file.find("empty")->bytes, 0u);
  EXPECT_NE(file.find("\xc3\xa9\"\\\n"), nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(file.tensors()[0].data) % 64, 0u);
  for (const StoredTensor& tensor : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % dtype_size(tensor.dtype), 0u)
        << tensor.name << " is not aligned to its type";
  }
}

TEST(SafetensorsWriter, RefusesNamesThatCannotStandInAHeader) {
  const TempFolder folder;
  const auto path = folder / "out.safetensors";
  const uint8_t byte = 0;
  const auto write = [&](const std::vector<std::string>& names) {
    std::vector<TensorToWrite> tensors;
    for (const std::string& name : names) tensors.push_back({name, DType::kU8, {1}, &byte});
    return error_text([&] { write_safetensors(path, tensors); });
  };
  EXPECT_NE(write({"a", "a"}).find("\"a\" is given twice"), std::string::npos);
  EXPECT_NE(write({"__metadata__"}).find("no tensor can bear the name"), std::string::npos);
  EXPECT_NE(write({"\xff"}).find("not valid UTF-8"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a refusal leaves nothing behind";
}

TEST(SafetensorsWriter, AFailedWriteLeavesTheOldFileWhole) {
  const TempFolder folder;
  const std::string old = one_tensor_file("old", 1);
  const auto path = folder.write("out.safetensors", old);
  // The second tensor's bytes lie in no memory that can be read: the system refuses the write
  // after the header and the first tensor went out, as it does on a full disk.
  const uint8_t byte = 0;
  const void* unreadable = reinterpret_cast<const void*>(uintptr_t{4096});
  const std::string text = error_text([&] {
    write_safetensors(path, {{"a", DType::kU8, {1}, &byte}, {"b", DType::kU8, {1}, unreadable}});
  });
  EXPECT_NE(text.find("cannot write"), std::string::npos) << text;
  EXPECT_EQ(read_file(path), old);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriter, ATargetThatCannotBeReplacedIsLeftAlone) {
  const TempFolder folder;
  folder.write("taken/inside", "x");
  const uint8_t byte = 0;
  const std::vector<TensorToWrite> tensors = {{"a", DType::kU8, {1}, &byte}};
  EXPECT_NE(
      error_text([&] { write_safetensors(folder / "taken", tensors); }).find("cannot replace"),
      std::string::npos);
  EXPECT_EQ(read_file(folder / "taken/inside"), "x");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  EXPECT_NE(
      error_text([&] { write_safetensors(folder / "absent/x", tensors); }).find("cannot write"),
      std::string::npos);
}

}  // namespace
}  // namespace larder
