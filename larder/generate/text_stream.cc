#include "larder/generate/text_stream.h"

#include "larder/text/stream_decoder.h"

namespace larder {
namespace {

class TokenizerText final : public TokenText {
 public:
  TokenizerText(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids)
      : decoder_(tokenizer, {.skip_special_tokens = true, .context = prompt_ids}) {}
  std::string push(int32_t id) override { return decoder_.push(id); }
  std::string finish() override { return decoder_.finish(); }

 private:
  StreamDecoder decoder_;
};

}  // namespace

MakeTokenText stream_text(const Tokenizer& tokenizer) {
  return [&tokenizer](std::span<const int32_t> prompt_ids) {
    return std::make_unique<TokenizerText>(tokenizer, prompt_ids);
  };
}

}  // namespace larder
