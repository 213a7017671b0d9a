#include "larder/generate/stop_strings.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "larder/base/error.h"

namespace larder {
namespace {

std::vector<uint32_t> borders(std::string_view pattern) {
  std::vector<uint32_t> border(pattern.size() + 1, 0);
  uint32_t length = 0;
  for (size_t i = 1; i < pattern.size(); ++i) {
    while (length > 0 && pattern[i] != pattern[length]) length = border[length];
    if (pattern[i] == pattern[length]) ++length;
    border[i + 1] = length;
  }
  return border;
}

void check(const std::string& stop, size_t index) {
  if (stop.empty())
    fail("stop string ", index + 1, " is empty and would stop everything; remove it");
  if (stop.size() > std::numeric_limits<uint32_t>::max())
    fail("stop string ", index + 1, " has ", stop.size(), " bytes, more than can be matched");
  if ((static_cast<unsigned char>(stop[0]) & 0xC0) == 0x80)
    fail("stop string ", index + 1, " begins inside a UTF-8 character; give whole characters");
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stop_strings) {
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    check(stop_strings[i], i);
    auto border = borders(stop_strings[i]);
    automata_.push_back({std::move(stop_strings[i]), std::move(border)});
  }
}

void StopMatcher::step(char byte) {
  ++end_;
  for (size_t stop = 0; stop < automata_.size(); ++stop) {
    Automaton& a = automata_[stop];
    while (a.matched > 0 && a.pattern[a.matched] != byte) a.matched = a.border[a.matched];
    if (a.pattern[a.matched] == byte) ++a.matched;
    if (a.matched < a.pattern.size()) continue;
    const Match match{first_open(a), stop};
    if (!best_ || std::pair(match.begin, match.stop) < std::pair(best_->begin, best_->stop))
      best_ = match;
    a.matched = a.border[a.matched];
  }
}

bool StopMatcher::decided() const {
  if (!best_) return false;
  for (size_t stop = 0; stop < automata_.size(); ++stop) {
    const Automaton& a = automata_[stop];
    if (a.matched > 0 && std::pair(first_open(a), stop) < std::pair(best_->begin, best_->stop))
      return false;
  }
  return true;
}

StopMatcher::Shown StopMatcher::show(size_t until) {
  shown_.assign(held_, 0, until - begin_);
  held_.erase(0, until - begin_);
  begin_ = until;
  if (stopped_) held_.clear();
  return {shown_, stopped_};
}

StopMatcher::Shown StopMatcher::feed(std::string_view piece) {
  if (stopped_) return {{}, true};
  held_.append(piece);
  for (const char byte : piece) {
    step(byte);
    if (!decided()) continue;
    stopped_ = true;
    return show(best_->begin);
  }
  size_t until = best_ ? best_->begin : end_;
  for (const Automaton& a : automata_) until = std::min(until, first_open(a));
  return show(until);
}

StopMatcher::Shown StopMatcher::finish() {
  if (stopped_) return {{}, true};
  stopped_ = best_.has_value();
  for (Automaton& a : automata_) a.matched = 0;
  return show(best_ ? best_->begin : end_);
}

std::optional<size_t> StopMatcher::stopped_by() const {
  if (!stopped_) return std::nullopt;
  return best_->stop;
}

}  // namespace larder
