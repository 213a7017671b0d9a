#include "larder/text/stream_decoder.h"

#include <utility>

#include "larder/base/error.h"
#include "larder/text/stages.h"
#include "larder/text/utf8.h"

namespace larder {

struct StreamDecoder::State {
  const Tokenizer::Stages& stages;
  bool skip_special_tokens;
  Decoder::Run run;
  std::string ready;  // decoded, not handed out
  bool finished = false;

  void take(int32_t id) {
    if (const auto token = stages.decoded_token(id, skip_special_tokens)) run.take(*token, ready);
  }
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, const StreamOptions& options)
    : state_(new State{*tokenizer.stages_,
                       options.skip_special_tokens,
                       tokenizer.stages_->decoder.start(),
                       {},
                       false}) {
  for (const int32_t id : options.context) state_->take(id);
  state_->ready.clear();
}

StreamDecoder::~StreamDecoder() = default;
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder& StreamDecoder::operator=(StreamDecoder&&) noexcept = default;

std::string StreamDecoder::push(int32_t id) {
  LARDER_ASSERT(!state_->finished);
  state_->take(id);
  if (state_->run.has_half_character() || state_->ready.ends_with(kReplacementChar)) return {};
  return std::exchange(state_->ready, {});
}

std::string StreamDecoder::finish() {
  LARDER_ASSERT(!state_->finished);
  state_->finished = true;
  state_->run.finish(state_->ready);
  return std::exchange(state_->ready, {});
}

}  // namespace larder
