// Runs the whole command in this process and keeps what it wrote.
#pragma once

#include <string>
#include <vector>

namespace larder::test {

struct CommandResult {
  int code = 0;
  std::string out, err;
};

// run_command("generate", "-m", ...) as a shell would call larder.
CommandResult run_larder(const std::vector<std::string>& arguments);

}  // namespace larder::test
