// Which blocks of tokens are known, and behind which others: the policy of the prefix cache,
// without a tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder {

// A tree. The root of a salt has no tokens; every other entry is a block of tokens behind its
// parent. The hash only finds: parent and tokens decide. Entries come in the order of their last
// use, a parent always after its children, so the oldest one has none. A salt is forgotten with the
// last entry behind it and the last pin on its root, so that salts which never come again leave
// nothing. Allocates in its constructor only, but for a salt that is new. Not thread-safe.
class PrefixIndex {
 public:
  static constexpr int32_t kNone = -1;
  using Hash = std::function<uint64_t(uint64_t parent, std::span<const int32_t> tokens)>;

  // `hash` empty: a keyed one, with a key of this object's own, so that nobody can prepare prompts
  // that collide. Room for `capacity` blocks of `block_size` tokens.
  PrefixIndex(int32_t capacity, int32_t block_size, Hash hash = {});

  // Where the prompts of this salt begin. Prompts of different salts share nothing. Needs: it is
  // pinned, or something is added behind it, before anything else is forgotten.
  int32_t root(std::string_view salt);
  // The same, or kNone where nothing is known of the salt.
  int32_t find_root(std::string_view salt) const;
  // The block of these tokens behind `parent`, or kNone.
  int32_t find(int32_t parent, std::span<const int32_t> tokens) const;
  // The same, or a new one; kNone when there is no room. It is the youngest then.
  int32_t add(int32_t parent, std::span<const int32_t> tokens);
  // Forgets an entry. Needs: no children, no pins.
  void remove(int32_t entry);
  // Makes the entry and all that it is behind the youngest.
  void use(int32_t entry);

  // A pinned entry is not to be removed: somebody goes on from it.
  void pin(int32_t entry) { ++(is_root(entry) ? salt(entry).users : at(entry).pins); }
  void unpin(int32_t entry) { --(is_root(entry) ? salt(entry).users : at(entry).pins); }
  bool removable(int32_t entry) const { return at(entry).children == 0 && at(entry).pins == 0; }

  int32_t parent(int32_t entry) const { return at(entry).parent; }
  std::span<const int32_t> tokens(int32_t entry) const {
    return std::span(tokens_).subspan(static_cast<size_t>(entry) * block_size_, block_size_);
  }
  static bool is_root(int32_t entry) { return entry < kNone; }  // as root() numbers them

  // From the oldest to the youngest; next(kNone) is the oldest, kNone ends.
  int32_t next(int32_t entry) const { return entry == kNone ? oldest_ : at(entry).younger; }
  int32_t size() const { return size_; }
  int32_t capacity() const { return static_cast<int32_t>(entries_.size()); }
  int32_t num_salts() const;

 private:
  struct Entry {
    uint64_t hash = 0;
    int32_t parent = kNone, children = 0, pins = 0;
    int32_t older = kNone, younger = kNone;
    int32_t chain = kNone;  // the next entry of the hash's bucket, or the next free one
  };
  struct Salt {
    std::string text;
    int32_t users = 0;  // entries right behind its root, and pins on it; 0: it is forgotten
  };
  // Roots are numbered from -2 downwards, by their salt's place in the list.
  Salt& salt(int32_t root) { return salts_[static_cast<size_t>(-2 - root)]; }
  Entry& at(int32_t entry) { return entries_[static_cast<size_t>(entry)]; }
  const Entry& at(int32_t entry) const { return entries_[static_cast<size_t>(entry)]; }
  uint64_t hash_of(int32_t parent, std::span<const int32_t> tokens) const;
  int32_t* bucket(uint64_t hash) { return &buckets_[hash & (buckets_.size() - 1)]; }
  std::span<int32_t> tokens_of(int32_t entry);
  void unlink(int32_t entry);
  void make_youngest(int32_t entry);

  Hash hash_;
  size_t block_size_;
  std::vector<Entry> entries_;
  std::vector<int32_t> tokens_, buckets_;
  std::vector<Salt> salts_;  // those that are not known give their places to new ones
  int32_t free_ = kNone, oldest_ = kNone, youngest_ = kNone, size_ = 0;
};

}  // namespace larder
