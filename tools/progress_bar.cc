#include "tools/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "larder/base/str.h"

namespace larder::tools {
namespace {

constexpr int64_t kWidth = 30;
constexpr auto kBetween = std::chrono::milliseconds(100);

}  // namespace

ProgressBar::ProgressBar(int64_t total, std::function<std::string()> below)
    : total_(total), below_(std::move(below)), screen_(STDERR_FILENO) {}

bool ProgressBar::wanted() { return isatty(STDERR_FILENO) == 1; }

void ProgressBar::show(int64_t done, std::string_view more) {
  const auto now = std::chrono::steady_clock::now();
  if (!wanted() || now < next_) return;
  next_ = now + kBetween;
  shown_ = true;
  const int64_t full = std::min(kWidth, kWidth * done / std::max<int64_t>(total_, 1));
  screen_.draw(str("[", std::string(static_cast<size_t>(full), '#'),
                   std::string(static_cast<size_t>(kWidth - full), '.'), "] ", done, "/", total_,
                   more, "\n", below_ ? below_() : ""));
}

void ProgressBar::clear() {
  if (std::exchange(shown_, false)) screen_.draw(below_ ? below_() : "");
}

}  // namespace larder::tools
