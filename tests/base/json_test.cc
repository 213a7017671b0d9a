#include "larder/base/json.h"

#include <gtest/gtest.h>

#include <limits>

#include "larder/base/error.h"
#include "tests/support/error_of.h"

namespace larder {
namespace {

std::string parse_error(std::string_view text, DuplicateKeys keys = DuplicateKeys::kLastWins) {
  return error_of([&] { parse_json(text, "file.json", keys); });
}

TEST(ParseJson, RefusesDeepNestingBeforeTheParserSeesIt) {
  EXPECT_EQ(parse_error(std::string(100'000, '[')),
            "file.json: JSON is nested deeper than 64 levels");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(parse_error(objects), "file.json: JSON is nested deeper than 64 levels");
}

TEST(ParseJson, TakesSixtyFourLevelsAndBracketsInsideStrings) {
  EXPECT_EQ(parse_error(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_EQ(parse_error("\"" + std::string(100, '[') + "\\\"" + std::string(100, '{') + "\""), "");
}

TEST(ParseJson, RefusesTheSameKeyTwiceWhenAsked) {
  EXPECT_EQ(parse_error(R"({"a": 1, "a": 2})"), "");
  EXPECT_EQ(parse_error(R"({"a": 1, "a": 2})", DuplicateKeys::kRefuse),
            "file.json: the key \"a\" stands twice in one object");
  EXPECT_NE(parse_error(R"({"o": {"x": 1, "x": 1}})", DuplicateKeys::kRefuse), "");
  EXPECT_EQ(parse_error(R"({"a": {"b": 1}, "b": {"a": 1}})", DuplicateKeys::kRefuse), "")
      << "one key in two objects is fine";
}

TEST(ParseJson, RefusesWhatIsNotJsonInOneLine) {
  for (const std::string_view text :
       {"", "{", "{\"a\": }", "[1,]", "nul", "{} x", "\"\xFF\"", "{\"\xC3\": 1}", "[1e999]",
        "{\"a\": \"line\nbreak\"}", "NaN", "\xEF\xBB\xBF"}) {
    const std::string error = parse_error(text);
    EXPECT_TRUE(error.starts_with("file.json: not valid JSON: ")) << text << ": " << error;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
}

TEST(ParseJson, KeepsTheOrderOfKeys) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": 2})", "f").dump(), R"({"b":1,"a":2})");
}

TEST(JsonFields, WholeNumbersMayBeWrittenAsFloats) {
  const Json json = parse_json(R"({"a": 10000, "b": 10000.0, "c": 1e4, "d": -3, "e": 0.5,
      "f": 9223372036854775807, "g": 9223372036854775808, "h": 1e300, "i": "7"})",
                               "f");
  const JsonFields fields(json, "f");
  EXPECT_EQ(fields.integer("a"), 10000);
  EXPECT_EQ(fields.integer("b"), 10000);
  EXPECT_EQ(fields.integer("c"), 10000);
  EXPECT_EQ(fields.integer("d"), -3);
  EXPECT_EQ(fields.integer("f"), std::numeric_limits<int64_t>::max());
  for (const char* key : {"e", "g", "h", "i"}) EXPECT_THROW(fields.integer(key), Error) << key;
  EXPECT_EQ(error_of([&] { fields.integer("e"); }), "f: e must be a whole number, found 0.5");
}

TEST(JsonFields, AbsentAndNullAreToldApart) {
  const Json json = parse_json(R"({"null": null, "zero": 0})", "f");
  const JsonFields fields(json, "f");
  EXPECT_TRUE(fields.has("null"));
  EXPECT_TRUE(fields.is_null("null"));
  EXPECT_FALSE(fields.has("absent"));
  EXPECT_FALSE(fields.is_null("absent"));
  EXPECT_FALSE(fields.is_null("zero"));
  EXPECT_EQ(fields.integer("null"), std::nullopt);
  EXPECT_EQ(fields.string("absent"), std::nullopt);
  EXPECT_EQ(fields.object("null"), nullptr);
}

TEST(JsonFields, AWrongTypeIsNamedWithWhatWasFound) {
  const Json json = parse_json(
      R"({"n": 1, "s": "x", "b": true, "l": [1, 2], "o": {}, "m": [1, "x"], "t": ["x", "y"]})",
      "f");
  const JsonFields fields(json, "f");
  EXPECT_EQ(error_of([&] { fields.number("s"); }), "f: s must be a number, found \"x\"");
  EXPECT_EQ(error_of([&] { fields.number("b"); }), "f: b must be a number, found true");
  EXPECT_EQ(error_of([&] { fields.boolean("n"); }), "f: n must be true or false, found 1");
  EXPECT_EQ(error_of([&] { fields.string("l"); }), "f: l must be a string, found a list");
  EXPECT_EQ(error_of([&] { fields.object("l"); }), "f: l must be an object, found a list");
  EXPECT_EQ(error_of([&] { fields.integers("o"); }),
            "f: o must be a whole number or a list of them, found an object");
  EXPECT_THROW(fields.integers("m"), Error);
  EXPECT_THROW(fields.strings("m"), Error);
  EXPECT_THROW(fields.strings("s"), Error);
  EXPECT_EQ(fields.integers("n"), (std::vector<int64_t>{1}));
  EXPECT_EQ(fields.integers("l"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(fields.strings("t"), (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(fields.number("n"), 1.0);
}

TEST(JsonFields, RefusesWhatIsNotAnObject) {
  const Json json = parse_json("[1]", "f");
  EXPECT_EQ(error_of([&] { JsonFields(json, "f"); }), "f: expected a JSON object, found a list");
}

TEST(Json, RefusesAnObjectOfEndlessKeys) {
  std::string text = "{";
  for (int i = 0; i < 60'000; ++i) text += str(i == 0 ? "" : ",", "\"k", i, "\":", i);
  const std::string error = error_of([&] { parse_json(text + "}", "big.json"); });
  EXPECT_NE(error.find("more than 50000 keys"), std::string::npos) << error;
  EXPECT_NE(error_of([] { parse_json("]]]]{}", "odd.json"); }), "");
}

}  // namespace
}  // namespace larder
