// A table of tokens and ids, both ways.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace larder {

// Owns its strings; move-only, since the table from token to id points at them. Immutable, so any
// number of threads may ask. Ids may have holes and come in any order.
class Vocabulary {
 public:
  struct Entry {
    std::string token;
    int32_t id;  // never negative
  };
  Vocabulary() = default;
  // Throws Error that begins with `what` for a token or an id that stands twice.
  Vocabulary(std::vector<Entry> entries, const std::string& what);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;
  Vocabulary(const Vocabulary&) = delete;
  Vocabulary& operator=(const Vocabulary&) = delete;

  std::optional<int32_t> id(std::string_view token) const;
  std::optional<std::string_view> token(int32_t id) const;
  int64_t end_id() const { return entries_.empty() ? 0 : int64_t{entries_.back().id} + 1; }

 private:
  std::vector<Entry> entries_;  // by id
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace larder
