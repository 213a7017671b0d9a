// larder top: the view as text, and the command over files.
#include <gtest/gtest.h>

#include "tests/support/command_run.h"
#include "tests/support/temp_folder.h"
#include "tools/top_view.h"

namespace larder::test {
namespace {

using tools::draw_pool;
using Kind = PoolEventKind;

PoolEvent about(Kind kind, const std::vector<int32_t>& blocks, int64_t request = -1,
                int32_t sample = 0) {
  return {.kind = kind, .blocks = blocks, .request = request, .sample = sample};
}

// Request 0 has blocks 0 to 2, request 1 block 1 too and block 3; block 4 is cached.
PoolState small_state(int64_t num_blocks = 8) {
  PoolState pool;
  pool.apply({.kind = Kind::kPool, .count = num_blocks});
  for (const int64_t request : {0, 1, 2}) pool.apply(about(Kind::kBegin, {}, request));
  pool.apply(about(Kind::kAllocate, {0, 1, 2, 3, 4}));
  pool.apply(about(Kind::kCache, {1, 4}));
  pool.apply(about(Kind::kOwn, {0, 1, 2}, 0));
  pool.apply({.kind = Kind::kHit, .blocks = std::vector<int32_t>{1}, .count = 16, .request = 1});
  pool.apply(about(Kind::kOwn, {3}, 1));
  pool.apply({.kind = Kind::kStep, .count = 40, .step = 7});
  return pool;
}

TEST(TopView, ShowsWhoHasWhichBlock) {
  EXPECT_EQ(draw_pool(small_state(), {}),
            "step 7: 8 blocks, 3 free, 4 used, 1 cached\n"
            "3 requests, 0 ended; 40 tokens fed; 1 hits of 16 tokens\n"
            "0 preemptions, 0 of them swapped out, 0 back in; 0 evictions, 0 copies\n"
            "A#AB+...\n"
            ". free  + cached  # shared\n"
            "A request 0: 3 blocks, 1 shared\n"
            "B request 1: 2 blocks, 1 shared\n"
            "C request 2: waits\n");
}

TEST(TopView, TellsWhoStandsAside) {
  PoolState pool = small_state();
  pool.apply(
      {.kind = Kind::kSwapOut, .blocks = std::vector<int32_t>{3}, .count = 21, .request = 1});
  pool.apply(about(Kind::kPreempt, {}, 1));
  const std::string text = draw_pool(pool, {});
  EXPECT_NE(text.find("\n1 preemptions, 1 of them swapped out, 0 back in; "), std::string::npos)
      << text;
  EXPECT_NE(text.find("\nB request 1: waits, 21 tokens aside\n"), std::string::npos) << text;
}

TEST(TopView, BreaksLinesAndListsAsManyAsThereIsRoomFor) {
  const std::string text = draw_pool(small_state(), {.columns = 3, .rows = 3, .legend = 1});
  EXPECT_NE(text.find("\nA#A\nB+.\n..\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("A request 0: 3 blocks, 1 shared\nand 2 more\n")) << text;
}

TEST(TopView, OfABigPoolACellIsWhatMostOfItsBlocksAre) {
  const std::string text = draw_pool(small_state(1000), {.columns = 10, .rows = 20});
  EXPECT_NE(text.find("\nA.........\n"), std::string::npos) << text;
  EXPECT_NE(text.find("a cell is 5 blocks, as most are\n"), std::string::npos) << text;
}

TEST(TopView, ColoursAreForTerminalsAlone) {
  EXPECT_EQ(draw_pool(small_state(), {}).find('\x1b'), std::string::npos);
  EXPECT_NE(draw_pool(small_state(), {.colour = true}).find("\x1b[38;5;"), std::string::npos);
}

TEST(TopView, SaysWhereThereIsNoPool) {
  EXPECT_NE(draw_pool(small_state(8), {}).find("free"), std::string::npos);
  PoolState none;
  none.apply({.kind = Kind::kPool});
  EXPECT_NE(draw_pool(none, {}).find("no pool"), std::string::npos);
}

constexpr const char* kLog = R"({"step":1,"event":"pool","num_blocks":4}
{"step":1,"event":"begin","request":0,"sample":0,"tokens":3}
{"step":1,"event":"allocate","blocks":[2]}
{"step":1,"event":"own","request":0,"sample":0,"blocks":[2]}
{"step":1,"event":"step","tokens":3}
{"step":2,"event":"end","request":0,"sample":0,"reason":"length"}
{"step":2,"event":"free","blocks":[2]}
{"step":2,"event":"step","tokens":1}
)";

TEST(Top, WithoutATerminalEveryStepIsPlainText) {
  const TempFolder folder;
  const std::string path = folder.write("log", kLog).string();
  const CommandResult all = run_larder({"top", "--replay", path});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_NE(all.out.find("step 1: 4 blocks, 3 free"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find("\n..A.\n"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find("step 2: 4 blocks, 4 free"), std::string::npos) << all.out;
  EXPECT_EQ(all.out.find('\x1b'), std::string::npos);
  const CommandResult once = run_larder({"top", "--replay", path, "--once"});
  EXPECT_TRUE(once.out.starts_with("step 2: 4 blocks, 4 free")) << once.out;
}

TEST(Top, OfATornLogItShowsWhatThereIsAndSaysSo) {
  const TempFolder folder;
  const std::string path = folder.write("log", std::string(kLog) + "{\"step\":3,").string();
  const CommandResult run = run_larder({"top", "--replay", path, "--once"});
  EXPECT_EQ(run.code, 2);
  EXPECT_TRUE(run.out.starts_with("step 2: 4 blocks")) << run.out;
  EXPECT_NE(run.err.find("line 9: the last line is torn"), std::string::npos) << run.err;
}

TEST(Top, BadFilesAndFlagsAreOneLine) {
  const TempFolder folder;
  const auto check = [](const std::vector<std::string>& arguments, const std::string& part) {
    const CommandResult run = run_larder(arguments);
    EXPECT_EQ(run.code, 2);
    EXPECT_TRUE(run.err.starts_with("larder: ")) << run.err;
    EXPECT_EQ(run.err.find('\n'), run.err.size() - 1) << run.err;
    EXPECT_NE(run.err.find(part), std::string::npos) << run.err;
  };
  check({"top", "--replay", (folder / "none").string()}, "none");
  check({"top", "--replay", folder.path().string()}, folder.path().string());
  check({"top", "--replay", folder.write("text", "no log\n").string()}, "line 1");
  check({"top"}, "--replay");
  check({"top", "--replay", folder.write("log", kLog).string(), "--delay", "-1"}, "--delay -1");
}

}  // namespace
}  // namespace larder::test
