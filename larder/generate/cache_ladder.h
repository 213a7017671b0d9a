// When memory runs out in mid-generation: the cache becomes one that takes less, and the generation
// goes on with all its tokens.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "larder/generate/session.h"
#include "larder/tensor/allocator.h"

namespace larder {

// A cache kind with its settings.
struct CacheRung {
  std::string kind, config;
};

// Codes of 8 bits, codes of 4, then those in a file, two layers in memory at a time; the plain
// cache in a file where a model's layers cannot be quantized.
std::vector<CacheRung> default_rungs();

// Makes every OutOfMemory of the session's steps take the next rung, layer by layer: an old layer
// is read, the new one made, the old one freed. Nothing is computed again. The session throws only
// when the last rung is not enough; tokens and cache then are as before the step. What a conversion
// needs beside the cache is kept free from the start. A session that was reset stays on its rung.
class CacheLadder {
 public:
  struct Options {
    // What the allocator still gives when the ladder is made; of it, headroom() is kept free. 0: no
    // limit is known, and nothing is.
    size_t free_bytes = 0;
    std::vector<CacheRung> rungs = default_rungs();
    std::function<void(const std::string&)> say;  // one line for each conversion
  };
  // Rungs that the model's layers cannot have are left out. Throws OutOfMemory.
  CacheLadder(Session& session, Options options, const CacheRegistry& registry = CacheRegistry());
  ~CacheLadder();
  CacheLadder(const CacheLadder&) = delete;
  CacheLadder& operator=(const CacheLadder&) = delete;

  size_t headroom() const { return headroom_.size(); }
  // The rung that the cache is on; null before the first.
  const CacheRung* rung() const { return rung_ == 0 ? nullptr : &options_.rungs[rung_ - 1]; }

 private:
  bool descend(const OutOfMemory& why);
  bool take(const CacheRung& rung);
  void say(const std::string& line) const;
  CacheOptions options_of(const CacheRung& rung) const;
  void keep_free(size_t bytes) noexcept;

  Session& session_;
  Options options_;
  const CacheRegistry registry_;
  size_t next_ = 0, rung_ = 0;  // the next one to try, and 1 + the one that was taken last
  Buffer headroom_;
};

}  // namespace larder
