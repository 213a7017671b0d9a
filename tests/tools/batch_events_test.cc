// larder batch --event-log and --top, as a user meets them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "larder/base/file.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/terminal_run.h"
#include "tools/batch_results.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

class BatchEvents : public testing::Test {
 protected:
  BatchEvents() {
    folder_.write("in.jsonl", R"({"id": 1, "prompt": "To be, or not", "max_new_tokens": 24}
{"id": 2, "prompt_ids": [1, 5, 9], "max_new_tokens": 16}
{"id": 3, "prompt": "HAMLET.", "max_new_tokens": 40}
)");
  }
  Arguments with(const Arguments& more) const {
    Arguments all = {"batch",    "-m",     toy_folder("toy-llama"), "--input", path("in.jsonl"),
                     "--output", output(), "--block-size",          "4",       "--blocks",
                     "14"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::string output() const { return path("out.jsonl"); }
  // In whatever order they ended.
  std::multiset<std::string> lines() const {
    std::ifstream file(output());
    std::multiset<std::string> found;
    for (std::string line; std::getline(file, line);) found.insert(line);
    return found;
  }
  std::string log() const { return path("events.jsonl"); }

  TempFolder folder_;
};

std::string last_picture(const std::string& log) {
  const CommandResult result = run_larder({"top", "--replay", log, "--once"});
  EXPECT_EQ(result.code, 0) << result.err;
  return result.out;
}

TEST_F(BatchEvents, TheLogIsWhatTopReplays) {
  EXPECT_EQ(run_larder(with({})).code, 0);
  const auto results = lines();
  std::filesystem::remove(output());
  folder_.write("events.jsonl", "an old log\n");
  const CommandResult run = run_larder(with({"--event-log", log(), "--prefix-cache", "off"}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(lines(), results);
  const std::string picture = last_picture(log());
  EXPECT_NE(picture.find(" blocks, "), std::string::npos) << picture;
  EXPECT_NE(picture.find(", 0 used, 0 cached\n0 requests, 3 ended; "), std::string::npos)
      << picture;
}

TEST_F(BatchEvents, RequestsThatGiveWayStandAsideWhereAFolderIsGiven) {
  EXPECT_EQ(run_larder(with({})).code, 0);
  const auto results = lines();
  std::filesystem::remove(output());
  const Arguments flags = {"--event-log",    log(), "--swap-folder", folder_.path().string(),
                           "--prefix-cache", "off"};
  const CommandResult run = run_larder(with(flags));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(lines(), results);
  const std::string picture = last_picture(log());
  EXPECT_EQ(picture.find(" 0 of them swapped out"), std::string::npos) << picture;
  EXPECT_EQ(picture.find(" 0 back in"), std::string::npos) << picture;
}

TEST_F(BatchEvents, BlocksThatComeFromAFolderAreInTheLog) {
  const Arguments flags = {"--prefix-folder", folder_.path().string(), "--event-log", log()};
  EXPECT_EQ(run_larder(with(flags)).code, 0);
  std::filesystem::remove(output());
  const CommandResult run = run_larder(with(flags));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(last_picture(log()).find(" 0 hits"), std::string::npos) << last_picture(log());
}

TEST_F(BatchEvents, TheLogOfARunThatIsRefusedStays) {
  folder_.write("events.jsonl", "an old log\n");
  {
    const tools::BatchResults other(output());
    EXPECT_EQ(run_larder(with({"--event-log", log()})).code, 2);
  }
  EXPECT_EQ(run_larder(with({"--event-log", log(), "--scheduler", "lifo"})).code, 2);
  EXPECT_EQ(read_file(log()), "an old log\n");
}

TEST_F(BatchEvents, ALogThatCannotBeWrittenCostsNoResult) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  const CommandResult run = run_larder(with({"--event-log", "/dev/full"}));
  EXPECT_EQ(run.code, 2);
  EXPECT_TRUE(run.err.starts_with("3 requests done")) << run.err;
  EXPECT_NE(run.err.find("larder: /dev/full: the event log is not complete"), std::string::npos);
  EXPECT_TRUE(run_larder(with({})).err.starts_with("0 requests done"));
}

TEST_F(BatchEvents, WrongFlagsAreOneLineAndWriteNothing) {
  const auto refused = [&](const Arguments& more, const std::string& error) {
    const CommandResult result = run_larder(with(more));
    EXPECT_EQ(result.code, 2) << error;
    EXPECT_NE(result.err.find(error), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
  };
  refused({"--top"}, "--top draws on stderr, which is no terminal");
  refused({"--event-log", path("in.jsonl")}, "is a file of requests or results");
  refused({"--event-log", (folder_ / "." / "out.jsonl").string()}, "requests or results");
  EXPECT_FALSE(std::filesystem::exists(output()));
  std::filesystem::create_hard_link(path("in.jsonl"), path("link"));
  refused({"--event-log", path("link")}, "is a file of requests or results");
  refused({"--swap-folder", "/no/such/folder"}, "/no/such/folder");
  refused({"--event-log", "/no/such/folder/log"}, "/no/such/folder/log");
}

TEST_F(BatchEvents, TopDrawsThePoolBelowTheBarAndLeavesItsLastState) {
  const TerminalRun run = run_on_terminal(with({"--top", "--event-log", log()}));
  EXPECT_EQ(run.code, 0) << run.written;
  EXPECT_NE(run.written.find("[..............................] 0/3, "), std::string::npos)
      << run.written;
  const std::string seen = seen_of(run.written), picture = last_picture(log());
  EXPECT_TRUE(seen.starts_with(picture.substr(0, picture.find('\n')))) << seen;
  EXPECT_NE(seen.find("\n. free  + cached  # shared\n3 requests done, "), std::string::npos)
      << seen;
}

TEST_F(BatchEvents, WithoutTopTheBarLeavesNothing) {
  const TerminalRun run = run_on_terminal(with({}));
  EXPECT_NE(run.written.find("] 0/3, "), std::string::npos) << run.written;
  EXPECT_TRUE(seen_of(run.written).starts_with("3 requests done, ")) << run.written;
}

TEST_F(BatchEvents, APictureThatIsTooBigIsCut) {
  const TerminalRun run = run_on_terminal(with({"--top"}), 10, 3);
  EXPECT_EQ(run.code, 0);
  EXPECT_NE(seen_of(run.written).find("\n3 requests done, "), std::string::npos);
}

}  // namespace
}  // namespace larder::test
