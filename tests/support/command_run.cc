#ifdef LARDER_HAS_TOOLS
#include "tests/support/command_run.h"

#include <gtest/gtest.h>

#include "tools/command.h"

namespace larder::test {

CommandResult run_larder(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"larder"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  CommandResult result;
  result.code = tools::run_command(static_cast<int>(argv.size()), argv.data());
  result.out = ::testing::internal::GetCapturedStdout();
  result.err = ::testing::internal::GetCapturedStderr();
  return result;
}

}  // namespace larder::test
#endif
