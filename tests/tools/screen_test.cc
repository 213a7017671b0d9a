// Pictures on a terminal, by what somebody sees of them.
#include "tools/screen.h"

#include <gtest/gtest.h>

#include "tests/support/terminal_run.h"

namespace larder::test {
namespace {

using tools::drawn_over;

TEST(Screen, APictureIsDrawnOverTheOneBefore) {
  const std::string before = "$ larder\r\n";
  std::string written = before + drawn_over(0, "one line\nand another\n");
  EXPECT_EQ(seen_of(written), "$ larder\none line\nand another\n");
  written += drawn_over(2, "short\n");
  EXPECT_EQ(seen_of(written), "$ larder\nshort\n");
  written += drawn_over(1, "three\nlines\nnow\n");
  EXPECT_EQ(seen_of(written), "$ larder\nthree\nlines\nnow\n");
  written += drawn_over(3, "");
  EXPECT_EQ(seen_of(written), "$ larder\n");
}

TEST(Screen, LinesThatAreTooLongDoNotMoveTheOthers) {
  const std::string written = drawn_over(0, "x\n");
  EXPECT_LT(written.find("\x1b[?7l"), written.find('x')) << "no wrap";
  EXPECT_GT(written.find("\x1b[?7h"), written.find('x')) << "and as it was";
}

}  // namespace
}  // namespace larder::test
