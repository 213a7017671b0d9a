// Files that cannot be right: each is one Error of one line that names the fault.
#include <gtest/gtest.h>

#include <functional>

#include "larder/base/error.h"
#include "tests/text/test_tokenizers.h"

namespace larder {
namespace {

void expect_refused(const std::string& text, std::string_view fault) {
  try {
    Tokenizer::from_json(text, "dir/tokenizer.json");
    ADD_FAILURE() << "accepted; should complain of " << fault;
  } catch (const Error& e) {
    const std::string_view message = e.what();
    EXPECT_TRUE(message.starts_with("dir/tokenizer.json")) << message;
    EXPECT_NE(message.find(fault), std::string_view::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string_view::npos) << message;
  }
}

struct Fault {
  const char* name;
  std::function<void(Json&)> make;
  const char* said;
};

const Fault kFaults[] = {
    {"merge of unknown tokens", [](Json& j) { j["model"]["merges"][0] = "a zz"; }, "\"zz\""},
    {"merge without result", [](Json& j) { j["model"]["merges"][0] = "c a"; }, "\"ca\""},
    {"merge of one token", [](Json& j) { j["model"]["merges"][1] = "ab"; }, "merges[1]"},
    {"merge of three", [](Json& j) { j["model"]["merges"][1] = "a b c"; }, "merges[1]"},
    {"merge that is a number", [](Json& j) { j["model"]["merges"][1] = 7; }, "merges[1]"},
    {"merge pair of three",
     [](Json& j) {
       j["model"]["merges"][1] = Json::array({"a", "b", "c"});
     },
     "merges[1]"},
    {"merge pair of one", [](Json& j) { j["model"]["merges"][1] = Json::array({"a"}); },
     "merges[1]"},
    {"merge pair with a list",
     [](Json& j) {
       j["model"]["merges"][1] = Json::array({"a", Json::array()});
     },
     "merges[1]"},
    {"negative id", [](Json& j) { j["model"]["vocab"]["a"] = -1; }, "-1"},
    {"id past 32 bits", [](Json& j) { j["model"]["vocab"]["a"] = 4294967296; }, "4294967296"},
    {"id past 64 bits", [](Json& j) { j["model"]["vocab"]["a"] = UINT64_MAX; }, "\"a\""},
    {"id that is a fraction", [](Json& j) { j["model"]["vocab"]["a"] = 1.5; }, "1.5"},
    {"id that is a string", [](Json& j) { j["model"]["vocab"]["a"] = "1"; }, "\"a\""},
    {"id that is null", [](Json& j) { j["model"]["vocab"]["a"] = nullptr; }, "\"a\""},
    {"id that is an object", [](Json& j) { j["model"]["vocab"]["a"] = Json::object(); }, "\"a\""},
    {"duplicated id", [](Json& j) { j["model"]["vocab"]["a"] = 261; }, "261 stands twice"},
    {"added id of another token", [](Json& j) { j["added_tokens"][0]["id"] = 260; }, "260"},
    {"added token with another id", [](Json& j) { j["added_tokens"][0]["content"] = "ab"; },
     "\"ab\""},
    {"added token twice", [](Json& j) { j["added_tokens"].push_back(added_token("<m>", 400)); },
     "two ids"},
    {"two added tokens with one id",
     [](Json& j) { j["added_tokens"].push_back(added_token("<n>", 268)); }, "268 stands twice"},
    {"added token without id", [](Json& j) { j["added_tokens"][0].erase("id"); }, "\"id\""},
    {"added token without content", [](Json& j) { j["added_tokens"][0].erase("content"); },
     "\"content\""},
    {"added flag that is a number", [](Json& j) { j["added_tokens"][0]["lstrip"] = 1; }, "lstrip"},
    {"added tokens that are an object", [](Json& j) { j["added_tokens"] = Json::object(); },
     "added_tokens"},
    {"no model", [](Json& j) { j.erase("model"); }, "\"model\""},
    {"model that is a list", [](Json& j) { j["model"] = Json::array(); }, "model"},
    {"no vocabulary", [](Json& j) { j["model"].erase("vocab"); }, "\"vocab\""},
    {"no merges", [](Json& j) { j["model"].erase("merges"); }, "\"merges\""},
    {"merges that are a string", [](Json& j) { j["model"]["merges"] = "a b"; }, "merges"},
    {"vocabulary that is a list", [](Json& j) { j["model"]["vocab"] = Json::array(); }, "vocab"},
    {"unknown unk_token", [](Json& j) { j["model"]["unk_token"] = "<none>"; }, "<none>"},
    {"flag of the model as string", [](Json& j) { j["model"]["byte_fallback"] = "yes"; },
     "byte_fallback"},
    {"dropout", [](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout"},
    {"Unigram", [](Json& j) { j["model"]["type"] = "Unigram"; }, "\"Unigram\""},
    {"WordPiece", [](Json& j) { j["model"]["type"] = "WordPiece"; }, "\"WordPiece\""},
    {"Precompiled",
     [](Json& j) {
       j["normalizer"] = {{"type", "Precompiled"}};
     },
     "\"Precompiled\""},
    {"normalizer without type", [](Json& j) { j["normalizer"] = Json::object(); }, "\"type\""},
    {"normalizer that is a string", [](Json& j) { j["normalizer"] = "NFC"; }, "normalizer"},
    {"sequence without a list",
     [](Json& j) {
       j["normalizer"] = {{"type", "Sequence"}};
     },
     "\"normalizers\""},
    {"split without pattern",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Removed"}};
     },
     "\"pattern\""},
    {"split of unknown behaviour",
     [](Json& j) {
       j["pre_tokenizer"] = {
           {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "Gone"}};
     },
     "Gone"},
    {"expression that does not compile",
     [](Json& j) {
       j["pre_tokenizer"] = {
           {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Removed"}};
     },
     "(a"},
    {"replacement of two characters",
     [](Json& j) {
       j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "ab"}};
     },
     "replacement"},
    {"template with an unknown token",
     [](Json& j) {
       const Json bos = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}};
       const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
       j["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", Json::array({bos, text})},
                              {"special_tokens", Json::object()}};
     },
     "<bos>"},
    {"template without the text",
     [](Json& j) {
       j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", Json::array()}};
     },
     "sequence A"},
    {"unknown decoder",
     [](Json& j) {
       j["decoder"] = {{"type", "CTC"}};
     },
     "\"CTC\""},
    {"strip without start",
     [](Json& j) {
       j["decoder"] = {{"type", "Strip"}, {"content", " "}};
     },
     "\"start\""},
};

