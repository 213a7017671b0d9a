#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/speculation.h"

namespace larder {
namespace {

// Where what follows the last `n` ids follows them already, or ids.size() if nowhere. The latest
// place with `want` ids behind it; of places with fewer the earliest, which has most.
size_t find_continuation(std::span<const int32_t> ids, size_t n, size_t want) {
  const auto recent = ids.last(n);
  const auto matches = [&](size_t at) {
    return std::equal(recent.begin(), recent.end(), ids.begin() + static_cast<ptrdiff_t>(at));
  };
  const size_t starts = ids.size() - n;  // a match at `starts` is the end itself
  const size_t whole = starts >= want ? starts - want + 1 : 0;
  for (size_t at = whole; at-- > 0;)
    if (matches(at)) return at + n;
  for (size_t at = whole; at < starts; ++at)
    if (matches(at)) return at + n;
  return ids.size();
}

}  // namespace

PromptLookup::PromptLookup(const PromptLookupParams& params) : params_(params) {
  if (params.prompt_lookup_num_tokens < 1)
    fail("prompt_lookup_num_tokens is ", params.prompt_lookup_num_tokens, ", must be 1 or above");
  if (params.max_matching_ngram_size < 1)
    fail("max_matching_ngram_size is ", params.max_matching_ngram_size, ", must be 1 or above");
}

void PromptLookup::propose(std::span<Draft> drafts) {
  for (Draft& draft : drafts) {
    const auto want = static_cast<size_t>(std::min(draft.most, params_.prompt_lookup_num_tokens));
    if (want == 0 || draft.ids.empty()) continue;
    const size_t longest =
        std::min(static_cast<size_t>(params_.max_matching_ngram_size), draft.ids.size() - 1);
    for (size_t n = longest; n > 0 && draft.tokens.empty(); --n) {
      const size_t at = find_continuation(draft.ids, n, want);
      const auto found = draft.ids.subspan(at, std::min(want, draft.ids.size() - at));
      draft.tokens.assign(found.begin(), found.end());
    }
  }
}

}  // namespace larder
