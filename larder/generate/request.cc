#include "larder/generate/request.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {

std::vector<int32_t> with_bos(const Request& request, const ModelInfo& config) {
  if (!request.prompt_ids.empty() || !config.bos_token_id) return request.prompt_ids;
  return {static_cast<int32_t>(*config.bos_token_id)};
}

int64_t new_token_limit(const Request& request, int64_t prompt_length, const ModelInfo& config) {
  return std::min(request.max_new_tokens, config.max_position_embeddings - prompt_length + 1);
}

namespace {

void check_request(const Request& request, const Model& model, const Cache& cache, bool has_text,
                   size_t index) {
  const ModelInfo& config = model.info();
  const auto refuse = [&](auto... parts) { fail("request ", index, ": ", parts...); };
  const std::vector<int32_t> prompt = with_bos(request, config);
  const auto length = static_cast<int64_t>(prompt.size());
  validate(request.sampling);
  if (request.max_new_tokens < 0)
    refuse("max_new_tokens ", request.max_new_tokens, " must not be negative");
  if (prompt.empty()) refuse("the prompt is empty and the model has no bos_token_id to start from");
  for (const int32_t id : prompt) {
    if (id < 0 || id >= config.vocab_size) {
      refuse("prompt id ", id, " is outside the model's vocabulary 0..", config.vocab_size - 1);
    }
  }
  if (length > config.max_position_embeddings) {
    refuse("the prompt has ", length, " tokens, more than max_position_embeddings ",
           config.max_position_embeddings);
  }
  if (!request.stop_strings.empty() && !has_text) refuse("stop_strings need a tokenizer");
  const int64_t stored =
      length + std::max<int64_t>(new_token_limit(request, length, config) - 1, 0);
  if (request.max_new_tokens > 0 && cache.max_len() >= 0 && stored > cache.max_len()) {
    fail_as(ErrorKind::kNoRoom, "request ", index, ": ", length, " prompt and ",
            request.max_new_tokens, " new tokens need ", stored,
            " places in the cache, but max_cache_len is ", cache.max_len());
  }
}

}  // namespace

void check_requests(std::span<const Request> requests, Session& session, bool has_text) {
  if (requests.empty()) fail("a batch of 0 requests");
  if (const int64_t held = session.cache().seq_len(0); held > 0 || session.cache().batch() > 0) {
    fail("the cache still holds ", held, " tokens of an earlier generation; call reset() first");
  }
  for (size_t i = 0; i < requests.size(); ++i)
    check_request(requests[i], session.model(), session.cache(), has_text, i);
}

}  // namespace larder
