#ifdef LARDER_HAS_TEXT
#include "tests/support/tokenizer_conformance.h"

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/text/stream_decoder.h"
#include "larder/text/tokenizer.h"

namespace larder {
namespace {

constexpr size_t kMaxMessages = 20;

using Ids = std::vector<int32_t>;
using Texts = std::vector<std::string>;

Texts stream_pieces(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder stream(tokenizer);
  Texts pieces;
  for (const int32_t id : ids) pieces.push_back(stream.push(id));
  pieces.push_back(stream.finish());
  return pieces;
}

class Checker {
 public:
  explicit Checker(const std::filesystem::path& folder)
      : name_(folder.filename().string()),
        tokenizer_(Tokenizer::load(folder)),
        cases_(parse_json(read_file(folder / "cases.json"), (folder / "cases.json").string())) {}

  Texts run() {
    if (cases_.contains("vocab_size"))
      compare("vocab_size", cases_["vocab_size"], tokenizer_.vocab_size());
    for (const Json& item : cases_.at("cases")) {
      if (messages_.size() >= kMaxMessages) break;
      check(item);
    }
    if (messages_.size() > kMaxMessages) messages_.resize(kMaxMessages);
    return std::move(messages_);
  }

 private:
  void check(const Json& item) {
    const auto text = item.at("text").get<std::string>();
    const Ids ids = tokenizer_.encode(text, false);
    const Ids with_special = tokenizer_.encode(text, true);
    label_ = in_quotes(text);
    compare("ids", item.at("ids"), ids);
    compare("ids_with_special", item.at("ids_with_special"), with_special);
    compare("tokens", item.at("tokens"), tokenizer_.tokens(ids));
    // What follows decodes the reference's ids, so that one fault is not reported five times.
    const auto expected_ids = item.at("ids").get<Ids>();
    const auto expected_special = item.at("ids_with_special").get<Ids>();
    compare("decoded", item.at("decoded"), tokenizer_.decode(expected_special, false));
    compare("decoded_skip_special", item.at("decoded_skip_special"),
            tokenizer_.decode(expected_special, true));
    compare("stream", item.at("stream"), stream_pieces(tokenizer_, expected_ids));
  }

  void compare(std::string_view field, const Json& expected, const Json& got) {
    if (expected == got) return;
    messages_.push_back(str(name_, ", text ", label_, ": ", field, " should be ", expected.dump(),
                            " but is ", got.dump()));
  }

  std::string name_, label_ = "(none)";
  Tokenizer tokenizer_;
  Json cases_;
  Texts messages_;
};

}  // namespace

std::vector<std::string> check_tokenizer_folder(const std::filesystem::path& folder) {
  return Checker(folder).run();
}

}  // namespace larder
#endif
