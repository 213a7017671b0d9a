// What a caller asks for, and what is wrong with it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "larder/generate/sampling.h"
#include "larder/generate/session.h"

namespace larder {

struct Request {
  std::vector<int32_t> prompt_ids;  // of an encoder-decoder model: what the encoder reads
  int64_t max_new_tokens = 20;
  SamplingParams sampling;
  std::vector<int32_t> eos_token_ids;     // any of them ends the row and is part of its output_ids
  std::vector<std::string> stop_strings;  // needs a TokenText
  // How many of prompt_ids, from the first on, the row's cache already holds (a loaded cache file,
  // a conversation that goes on): they are not fed again. At least one id must be left to feed.
  int64_t cached_tokens = 0;
  // What the decoder of an encoder-decoder model begins with; nullopt: as the model says.
  std::optional<int32_t> decoder_start_token_id = std::nullopt;
};

// The prompt, or the model's bos_token_id in the place of an empty one, if it has one.
std::vector<int32_t> with_bos(const Request& request, const ModelInfo& info);

// What the decoder is fed first: `prompt`, or the start token of an encoder-decoder model.
std::vector<int32_t> decoder_prompt(const Request& request, std::span<const int32_t> prompt,
                                    const ModelInfo& info);

// New tokens at most; prompt_length: of what the decoder is fed first. The last one is never fed,
// so it needs no place in the context. A context that shifts sets no limit.
int64_t new_token_limit(const Request& request, int64_t prompt_length, const ModelInfo& info,
                        bool shifts = false);

// Everything that can be said of a request before it runs. Throws one Error that begins with `name`
// and names the field; `has_text` says that stop strings can be followed, `shifts` that a full
// context is no end.
void check_request(const Request& request, Session& session, bool has_text, bool shifts,
                   std::string_view name);
// The same of all requests of a batch, and that the cache holds what they say.
void check_requests(std::span<const Request> requests, Session& session, bool has_text,
                    bool shifts = false);

}  // namespace larder
