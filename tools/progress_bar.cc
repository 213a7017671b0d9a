#include "tools/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "larder/base/str.h"

namespace larder::tools {
namespace {

constexpr int64_t kWidth = 30;
constexpr auto kBetween = std::chrono::milliseconds(100);
constexpr std::string_view kBegin = "\r\x1b[K";  // to the line's begin, and empty it

}  // namespace

bool ProgressBar::wanted() { return isatty(STDERR_FILENO) == 1; }

void ProgressBar::show(int64_t done, std::string_view more) {
  const auto now = std::chrono::steady_clock::now();
  if (!wanted() || now < next_) return;
  next_ = now + kBetween;
  shown_ = true;
  const int64_t full = std::min(kWidth, kWidth * done / std::max<int64_t>(total_, 1));
  std::cerr << str(kBegin, "[", std::string(static_cast<size_t>(full), '#'),
                   std::string(static_cast<size_t>(kWidth - full), '.'), "] ", done, "/", total_,
                   more)
            << std::flush;
}

void ProgressBar::clear() {
  if (shown_) std::cerr << kBegin << std::flush;
  shown_ = false;
}

}  // namespace larder::tools
