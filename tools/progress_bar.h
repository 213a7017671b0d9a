// How far a long run has come, on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tools/screen.h"

namespace larder::tools {

// Shows nothing where stderr is no terminal.
class ProgressBar {
 public:
  // `below` gives the lines that stand below the bar, if any should.
  explicit ProgressBar(int64_t total, std::function<std::string()> below = {});
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  static bool wanted();  // whether stderr is a terminal
  // At most ten times a second.
  void show(int64_t done, std::string_view more);
  // Takes the bar away; what is below stays, as it is now.
  void clear();

 private:
  const int64_t total_;
  const std::function<std::string()> below_;
  std::chrono::steady_clock::time_point next_ = {};
  Screen screen_;
  bool shown_ = false;
};

}  // namespace larder::tools
