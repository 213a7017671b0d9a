// The tokenizer in a GGUF file's metadata, as Hugging Face's tokenizer.json and
// tokenizer_config.json.
#pragma once

#include <string>

#include "larder/base/json.h"
#include "tools/gguf.h"

namespace larder::tools {

// A move of nlohmann's type is noexcept, which the check does not see through its assertions.
// NOLINTNEXTLINE(bugprone-exception-escape)
struct GgufTokenizer {
  std::string tokenizer_json;  // the file's whole text
  Json tokenizer_config;
};

// Reads tokenizer.ggml.* and tokenizer.chat_template. Models: "gpt2" (byte-level BPE; pre smollm,
// gpt-2, default, llama-bpe) and "llama" (SentencePiece BPE with byte fallback: a merge ranks by
// the score of what it makes). Throws Error for another kind, a vocabulary above `vocab_size`
// tokens, a token twice, a merge of unknown tokens, or text that is not UTF-8.
GgufTokenizer read_gguf_tokenizer(const GgufFile& file, int64_t vocab_size, int64_t context_length);

}  // namespace larder::tools
