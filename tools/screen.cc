#include "tools/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "larder/base/str.h"

namespace larder::tools {

std::optional<ScreenSize> screen_size(int fd) {
  if (isatty(fd) == 0) return std::nullopt;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
    return ScreenSize();
  return ScreenSize{size.ws_col, size.ws_row};
}

std::string drawn_over(int64_t drawn, std::string_view lines) {
  constexpr std::string_view kNoWrap = "\x1b[?7l", kWrap = "\x1b[?7h";
  constexpr std::string_view kEmptyRestOfLine = "\x1b[K", kEmptyBelow = "\x1b[J";
  std::string text = "\r";
  if (drawn > 0) append_part(text, str("\x1b[", drawn, "A"));
  text += kNoWrap;
  for (size_t end; (end = lines.find('\n')) != lines.npos; lines.remove_prefix(end + 1))
    text.append(lines.substr(0, end)).append(kEmptyRestOfLine).append("\n");
  return text.append(kEmptyBelow).append(kWrap);
}

void Screen::draw(std::string_view lines) {
  // The cursor needs a line of its own below.
  const int64_t most = std::max<int64_t>(screen_size(fd_).value_or(ScreenSize()).rows - 1, 1);
  int64_t count = 0;
  size_t end = 0;
  for (size_t at; count < most && (at = lines.find('\n', end)) != lines.npos; ++count) end = at + 1;
  (fd_ == STDERR_FILENO ? std::cerr : std::cout)
      << drawn_over(drawn_, lines.substr(0, end)) << std::flush;
  drawn_ = count;
}

}  // namespace larder::tools
