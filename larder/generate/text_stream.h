// The tokenizer as a generation's source of text.
#pragma once

#include "larder/generate/generation.h"
#include "larder/text/tokenizer.h"

namespace larder {

// Text as a reader wants it: special tokens skipped, a space between prompt and output kept, never
// half a character. The tokenizer must outlive what is made.
MakeTokenText stream_text(const Tokenizer& tokenizer);

}  // namespace larder
