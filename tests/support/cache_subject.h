// A cache of any kind with made-up tokens, and what its rows hold, byte for byte: for tests that
// run one operation over every kind.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "larder/cache/registry.h"
#include "tests/support/machine.h"

namespace larder::test {

// A column of the table of operations: a kind with a configuration.
struct CacheSubject {
  std::string title;  // unique
  std::string kind;   // cache_implementation
  std::string config;
  bool state = false;  // layers of a recurrent model
  bool rounds() const { return title.find("quantized") != std::string::npos; }
};

void PrintTo(const CacheSubject& subject, std::ostream* out);

// Every kind that the registry has, the quantized one with each backend, the paged one exact and
// quantized.
std::vector<CacheSubject> cache_subjects();

// What one row holds: tokens seen, and by layer the kept tokens (or the state), oldest first.
struct RowContent {
  struct Layer {
    int64_t kept = 0;         // tokens; 0 for a state
    std::vector<float> k, v;  // [heads, kept, head_dim]; a state: the window, the state
    int32_t heads = 0, head_dim = 0;
  };
  int64_t seq_len = 0;
  std::vector<Layer> layers;
};
bool operator==(const RowContent& a, const RowContent& b);

// Two attention layers (2 heads of 16; the second slides over 6 tokens), or two state layers.
class SubjectCache {
 public:
  static constexpr int64_t kMaxLen = 96, kRollback = 3;

  explicit SubjectCache(CacheSubject subject);
  const CacheSubject& subject() const { return subject_; }
  Cache& cache() { return *cache_; }
  const Exec& exec() const { return machine_.exec; }
  Allocator& allocator() { return host_; }
  std::vector<LayerSpec> specs() const;
  Cache make(const std::string& kind, const std::string& config = "") const;
  Cache make() const { return make(subject_.kind, subject_.config); }

  // Feeds count[i] tokens to slot[i]; a token's numbers follow from `story` (one a row: who it is),
  // its position and the layer.
  void feed(Cache& cache, const std::vector<int32_t>& slot, const std::vector<int32_t>& count,
            const std::vector<int32_t>& story, bool tentative = false);
  // A step that was begun, written and, unless tentative, committed, to be ended by the caller.
  struct Fed {
    std::vector<int32_t> q_start{0}, slot;
    std::vector<int64_t> position;
    Step step;
  };
  Fed write(Cache& cache, const std::vector<int32_t>& slot, const std::vector<int32_t>& count,
            const std::vector<int32_t>& story, bool tentative);

  std::vector<RowContent> rows(Cache& cache) const;
  RowContent row(Cache& cache, int32_t index) const;

 private:
  CacheSubject subject_;
  mutable HostAllocator host_;
  Machine machine_;
  std::optional<Cache> cache_;
};

// The tokens of `content` from position `first` to before `last`, as far as they are kept.
RowContent tokens_between(const RowContent& content, int64_t first, int64_t last);

}  // namespace larder::test
