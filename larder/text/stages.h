// What a loaded tokenizer is made of. Internal to larder/text.
#pragma once

#include <memory>
#include <optional>

#include "larder/text/added_tokens.h"
#include "larder/text/bpe.h"
#include "larder/text/decoder.h"
#include "larder/text/normalizer.h"
#include "larder/text/post_processor.h"
#include "larder/text/pre_tokenizer.h"
#include "larder/text/tokenizer.h"

namespace larder {

struct Tokenizer::Stages {
  std::unique_ptr<const Normalizer> normalizer;       // may be null
  std::unique_ptr<const PreTokenizer> pre_tokenizer;  // may be null
  Bpe model;
  AddedTokens added;
  PostProcessor post_processor;
  Decoder decoder;

  std::optional<std::string_view> token(int32_t id) const {
    const auto token = added.token(id);
    return token ? token : model.vocabulary().token(id);
  }
  // The token that a decode sees: none for unknown ids, and for special ones that are skipped.
  std::optional<std::string_view> decoded_token(int32_t id, bool skip_special_tokens) const {
    if (skip_special_tokens && added.is_special(id)) return std::nullopt;
    return token(id);
  }
};

}  // namespace larder
