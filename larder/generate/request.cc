#include "larder/generate/request.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {

std::vector<int32_t> with_bos(const Request& request, const ModelInfo& config) {
  if (!request.prompt_ids.empty() || !config.bos_token_id) return request.prompt_ids;
  return {static_cast<int32_t>(*config.bos_token_id)};
}

std::vector<int32_t> decoder_prompt(const Request& request, std::span<const int32_t> prompt,
                                    const ModelInfo& info) {
  if (!info.is_encoder_decoder) return {prompt.begin(), prompt.end()};
  std::optional<int64_t> start = info.decoder_start_token_id;
  if (request.decoder_start_token_id) start = *request.decoder_start_token_id;
  if (!start) return {};
  return {static_cast<int32_t>(*start)};
}

int64_t new_token_limit(const Request& request, int64_t prompt_length, const ModelInfo& config,
                        bool shifts) {
  if (shifts) return request.max_new_tokens;
  return std::min(request.max_new_tokens, config.max_position_embeddings - prompt_length + 1);
}

void check_request(const Request& request, Session& session, bool has_text, bool shifts,
                   std::string_view name) {
  const ModelInfo& config = session.model().info();
  const Cache& cache = session.cache();
  const auto refuse = [&](auto... parts) { fail(name, ": ", parts...); };
  const std::vector<int32_t> prompt = with_bos(request, config);
  const std::vector<int32_t> first = decoder_prompt(request, prompt, config);
  const auto length = static_cast<int64_t>(first.size());
  validate(request.sampling);
  if (request.max_new_tokens < 0)
    refuse("max_new_tokens ", request.max_new_tokens, " must not be negative");
  if (prompt.empty()) refuse("the prompt is empty and the model has no bos_token_id to start from");
  if (first.empty()) refuse("the model names no decoder_start_token_id; set it in the request");
  if (request.decoder_start_token_id && !config.is_encoder_decoder)
    refuse("decoder_start_token_id is set, but ", config.architecture, " has no encoder");
  const auto check_id = [&](const char* what, int32_t id) {
    if (id < 0 || id >= config.vocab_size)
      refuse(what, " ", id, " is outside the model's vocabulary 0..", config.vocab_size - 1);
  };
  for (const int32_t id : prompt) check_id("prompt id", id);
  if (config.is_encoder_decoder) check_id("decoder_start_token_id", first[0]);
  if (length > config.max_position_embeddings) {
    refuse("the prompt has ", length, " tokens, more than max_position_embeddings ",
           config.max_position_embeddings);
  }
  if (request.cached_tokens > 0 && config.is_encoder_decoder)
    refuse("cached_tokens: an encoder-decoder model begins with its source");
  if (request.cached_tokens < 0 || (request.cached_tokens > 0 && request.cached_tokens >= length)) {
    refuse("cached_tokens ", request.cached_tokens, " of a prompt of ", length,
           " tokens; at least one must be left to feed");
  }
  if (!request.stop_strings.empty() && !has_text) refuse("stop_strings need a tokenizer");
  const int64_t more = shifts ? 0 : new_token_limit(request, length, config) - 1;
  const int64_t stored = length + std::max<int64_t>(more, 0);
  if (request.max_new_tokens > 0 && cache.max_len() >= 0 && stored > cache.max_len()) {
    fail_as(ErrorKind::kNoRoom, name, ": ", length,
            config.is_encoder_decoder ? " start and " : " prompt and ", request.max_new_tokens,
            " new tokens need ", stored, " places in the cache, but max_cache_len is ",
            cache.max_len());
  }
}

namespace {

// The cache is empty, or holds of each row what its request says.
void check_cached(std::span<const Request> requests, Cache& cache) {
  const bool none = std::ranges::all_of(
      requests, [](const Request& request) { return request.cached_tokens == 0; });
  const bool sources = cache.num_cross() > 0 && cache.cross(0).batch() > 0;
  if (none && cache.batch() == 0 && !sources) return;
  if (none) {
    fail("the cache still holds ", cache.seq_len(0),
         " tokens of an earlier generation; call reset() first");
  }
  if (cache.batch() != static_cast<int32_t>(requests.size()))
    fail(requests.size(), " requests for a cache of ", cache.batch(), " rows");
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t held = cache.seq_len(static_cast<int32_t>(i));
    if (held != requests[i].cached_tokens) {
      fail("request ", i, ": cached_tokens is ", requests[i].cached_tokens, ", but row ", i,
           " of the cache holds ", held);
    }
  }
}

}  // namespace

void check_requests(std::span<const Request> requests, Session& session, bool has_text,
                    bool shifts) {
  if (requests.empty()) fail("a batch of 0 requests");
  check_cached(requests, session.cache());
  for (size_t i = 0; i < requests.size(); ++i)
    check_request(requests[i], session, has_text, shifts, str("request ", i));
}

}  // namespace larder
