#include "larder/tensor/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>

#include "tests/support/safetensors_bytes.h"
#include "tests/support/temp_folder.h"

namespace larder {
namespace {

using test::braces;
using test::container;
using test::entry;
using test::error_text;
using test::little_endian;
using test::TempFolder;
using test::zeros;

// What the reader says of a file with this content; "" when it accepts it.
std::string verdict(const std::string& content) {
  const TempFolder folder;
  const auto path = folder.write("weights.safetensors", content);
  const std::string text = error_text([&] { SafetensorsFile file(path); });
  if (!text.empty() && text.find(path.string()) == std::string::npos)
    return str("THE FILE IS NOT NAMED: ", text);
  return text;
}

struct Malformed {
  const char* why;
  std::string content;
  const char* expected;  // part of the line
};

void expect_refused(const std::vector<Malformed>& list) {
  for (const Malformed& item : list) {
    const std::string text = verdict(item.content);
    EXPECT_NE(text.find(item.expected), std::string::npos) << item.why << ": \"" << text << "\"";
  }
}

TEST(Case32, FilesThatAreNoContainerAreRefused) {
  expect_refused({
      {"empty file", "", "0 bytes are too few"},
      {"7 bytes", zeros(7), "7 bytes are too few"},
      {"no header", zeros(8), "does not begin with {"},
      {"header longer than the file", little_endian(3, 8) + "{}",
       "a header of 3 bytes, but only 2"},
      {"header of 2^64-1", little_endian(~uint64_t{0}, 8) + "{}", "18446744073709551615"},
      {"header of 2^63", little_endian(uint64_t{1} << 63, 8) + "{}", "above the limit"},
      {"header above the limit", little_endian(100'000'001, 8) + "{}", "above the limit"},
      {"header at the limit, not there", little_endian(100'000'000, 8) + "{}", "but only 2"},
      {"not UTF-8", container("{\"\xff\":1}"), "not valid JSON in UTF-8"},
      {"overlong UTF-8", container("{\"\xc0\x80\":1}"), "not valid JSON in UTF-8"},
      {"half a surrogate", container("{\"\\ud800\":1}"), "not valid JSON in UTF-8"},
      {"an array", container("[]"), "does not begin with {"},
      {"space first", container(" {}"), "does not begin with {"},
      {"byte order mark", container("\xef\xbb\xbf{}"), "does not begin with {"},
      {"NUL bytes after the JSON", container(str("{}", zeros(2))), "zero byte (at its byte 3)"},
      {"text after the JSON", container("{} x"), "not valid JSON"},
      {"cut JSON", container("{\"a\":"), "not valid JSON"},
      {"comment", container("{/**/}"), "not valid JSON"},
      {"one extra byte", container("{}", zeros(1)), "cover 0 bytes of data, but the file holds 1"},
  });
}

TEST(Case32, NestingAHundredThousandDeepIsRefused) {
  std::string deep = "{\"a\":{\"x\":";
  deep.append(100'000, '[').append(100'000, ']').append("}}");
  EXPECT_NE(verdict(container(deep)).find("nested deeper than 64"), std::string::npos);
  std::string objects = "{\"a\":{\"x\":";
  for (int i = 0; i < 100'000; ++i) objects += "{\"y\":";
  EXPECT_NE(verdict(container(objects)).find("nested deeper than 64"), std::string::npos);
}

TEST(Case32, MetadataMustBeStrings) {
  expect_refused({
      {"number", container(R"({"__metadata__":{"k":1}})"), "__metadata__ \"k\" must be a string"},
      {"null", container(R"({"__metadata__":{"k":null}})"), "must be a string, found null"},
      {"list", container(R"({"__metadata__":{"k":[]}})"), "must be a string, found a list"},
      {"object", container(R"({"__metadata__":{"k":{}}})"), "must be a string, found an object"},
      {"not an object", container(R"({"__metadata__":"k"})"), "__metadata__ must be an object"},
      {"a list", container(R"({"__metadata__":["k"]})"), "__metadata__ must be an object"},
      {"twice", container(R"({"__metadata__":{},"__metadata__":{}})"), "stands twice"},
      {"a key twice", container(R"({"__metadata__":{"k":"a","k":"b"}})"), "\"k\" twice"},
  });
}

TEST(Case32, EntriesOfWrongFormAreRefused) {
  const std::string four = zeros(4);
  expect_refused({
      {"no object", container(R"({"w":4})", four), "tensor \"w\" must be an object, found 4"},
      {"a list", container(R"({"w":[1]})", four), "tensor \"w\" must be an object, found a list"},
      {"missing dtype", container(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", four),
       "tensor \"w\": dtype is missing"},
      {"missing shape", container(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", four),
       "tensor \"w\": shape is missing"},
      {"missing offsets", container(R"({"w":{"dtype":"F32","shape":[1]}})", four),
       "tensor \"w\": data_offsets is missing"},
      {"unknown dtype", container(braces(entry("w", "F33", "[1]", "[0,4]")), four),
       "tensor \"w\": unknown dtype \"F33\""},
      {"dtype null", container(R"({"w":{"dtype":null,"shape":[1],"data_offsets":[0,4]}})", four),
       "dtype must be a string, found null"},
      {"dtype number", container(R"({"w":{"dtype":32,"shape":[1],"data_offsets":[0,4]}})", four),
       "dtype must be a string, found 32"},
      {"dtype object", container(R"({"w":{"dtype":{},"shape":[1],"data_offsets":[0,4]}})", four),
       "dtype must be a string, found an object"},
      {"dtype twice",
       container(R"({"w":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four),
       "tensor \"w\": dtype stands twice"},
      {"three offsets", container(braces(entry("w", "F32", "[1]", "[0,4,4]")), four),
       "data_offsets has 3 numbers"},
      {"one offset", container(braces(entry("w", "F32", "[1]", "[0]")), four),
       "data_offsets has 1 numbers"},
      {"offset 0.0", container(braces(entry("w", "F32", "[1]", "[0.0,4]")), four),
       "data_offsets must be a list of whole numbers from 0, found 0.0"},
      {"offset 4e0", container(braces(entry("w", "F32", "[1]", "[0,4e0]")), four), "found 4e0"},
      {"offset string", container(braces(entry("w", "F32", "[1]", "[0,\"4\"]")), four),
       "found \"4\""},
      {"offset nested", container(braces(entry("w", "F32", "[1]", "[[0],4]")), four),
       "found a list"},
      {"negative offset", container(braces(entry("w", "F32", "[1]", "[-4,4]")), four), "found -4"},
      {"offsets no list", container(braces(entry("w", "F32", "[1]", "4")), four),
       "data_offsets must be a list"},
      {"negative dimension", container(braces(entry("w", "F32", "[-1]", "[0,4]")), four),
       "shape must be a list of whole numbers from 0, found -1"},
      {"two negative dimensions", container(braces(entry("w", "F32", "[-1,-1]", "[0,4]")), four),
       "found -1"},
      {"dimension 1.0", container(braces(entry("w", "F32", "[1.0]", "[0,4]")), four), "found 1.0"},
      {"dimension true", container(braces(entry("w", "F32", "[true]", "[0,4]")), four),
       "found true"},
      {"dimension past 64 bits",
       container(braces(entry("w", "F32", "[18446744073709551616]", "[0,4]")), four),
       "found 18446744073709551616"},
      {"shape object", container(R"({"w":{"dtype":"F32","shape":{},"data_offsets":[0,4]}})", four),
       "shape must be a list"},
  });
}

TEST(Case32, RangesThatDoNotFitTheDataAreRefused) {
  const std::string eight = zeros(8);
  const std::string a = entry("a", "F32", "[2]", "[0,8]");
  expect_refused({
      {"backwards", container(braces(entry("w", "F32", "[1]", "[4,0]")), eight),
       "tensor \"w\": data_offsets [4, 0] run backwards"},
      {"outside", container(braces(entry("w", "F32", "[1]", "[8,12]")), eight),
       "tensor \"w\": data_offsets [8, 12] leave the data"},
      {"far outside",
       container(braces(entry("w", "U8", "[4]", "[18446744073709551611,18446744073709551615]")),
                 eight),
       "leave the data"},
      {"7 of 8 bytes", container(braces(a), zeros(7)), "leave the data, which has 7 bytes"},
      {"12 of 8 bytes", container(braces(a), zeros(12)), "cover 8 bytes of data, but the file"},
      {"hole before", container(braces(entry("w", "F32", "[1]", "[4,8]")), eight),
       "tensor \"w\" begins at data byte 4, leaving a hole after byte 0"},
      {"hole between",
       container(braces(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[2]", "[6,8]")),
                 eight),
       "tensor \"b\" begins at data byte 6, leaving a hole after byte 2"},
      {"overlap", container(braces(a + "," + entry("b", "F32", "[1]", "[4,8]")), eight),
       "tensor \"b\" begins at data byte 4, overlapping what ends at byte 8"},
      {"the same range", container(braces(a + "," + entry("b", "F32", "[2]", "[0,8]")), eight),
       "overlapping"},
      {"the same name and range", container(braces(a + "," + a), eight),
       "the name \"a\" stands twice"},
      {"the same name, two ranges",
       container(braces(entry("a", "U8", "[4]", "[0,4]") + "," + entry("a", "U8", "[4]", "[4,8]")),
                 eight),
       "the name \"a\" stands twice"},
      {"the same name, one escaped",
       container(braces(a + "," + entry("\\u0061", "F32", "[2]", "[0,8]")), eight),
       "the name \"a\" stands twice"},
      {"empty inside another", container(braces(a + "," + entry("z", "U8", "[0]", "[4,4]")), eight),
       "overlapping"},
      {"shape too small", container(braces(entry("w", "F32", "[1]", "[0,8]")), eight),
       "dtype F32 and shape [1] need 4 bytes, but data_offsets [0, 8] span 8"},
      {"shape too large", container(braces(entry("w", "F64", "[2]", "[0,8]")), eight),
       "need 16 bytes"},
      {"zero dimension with bytes", container(braces(entry("w", "F32", "[0]", "[0,8]")), eight),
       "need 0 bytes"},
  });
}

TEST(Case32, ShapesWhoseProductOverflowsAreRefused) {
  for (const char* shape :
       {"[4294967296,4294967296]", "[9223372036854775808,2]", "[1099511627776,1099511627776,0]",
        "[0,1099511627776,1099511627776]", "[18446744073709551615,18446744073709551615]",
        "[9223372036854775807,4]", "[2305843009213693952]"}) {
    const std::string text = verdict(container(braces(entry("w", "F32", shape, "[0,0]"))));
    EXPECT_NE(text.find("does not fit in 64 bits"), std::string::npos) << shape << ": " << text;
  }
}

TEST(Case32, AcceptsWhatTheFormatAllows) {
  const std::string b = entry("b", "F32", "[1]", "[4,8]"), a = entry("a", "F32", "[1]", "[0,4]");
  EXPECT_EQ(verdict(container("{}")), "");
  EXPECT_EQ(verdict(container(R"({"__metadata__":{"format":"pt"}})")), "");
  EXPECT_EQ(verdict(container("{}      ")), "");
  EXPECT_EQ(verdict(container(braces(b + "," + a), zeros(8))), "");
  EXPECT_EQ(verdict(container(braces(entry("s", "F32", "[]", "[0,4]")), zeros(4))), "");
  EXPECT_EQ(verdict(container(braces(entry("z", "F32", "[0]", "[0,0]")))), "");
  EXPECT_EQ(verdict(container(braces(entry("z", "F32", "[3,0]", "[8,8]") + "," + b + "," + a + "," +
                                     entry("y", "U8", "[0]", "[0,0]")),
                              zeros(8))),
            "");
  EXPECT_EQ(
      verdict(container(R"({"w":{"x":[{"y":1.5}],"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                        zeros(1))),
      "")
      << "fields that the format does not know are skipped";
}

TEST(Case32, NamesAreAnyUtf8) {
  const TempFolder folder;
  const auto path = folder.write(
      "n.safetensors", container(braces(entry("", "U8", "[1]", "[0,1]") + "," +
                                        entry("\\u00e9\\ud83d\\ude00", "U8", "[1]", "[1,2]") + "," +
                                        entry("\xc3\xbc\xf0\x9f\x98\x80", "U8", "[1]", "[2,3]") +
                                        "," + entry("a\\u0000b\\n", "U8", "[1]", "[3,4]")),
                                 "\1\2\3\4"));
  const SafetensorsFile file(path);
  const auto first_byte = [&](std::string_view name) {
    const StoredTensor* tensor = file.find(name);
    return tensor ? static_cast<int>(*tensor->data) : -1;
  };
  EXPECT_EQ(first_byte(""), 1);
  EXPECT_EQ(first_byte("\xc3\xa9\xf0\x9f\x98\x80"), 2);
  EXPECT_EQ(first_byte("\xc3\xbc\xf0\x9f\x98\x80"), 3);
  EXPECT_EQ(first_byte(std::string_view("a\0b\n", 4)), 4);
  EXPECT_EQ(first_byte("absent"), -1);
}

TEST(Case32, DataAtAnOddAddressReadsRight) {
  const TempFolder folder;
  const std::array<float, 3> values = {1.5f, -2.25f, 1e-30f};
  std::string data(sizeof values, '\0');
  std::memcpy(data.data(), values.data(), sizeof values);
  std::string header = braces(entry("w", "F32", "[3]", "[0,12]"));
  while ((8 + header.size()) % 4 != 1) header += ' ';
  const SafetensorsFile file(folder.write("odd.safetensors", container(header, data)));
  const StoredTensor* tensor = file.find("w");
  ASSERT_NE(tensor, nullptr);
  ASSERT_NE(reinterpret_cast<uintptr_t>(tensor->data) % 4, 0u);
  HostAllocator host;
  const Tensor copy = clone(host, tensor->view(), DType::kF32, "test");
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(copy.as<float>()[i], values[i]);
}

TEST(Case33, EveryTypeReadsExactlyFromOddOffsets) {
  // Entries follow one another from data byte 0, the first one byte long, so all later ones of
  // more than a byte begin at odd offsets.
  struct Item {
    const char* dtype;
    std::string bytes;
    double expected;  // of the one element; NaN matches NaN
  };
  const auto bits64 = [](double v) { return little_endian(std::bit_cast<uint64_t>(v), 8); };
  const auto bits32 = [](float v) { return little_endian(std::bit_cast<uint32_t>(v), 4); };
  const double inf = INFINITY, nan = NAN;
  const std::vector<Item> items = {
      {"U8", "\xff", 255},
      {"F16", little_endian(0x0001, 2), 5.9604644775390625e-08},
      {"F16", little_endian(0x8000, 2), -0.0},
      {"F16", little_endian(0x7C00, 2), inf},
      {"F16", little_endian(0xFC00, 2), -inf},
      {"F16", little_endian(0x7E01, 2), nan},
      {"F16", little_endian(0x3555, 2), 0.333251953125},
      {"BF16", little_endian(0x3F80, 2), 1.0},
      {"BF16", little_endian(0x0001, 2), std::ldexp(1.0, -133)},
      {"BF16", little_endian(0xFF80, 2), -inf},
      {"F32", bits32(-1.1f), static_cast<double>(-1.1f)},
      {"F64", bits64(3.141592653589793), 3.141592653589793},
      {"I64", little_endian(static_cast<uint64_t>(int64_t{-9007199254740991}), 8),
       -9007199254740991.0},
      {"I32", little_endian(0x80000000u, 4), -2147483648.0},
      {"BOOL", "\1", 1},
      {"F8_E4M3", "\x7f", nan},
      {"F8_E4M3", "\x7e", 448},
      {"F8_E4M3", "\x01", std::ldexp(1.0, -9)},
      {"F8_E5M2", "\x7c", inf},
      {"F8_E5M2", "\x7b", 57344},
      {"F8_E5M2", "\x01", std::ldexp(1.0, -16)},
  };
  std::string header = "{", data;
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t end = data.size() + items[i].bytes.size();
    header += str(i ? "," : "",
                  entry(str("t", i), items[i].dtype, "[1]", str("[", data.size(), ",", end, "]")));
    data += items[i].bytes;
  }
  header += "}";
  while ((8 + header.size()) % 8 != 0) header += ' ';
  const TempFolder folder;
  const SafetensorsFile file(folder.write("types.safetensors", container(header, data)));
  HostAllocator host;
  for (size_t i = 0; i < items.size(); ++i) {
    const StoredTensor* tensor = file.find(str("t", i));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(safetensors_dtype_name(tensor->dtype), items[i].dtype);
    const double got = clone(host, tensor->view(), DType::kF64, "test").as<double>()[0];
    if (std::isnan(items[i].expected)) {
      EXPECT_TRUE(std::isnan(got)) << items[i].dtype;
    } else {
      EXPECT_EQ(got, items[i].expected) << items[i].dtype;
      EXPECT_EQ(std::signbit(got), std::signbit(items[i].expected)) << items[i].dtype;
    }
  }
}

TEST(Case33, TypesOfTheSameSizeThatAreNotKnownAreRefusedByName) {
  for (const char* dtype : {"F8_E8M0", "F4", "F6_E2M3", "C64", "f32", "", "BF16 "}) {
    const std::string text =
        verdict(container(braces(entry("w", dtype, "[1]", "[0,1]")), zeros(1)));
    EXPECT_NE(text.find(str("tensor \"w\": unknown dtype \"", dtype, "\"")), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace larder