TEST(MalformedTokenizer, EachFaultIsOneClearLine) {
  for (const Fault& fault : kFaults) {
    SCOPED_TRACE(fault.name);
    Json json = case39_json();
    fault.make(json);
    expect_refused(json.dump(), fault.said);
  }
}

TEST(MalformedTokenizer, TextThatIsNoJson) {
  const std::string whole = case39_json().dump();
  expect_refused("", "not valid JSON");
  expect_refused("null", "expected a JSON object");
  expect_refused("[1]", "expected a JSON object");
  expect_refused("{\"model\": \xFF}", "not valid JSON");
  expect_refused(whole + "}", "not valid JSON");
  for (size_t cut = 1; cut < whole.size(); cut += 97)
    expect_refused(whole.substr(0, cut), "not valid JSON");
}

TEST(MalformedTokenizer, DeepNesting) {
  expect_refused("{\"a\":" + std::string(100'000, '['), "nested deeper");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  expect_refused(objects, "nested deeper");
}

TEST(MalformedTokenizer, AHugeObjectElsewhereIsRefusedBeforeItIsSlow) {
  std::string text = "{\"other\":{";
  for (int i = 0; i < 20'000; ++i) text += str(i ? "," : "", "\"k", i, "\":0");
  expect_refused(text + "}}", "keys");
}

TEST(MalformedTokenizer, AMissingFileIsNamed) {
  try {
    Tokenizer::load("no/such/tokenizer.json");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kIo);
    EXPECT_NE(std::string_view(e.what()).find("no/such/tokenizer.json"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace larder
