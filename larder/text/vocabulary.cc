#include "larder/text/vocabulary.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {

Vocabulary::Vocabulary(std::vector<Entry> entries, const std::string& what)
    : entries_(std::move(entries)) {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
  ids_.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (i > 0 && entries_[i - 1].id == entry.id)
      fail(what, ": the id ", entry.id, " stands twice, for ", in_quotes(entries_[i - 1].token),
           " and ", in_quotes(entry.token));
    if (!ids_.emplace(entry.token, entry.id).second)
      fail(what, ": the token ", in_quotes(entry.token), " stands twice");
  }
}

std::optional<int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string_view> Vocabulary::token(int32_t id) const {
  // Nearly always the ids are 0, 1, 2, ...
  if (id >= 0 && static_cast<size_t>(id) < entries_.size() &&
      entries_[static_cast<size_t>(id)].id == id)
    return entries_[static_cast<size_t>(id)].token;
  const auto found = std::lower_bound(entries_.begin(), entries_.end(), id,
                                      [](const Entry& entry, int32_t at) { return entry.id < at; });
  if (found == entries_.end() || found->id != id) return std::nullopt;
  return found->token;
}

}  // namespace larder
