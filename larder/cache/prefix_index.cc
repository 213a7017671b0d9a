#include "larder/cache/prefix_index.h"

#include <algorithm>
#include <bit>
#include <random>

#include "larder/base/error.h"

namespace larder {
namespace {

uint64_t mixed(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

PrefixIndex::Hash keyed_hash() {
  std::random_device device;
  const uint64_t key = uint64_t{device()} << 32 | device();
  return [key](uint64_t parent, std::span<const int32_t> tokens) {
    uint64_t hash = mixed(parent ^ key);
    for (const int32_t token : tokens) hash = mixed(hash + key + static_cast<uint32_t>(token));
    return hash;
  };
}

}  // namespace

PrefixIndex::PrefixIndex(int32_t capacity, int32_t block_size, Hash hash)
    : hash_(hash ? std::move(hash) : keyed_hash()),
      block_size_(static_cast<size_t>(block_size)),
      entries_(static_cast<size_t>(capacity)),
      tokens_(static_cast<size_t>(capacity) * block_size_),
      buckets_(std::bit_ceil(static_cast<size_t>(capacity) + 1), kNone) {
  for (int32_t entry = capacity - 1; entry >= 0; --entry) {
    at(entry).chain = free_;
    free_ = entry;
  }
}

int32_t PrefixIndex::find_root(std::string_view text) const {
  const auto found = std::ranges::find_if(
      salts_, [&](const Salt& salt) { return salt.users > 0 && salt.text == text; });
  return found == salts_.end() ? kNone : static_cast<int32_t>(-2 - (found - salts_.begin()));
}

int32_t PrefixIndex::root(std::string_view text) {
  if (const int32_t known = find_root(text); known != kNone) return known;
  auto place = std::ranges::find(salts_, 0, &Salt::users);
  if (place == salts_.end()) place = salts_.emplace(place);
  place->text = text;
  return static_cast<int32_t>(-2 - (place - salts_.begin()));
}

int32_t PrefixIndex::num_salts() const {
  return static_cast<int32_t>(
      std::ranges::count_if(salts_, [](const Salt& salt) { return salt.users > 0; }));
}

uint64_t PrefixIndex::hash_of(int32_t parent, std::span<const int32_t> tokens) const {
  return hash_(is_root(parent) ? static_cast<uint64_t>(parent) : at(parent).hash, tokens);
}

std::span<int32_t> PrefixIndex::tokens_of(int32_t entry) {
  return std::span(tokens_).subspan(static_cast<size_t>(entry) * block_size_, block_size_);
}

int32_t PrefixIndex::find(int32_t parent, std::span<const int32_t> tokens) const {
  LARDER_ASSERT(tokens.size() == block_size_);
  const uint64_t hash = hash_of(parent, tokens);
  for (int32_t entry = buckets_[hash & (buckets_.size() - 1)]; entry != kNone;
       entry = at(entry).chain) {
    if (at(entry).hash == hash && at(entry).parent == parent &&
        std::ranges::equal(this->tokens(entry), tokens))
      return entry;
  }
  return kNone;
}

int32_t PrefixIndex::add(int32_t parent, std::span<const int32_t> tokens) {
  if (const int32_t known = find(parent, tokens); known != kNone) {
    use(known);
    return known;
  }
  const int32_t entry = free_;
  if (entry == kNone) return kNone;
  free_ = at(entry).chain;
  const uint64_t hash = hash_of(parent, tokens);
  at(entry) = {hash, parent, 0, 0, kNone, kNone, *bucket(hash)};
  *bucket(hash) = entry;
  std::ranges::copy(tokens, tokens_of(entry).begin());
  ++(is_root(parent) ? salt(parent).users : at(parent).children);
  ++size_;
  make_youngest(entry);
  if (!is_root(parent)) use(parent);
  return entry;
}

void PrefixIndex::remove(int32_t entry) {
  LARDER_ASSERT(removable(entry));
  int32_t* link = bucket(at(entry).hash);
  while (*link != entry) link = &at(*link).chain;
  *link = at(entry).chain;
  const int32_t parent = at(entry).parent;
  --(is_root(parent) ? salt(parent).users : at(parent).children);
  unlink(entry);
  at(entry).chain = free_;
  free_ = entry;
  --size_;
}

void PrefixIndex::use(int32_t entry) {
  for (; !is_root(entry); entry = at(entry).parent) {
    unlink(entry);
    make_youngest(entry);
  }
}

void PrefixIndex::unlink(int32_t entry) {
  const int32_t older = at(entry).older, younger = at(entry).younger;
  (older == kNone ? oldest_ : at(older).younger) = younger;
  (younger == kNone ? youngest_ : at(younger).older) = older;
}

void PrefixIndex::make_youngest(int32_t entry) {
  at(entry).older = youngest_;
  at(entry).younger = kNone;
  (youngest_ == kNone ? oldest_ : at(youngest_).younger) = entry;
  youngest_ = entry;
}

}  // namespace larder
