// Pictures of text lines on a terminal, each drawn over the one before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace larder::tools {

struct ScreenSize {
  int64_t columns = 80, rows = 24;
};
// nullopt where `fd` is no terminal; the usual size where a terminal does not say.
std::optional<ScreenSize> screen_size(int fd);

// What draws `lines` (each ends in "\n") over `drawn` lines right above the cursor.
std::string drawn_over(int64_t drawn, std::string_view lines);

class Screen {
 public:
  // STDOUT_FILENO or STDERR_FILENO; must be a terminal when something is drawn.
  explicit Screen(int fd) : fd_(fd) {}
  // Lines that do not fit are left out at the end, and cut at the right. "" takes the picture away.
  void draw(std::string_view lines);

 private:
  const int fd_;
  int64_t drawn_ = 0;  // lines
};

}  // namespace larder::tools
