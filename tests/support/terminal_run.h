// Runs the whole command with a terminal as its stderr.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace larder::test {

struct TerminalRun {
  int code = 0;
  std::string written;  // to stderr, control codes and all
};

TerminalRun run_on_terminal(const std::vector<std::string>& arguments, int columns = 80,
                            int rows = 24);

// What somebody who looks at the terminal sees when all that has been written, without colours.
std::string seen_of(std::string_view written);

}  // namespace larder::test
