#include "larder/generate/cache_ladder.h"

#include <algorithm>
#include <span>
#include <utility>

#include "larder/base/error.h"
#include "larder/cache/convert.h"

namespace larder {
namespace {

constexpr const char* kTag = "headroom";

// A conversion holds a copy of one layer's rows and the new layer beside the whole cache, of which
// they are two layers at most, and as much as half of that again where rows are short and blocks
// round up: H = 3 (B - H) / layers. Layers with a window are small beside those without.
size_t headroom_for(size_t free_bytes, std::span<const LayerSpec> specs) {
  const auto full = static_cast<size_t>(
      std::ranges::count_if(specs, [](const LayerSpec& spec) { return spec.window == 0; }));
  return free_bytes / ((full > 0 ? full : specs.size()) + 3) * 3;
}

std::vector<LayerSpec> attention_specs(const Session& session) {
  std::vector<LayerSpec> specs = session.model().cache_layers();
  std::erase_if(specs, [](const LayerSpec& spec) { return spec.kind != LayerKind::kAttention; });
  return specs;
}

std::string name(const CacheRung& rung) {
  return rung.config.empty() ? rung.kind : rung.kind + " " + rung.config;
}

}  // namespace

std::vector<CacheRung> default_rungs() {
  return {
      {"quantized", R"({"backend": "larder", "nbits": 8})"},
      {"quantized", R"({"backend": "larder", "nbits": 4})"},
      {"offloaded", R"({"cache": "quantized", "cache_config": {"backend": "larder", "nbits": 4}})"},
      {"offloaded", ""}};
}

CacheLadder::CacheLadder(Session& session, Options options, const CacheRegistry& registry)
    : session_(session), options_(std::move(options)), registry_(registry) {
  const std::vector<LayerSpec> specs = attention_specs(session_);
  std::erase_if(options_.rungs, [&](const CacheRung& rung) {
    try {
      registry_.make(rung.kind, specs, options_of(rung), session_.allocator());
      return false;
    } catch (const Error&) {
      return true;
    }
  });
  headroom_ = Buffer(session_.allocator(), headroom_for(options_.free_bytes, specs), kTag);
  session_.on_out_of_memory([this](const OutOfMemory& why) { return descend(why); });
}

CacheLadder::~CacheLadder() { session_.on_out_of_memory({}); }

CacheOptions CacheLadder::options_of(const CacheRung& rung) const {
  CacheOptions options = session_.cache_options();
  options.config = rung.config;
  return options;
}

// Whether the step may be tried again.
bool CacheLadder::descend(const OutOfMemory& why) {
  const size_t kept_free = headroom_.size(), tried = next_;
  headroom_ = Buffer();
  while (next_ < options_.rungs.size()) {
    const CacheRung& rung = options_.rungs[next_++];
    // From a file there is no way down but out of it.
    if (rung_ > 0 && options_.rungs[rung_ - 1].kind == "offloaded") break;
    if (!take(rung)) continue;
    rung_ = next_;
    if (next_ < options_.rungs.size()) keep_free(kept_free);
    say(str("out of memory for ", why.tag(), " at ", session_.cache().seq_len(0),
            " tokens; the cache is now ", name(rung)));
    return true;
  }
  return kept_free > 0 || next_ > tried;
}

void CacheLadder::say(const std::string& line) const {
  if (options_.say) options_.say(line);
}

// False where the cache's rows cannot be had so, or not within the memory there is: then some
// layers may be of the new kind, and all are whole.
bool CacheLadder::take(const CacheRung& rung) {
  try {
    convert_cache(session_.cache(), rung.kind, options_of(rung), registry_, session_.allocator());
    return true;
  } catch (const Error& error) {
    say(str("the cache cannot become ", name(rung), ": ", error.what()));
    return false;
  }
}

// As much of it as there is; the last rung may use all.
void CacheLadder::keep_free(size_t bytes) noexcept {
  try {
    headroom_ = Buffer(session_.allocator(), bytes, kTag);
  } catch (const OutOfMemory&) {
    headroom_ = Buffer();
  }
}

}  // namespace larder
