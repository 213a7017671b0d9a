// How far a long run has come: one line on stderr that is written over.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace larder::tools {

// Shows nothing where stderr is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(int64_t total) : total_(total) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  static bool wanted();  // whether stderr is a terminal
  // At most ten times a second.
  void show(int64_t done, std::string_view more);
  void clear();  // takes the line away

 private:
  const int64_t total_;
  std::chrono::steady_clock::time_point next_ = {};
  bool shown_ = false;
};

}  // namespace larder::tools
