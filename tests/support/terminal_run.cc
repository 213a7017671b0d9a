#ifdef LARDER_HAS_TOOLS
#include "tests/support/terminal_run.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "larder/base/str.h"
#include "tools/command.h"

namespace larder::test {
namespace {

// What is written into the other side, until nobody has that open any more.
std::string read_all(int terminal) {
  std::string text;
  char part[4096];
  for (ssize_t count; (count = ::read(terminal, part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(count));
  return text;
}

// While it lives, stderr is the side of a pseudo-terminal that programs see.
class StderrAs {
 public:
  explicit StderrAs(int fd) : saved_(::dup(STDERR_FILENO)) { ::dup2(fd, STDERR_FILENO); }
  ~StderrAs() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }
  StderrAs(const StderrAs&) = delete;
  StderrAs& operator=(const StderrAs&) = delete;

 private:
  const int saved_;
};

}  // namespace

TerminalRun run_on_terminal(const std::vector<std::string>& arguments, int columns, int rows) {
  std::vector<const char*> argv = {"larder"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  TerminalRun result;
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
  const int inside = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  size.ws_row = static_cast<unsigned short>(rows);
  EXPECT_EQ(::ioctl(inside, TIOCSWINSZ, &size), 0);
  std::thread reader([&] { result.written = read_all(terminal); });
  {
    const StderrAs redirected(inside);
    ::close(inside);
    result.code = tools::run_command(static_cast<int>(argv.size()), argv.data());
  }
  reader.join();
  ::close(terminal);
  return result;
}

std::string seen_of(std::string_view written) {
  std::vector<std::string> lines(1);
  size_t row = 0, column = 0;
  for (size_t i = 0; i < written.size(); ++i) {
    const char c = written[i];
    if (c == '\r') {
      column = 0;
    } else if (c == '\n') {
      column = 0;  // as a terminal makes of it
      if (++row == lines.size()) lines.emplace_back();
    } else if (c == '\x1b') {
      const size_t end = written.find_first_of("AJKhlm", i);
      const std::string_view number = written.substr(i + 2, end - i - 2);
      if (written[end] == 'A') row -= std::stoul(std::string(number));
      if (written[end] == 'J') lines.resize(row + 1);
      if (written[end] == 'J' || written[end] == 'K') lines[row].resize(column, ' ');
      i = end;
    } else {
      lines[row].resize(std::max(lines[row].size(), column + 1), ' ');
      lines[row][column++] = c;
    }
  }
  return join(lines, "\n");
}

}  // namespace larder::test
#endif
