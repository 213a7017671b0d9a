#include "tools/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "larder/base/str.h"
#include "larder/tensor/dtype.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/memory_file.h"
#include "tests/support/temp_folder.h"
#include "tools/gguf_weights.h"

namespace larder::tools {
namespace {

using test::f32_bytes;
using test::gguf_string;
using test::GgufBuilder;
using test::little_endian;
using test::TempFolder;

std::string verdict(const std::string& content) {
  const test::MemoryFile target;
  target.write(content);
  const std::string text = test::error_text([&] { GgufFile file(target.path()); });
  if (!text.empty() && text.find(target.path().string()) == std::string::npos)
    return str("THE FILE IS NOT NAMED: ", text);
  return text;
}

std::string start(uint32_t version, uint64_t tensors, uint64_t keys) {
  return str("GGUF", little_endian(version, 4), little_endian(tensors, 8), little_endian(keys, 8));
}

std::string with_key(uint32_t type, const std::string& value) {
  return str(start(3, 0, 1), gguf_string("k"), little_endian(type, 4), value);
}

std::string list_of(uint32_t type, uint64_t count) {
  return with_key(9, str(little_endian(type, 4), little_endian(count, 8)));
}

std::string with_tensor(const std::vector<uint64_t>& shape, uint32_t type, std::string_view bytes) {
  GgufBuilder b;
  b.tensor("t", shape, type, bytes);
  return b.build();
}

// One tensor entry with this offset, then `data` bytes of data.
std::string with_offset(uint64_t offset, size_t data) {
  std::string file = str(start(3, 1, 0), gguf_string("t"), little_endian(1, 4), little_endian(8, 8),
                         little_endian(0, 4), little_endian(offset, 8));
  file.resize((file.size() + 31) / 32 * 32, '\0');
  return file.append(data, '\0');
}

TEST(GgufFile, HostileFilesAreRefusedInOneLine) {
  GgufBuilder twice, two_keys;
  twice.f32("t", {1}, {1});
  twice.f32("t", {1}, {2});
  two_keys.number("k", 1);
  two_keys.text("k", "x");
  const uint64_t huge = ~uint64_t{0};
  const std::pair<std::string, const char*> cases[] = {
      {"", "the file ends within its first four bytes"},
      {"GGU", "the file ends within its first four bytes"},
      {str("GGML", std::string(40, '\0')), "does not begin with GGUF"},
      {str("GGUF", little_endian(3, 2)), "the file ends within the version"},
      {start(2, 0, 0), "GGUF version 2 is not supported"},
      {start(4, 0, 0), "GGUF version 4 is not supported"},
      {start(0x03000000, 0, 0), "big-endian"},
      {start(3, huge, 0), "18446744073709551615 tensors cannot fit"},
      {start(3, 0, huge), "18446744073709551615 metadata keys cannot fit"},
      {start(3, 1, 0), "1 tensors cannot fit in the 0 bytes"},
      {str(start(3, 0, 1), little_endian(huge, 8), std::string(8, 'x')), "a length of 1844674407"},
      {str(start(3, 0, 1), little_endian(9, 8), std::string(8, 'x')),
       "a length of 9 bytes, but only 8"},
      {with_key(13, std::string(8, '\0')), "unknown value type 13"},
      {with_key(0xFFFFFFFF, std::string(8, '\0')), "unknown value type 4294967295"},
      {with_key(8, str(little_endian(huge, 8))), "metadata \"k\" has a length of"},
      {with_key(10, "1234"), "the file ends within metadata \"k\""},
      {with_key(10, little_endian(huge, 8)), "metadata \"k\" is 18446744073709551615"},
      {with_key(7, "\x02"), "must be true or false, found the byte 2"},
      {list_of(4, huge), "18446744073709551615 values of metadata \"k\" cannot fit"},
      {list_of(8, uint64_t{1} << 61), "cannot fit"},
      {list_of(9, 1), "is a list of lists"},
      {list_of(77, 1), "unknown value type 77"},
      {two_keys.build(), "metadata \"k\" stands twice"},
      {twice.build(), "tensor \"t\" stands twice"},
      {with_tensor({1, 1, 1, 1, 1}, 0, "1234"), "5 dimensions (at most 4)"},
      {with_tensor({0}, 0, ""), "dimension 0 is out of range"},
      {with_tensor({uint64_t{1} << 63}, 0, ""), "dimension 9223372036854775808 is out of range"},
      {with_tensor({uint64_t{1} << 32, uint64_t{1} << 32}, 0, ""), "does not fit in 64 bits"},
      {with_tensor({uint64_t{1} << 62}, 0, ""), "does not fit in 64 bits"},
      {with_tensor({8}, 12, "1234"), "type Q4_K is not supported (F32, F16"},
      {with_tensor({8}, 4, "1234"), "type number 4 is not supported"},
      {with_tensor({8}, 999, "1234"), "type number 999 is not supported"},
      {with_tensor({2, 33}, 8, "1234"), "rows of 33 elements are no whole number of Q8_0 blocks"},
      {with_tensor({}, 2, "1234"), "rows of 1 elements are no whole number"},
      {with_tensor({64}, 0, std::string(128, '\0')), "256 bytes at offset 0 leave the data"},
      {with_offset(16, 64), "offset 16 is no multiple of the alignment 32"},
      {with_offset(64, 64), "32 bytes at offset 64 leave the data, which has 64"},
      {with_offset(huge - 31, 64), "leave the data"},
  };
  for (const auto& [content, expected] : cases) {
    const std::string text = verdict(content);
    EXPECT_NE(text.find(expected), std::string::npos) << expected << " | " << text;
  }
  EXPECT_EQ(verdict(with_offset(32, 64)), "");
  EXPECT_EQ(verdict(start(3, 0, 0)), "");
}

TEST(GgufFile, TensorsThatOverlapAreRefused) {
  const auto two = [](uint64_t second, size_t data) {
    std::string file = start(3, 2, 0);
    for (const auto& [name, offset] : {std::pair("a", uint64_t{0}), std::pair("b", second)}) {
      file += str(gguf_string(name), little_endian(1, 4), little_endian(16, 8), little_endian(0, 4),
                  little_endian(offset, 8));
    }
    file.resize((file.size() + 31) / 32 * 32, '\0');
    return file.append(data, '\0');
  };
  EXPECT_NE(verdict(two(0, 128)).find("\"b\": lies where tensor \"a\" lies"), std::string::npos);
  EXPECT_NE(verdict(two(32, 128)).find("\"b\" overlaps tensor \"a\""), std::string::npos);
  EXPECT_EQ(verdict(two(64, 128)), "");
}

TEST(GgufFile, AlignmentsThatMakeNoSenseAreRefused) {
  for (const uint32_t alignment : {0u, 1u, 12u, 0x80000000u}) {
    GgufBuilder b;
    b.number("general.alignment", alignment);
    EXPECT_NE(verdict(b.build()).find("general.alignment"), std::string::npos) << alignment;
  }
}

TEST(GgufFile, TruncationAnywhereIsRefusedAndNeverCrashes) {
  const std::string whole = test::tiny_llama().build();
  EXPECT_EQ(verdict(whole), "");
  for (size_t size = 0; size < whole.size(); size += size < 3000 ? 7 : 997)
    EXPECT_NE(verdict(whole.substr(0, size)), "") << size;
}

TEST(GgufFile, MutationsNeverCrashTheReader) {
  const std::string whole = test::tiny_llama().build().substr(0, 4096);
  std::mt19937 random(11);
  for (int round = 0; round < 20'000; ++round) {
    std::string file = whole;
    for (uint32_t i = 0; i <= random() % 3; ++i)
      file[random() % 2500] = static_cast<char>(random() % 3 ? random() : 0xFF);
    const std::string text = verdict(file);
    ASSERT_EQ(text.find("NOT A LARDER"), std::string::npos) << text;
    ASSERT_EQ(text.find("MORE THAN"), std::string::npos) << round;
  }
}

TEST(GgufFile, MetadataReadByTypeAndRefuseAnother) {
  GgufBuilder b;
  b.number("n", 7);
  b.real("r", 0.5f);
  b.flag("f", true);
  b.text("t", "x");
  b.raw("i8", 1, "\xff");
  b.raw("i64", 11, little_endian(~uint64_t{0}, 8));
  b.raw("f64", 12, little_endian(std::bit_cast<uint64_t>(2.5), 8));
  b.real("nan", NAN);
  b.texts("ts", {"a", ""});
  b.numbers("ns", {-1, 2});
  b.reals("rs", {0.25f});
  const TempFolder folder;
  const GgufFile file(folder.write("m.gguf", b.build()));
  EXPECT_EQ(file.integer("n"), 7);
  EXPECT_EQ(file.number("n"), 7.0);
  EXPECT_EQ(file.number("r"), 0.5);
  EXPECT_EQ(file.boolean("f"), true);
  EXPECT_EQ(file.string("t"), "x");
  EXPECT_EQ(file.integer("i8"), -1);
  EXPECT_EQ(file.integer("i64"), -1);
  EXPECT_EQ(file.number("f64"), 2.5);
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_EQ(*file.strings("ts"), (GgufStrings{"a", ""}));
  EXPECT_EQ(*file.integers("ns"), (GgufIntegers{-1, 2}));
  EXPECT_EQ(*file.numbers("rs"), GgufNumbers{0.25});
  const auto text = [&](auto read) { return test::error_text([&] { read(); }); };
  EXPECT_NE(text([&] { file.integer("t"); }).find("metadata \"t\" must be a whole number"),
            std::string::npos);
  EXPECT_NE(text([&] { file.number("nan"); }).find("not a finite number"), std::string::npos);
  EXPECT_NE(text([&] { file.strings("ns"); }).find("a list of strings"), std::string::npos);
}

GgufTensor tensor_of(GgufType type, const std::vector<int64_t>& shape, const std::string& bytes) {
  GgufTensor tensor{"t", type, shape, reinterpret_cast<const std::byte*>(bytes.data()),
                    bytes.size()};
  return tensor;
}

TEST(GgufWeights, EveryTypeGivesTheNumbersOfItsFormat) {
  const std::string half = little_endian(f32_to_f16(0.5f), 2),
                    quarter = little_endian(f32_to_f16(-0.25f), 2);
  std::string nibbles, bytes;
  for (int i = 0; i < 16; ++i) nibbles.push_back(static_cast<char>(i | ((15 - i) << 4)));
  for (int i = 0; i < 32; ++i) bytes.push_back(static_cast<char>(i * 8 - 128));
  std::vector<float> out(32);
  const auto expect = [&](GgufType type, const std::string& data, auto value) {
    dequantize_row(tensor_of(type, {32}, data), 0, out);
    for (int i = 0; i < 32; ++i)
      EXPECT_EQ(out[static_cast<size_t>(i)], value(i)) << gguf_type_name(type) << " " << i;
  };
  const auto nibble = [](int i) { return static_cast<float>(i < 16 ? i : 15 - (i - 16)); };
  expect(GgufType::kQ80, half + bytes,
         [](int i) { return 0.5f * static_cast<float>(i * 8 - 128); });
  expect(GgufType::kQ40, half + nibbles, [&](int i) { return 0.5f * (nibble(i) - 8); });
  expect(GgufType::kQ41, half + quarter + nibbles, [&](int i) { return 0.5f * nibble(i) - 0.25f; });
  std::string halves, brains;
  std::vector<float> floats;
  for (int i = 0; i < 32; ++i) {
    const float value = static_cast<float>(i) * 0.375f - 3;
    halves += little_endian(f32_to_f16(value), 2);
    brains += little_endian(f32_to_bf16(value), 2);
    floats.push_back(value);
  }
  const auto linear = [](int i) { return static_cast<float>(i) * 0.375f - 3; };
  expect(GgufType::kF16, halves, linear);
  expect(GgufType::kBF16, brains, linear);
  expect(GgufType::kF32, f32_bytes(floats), linear);
}

TEST(GgufWeights, SecondRowsAndSecondBlocksAreFound) {
  std::string data;
  for (int block = 0; block < 4; ++block)
    data += little_endian(f32_to_f16(1), 2) + std::string(32, static_cast<char>(block + 1));
  std::vector<float> out(64);
  dequantize_row(tensor_of(GgufType::kQ80, {2, 64}, data), 1, out);
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[31], 3);
  EXPECT_EQ(out[32], 4);
  EXPECT_EQ(out[63], 4);
}

TEST(GgufWeights, Bf16IsRoundedToNearestEven) {
  const std::string data = f32_bytes({1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1p-8f + 0x1p-20f, NAN});
  const auto out = to_bf16(tensor_of(GgufType::kF32, {4}, data), 0);
  EXPECT_EQ(bf16_to_f32(out[0]), 1);
  EXPECT_EQ(bf16_to_f32(out[1]), 1 + 0x1p-6f);
  EXPECT_EQ(bf16_to_f32(out[2]), 1 + 0x1p-7f);
  EXPECT_TRUE(std::isnan(bf16_to_f32(out[3])));
}

TEST(GgufWeights, RopeRowsAreUndoneInMatricesAndBiases) {
  // Two heads of 6 channels. llama.cpp wrote channel j of the first half to row 2j of its head and
  // channel j of the second half to row 2j + 1.
  std::vector<float> permuted(12 * 2), bias(12);
  for (int head = 0; head < 2; ++head) {
    for (int channel = 0; channel < 6; ++channel) {
      const int row = head * 6 + (channel < 3 ? 2 * channel : 2 * (channel - 3) + 1);
      const auto value = static_cast<float>(head * 6 + channel);
      permuted[static_cast<size_t>(row * 2)] = value;
      permuted[static_cast<size_t>(row * 2 + 1)] = -value;
      bias[static_cast<size_t>(row)] = value;
    }
  }
  const std::string matrix = f32_bytes(permuted), vector = f32_bytes(bias);
  const auto rows = to_bf16(tensor_of(GgufType::kF32, {12, 2}, matrix), 2);
  const auto column = to_bf16(tensor_of(GgufType::kF32, {12}, vector), 2);
  for (size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(bf16_to_f32(rows[2 * i]), static_cast<float>(i));
    EXPECT_EQ(bf16_to_f32(rows[2 * i + 1]), -static_cast<float>(i));
    EXPECT_EQ(bf16_to_f32(column[i]), static_cast<float>(i));
  }
}

}  // namespace
}  // namespace larder::tools
