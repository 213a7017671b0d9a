// larder batch, as a user meets it.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_folder.h"
#include "tools/batch_results.h"
#include "tools/command.h"
#include "tools/interrupt.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

class Batch : public testing::Test {
 protected:
  CommandResult run(const std::string& requests, const Arguments& more = {}) {
    folder_.write("in.jsonl", requests);
    Arguments all = {"batch",    "-m",    toy_folder("toy-llama"), "--input", path("in.jsonl"),
                     "--output", output()};
    all.insert(all.end(), more.begin(), more.end());
    return run_larder(all);
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::string output() const { return path("out.jsonl"); }
  std::string text() const { return read_file(output()); }
  std::vector<Json> lines() const {
    std::ifstream file(output());
    std::vector<Json> found;
    for (std::string line; std::getline(file, line);) found.push_back(parse_json(line, "a result"));
    return found;
  }
  // By id, as JSON; every id once.
  std::map<std::string, Json> results() const {
    std::map<std::string, Json> found;
    for (const Json& line : lines())
      EXPECT_TRUE(found.emplace(line.at("id").dump(), line).second) << line;
    return found;
  }

  TempFolder folder_;
};

Json generate(const Arguments& more) {
  Arguments all = {"generate", "-m", toy_folder("toy-llama"), "--json"};
  all.insert(all.end(), more.begin(), more.end());
  return parse_json(run_larder(all).out, "the output");
}

void expect_same(const Json& result, const Json& alone) {
  for (const char* key : {"text", "output_ids", "finish_reason"})
    EXPECT_EQ(result.at(key), alone.at(key)) << result;
  EXPECT_EQ(result.at("prompt_tokens"), alone.at("timing").at("prompt_tokens"));
  EXPECT_EQ(result.at("new_tokens"), alone.at("timing").at("new_tokens"));
}

const std::string kThree =
    R"({"id": 1, "prompt": "To be, or not", "max_new_tokens": 24}
{"id": "b", "prompt_ids": [1, 5, 9], "max_new_tokens": 16, "temperature": 0.9, "top_p": 0.9, "seed": 7}
{"id": "c", "prompt": "HAMLET.", "stop": "the", "max_new_tokens": 40, "repetition_penalty": 1.2}
)";

void expect_the_three(const std::map<std::string, Json>& results) {
  ASSERT_EQ(results.size(), 3u);
  expect_same(results.at("1"), generate({"-p", "To be, or not", "-n", "24"}));
  expect_same(results.at("\"b\""), generate({"--prompt-ids", "1,5,9", "-n", "16", "--temperature",
                                             "0.9", "--top-p", "0.9", "--seed", "7"}));
  expect_same(results.at("\"c\""), generate({"-p", "HAMLET.", "--stop", "the", "-n", "40",
                                             "--repetition-penalty", "1.2"}));
}

TEST_F(Batch, GivesWhatGenerateGivesHoweverItIsRun) {
  for (const Arguments& how : {Arguments{},
                               {"--max-tokens-per-step", "3", "--scheduler", "prefill_first"},
                               {"--block-size", "4", "--blocks", "14"},
                               {"--prefix-cache", "off", "--threads", "1"},
                               {"--prefix-cache", "on", "--block-size", "1"}}) {
    std::filesystem::remove(output());
    const CommandResult result = run(kThree, how);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(result.err.starts_with("3 requests done, 0 of them with an error, 0 skipped; "))
        << result.err;
    EXPECT_EQ(result.out, "");
    expect_the_three(results());
  }
}

TEST_F(Batch, JsonGivesTheFiguresOfTheEnd) {
  const CommandResult result = run(kThree, {"--json"});
  const Json json = parse_json(result.out, "the output");
  EXPECT_EQ(json.at("done"), 3);
  EXPECT_EQ(json.at("errors"), 0);
  int64_t prompt = 0, made = 0;
  for (const Json& line : lines()) {
    prompt += line.at("prompt_tokens").get<int64_t>();
    made += line.at("new_tokens").get<int64_t>();
  }
  EXPECT_EQ(json.at("prompt_tokens"), prompt);
  EXPECT_EQ(json.at("new_tokens"), made);
}

TEST_F(Batch, SamplesOfOnePromptAreChoicesWithSeedsThatFollowEachOther) {
  run(R"({"id": 1, "prompt": "To be", "n": 3, "max_new_tokens": 12, "temperature": 1, "seed": 4})");
  const Json result = results().at("1");
  ASSERT_EQ(result.at("choices").size(), 3u);
  EXPECT_FALSE(result.contains("text"));
  int64_t made = 0;
  for (int i = 0; i < 3; ++i) {
    const Json alone = generate(
        {"-p", "To be", "-n", "12", "--temperature", "1", "--seed", std::to_string(4 + i)});
    const Json& choice = result.at("choices").at(static_cast<size_t>(i));
    EXPECT_EQ(choice.at("output_ids"), alone.at("output_ids"));
    EXPECT_EQ(choice.at("text"), alone.at("text"));
    made += alone.at("timing").at("new_tokens").get<int64_t>();
  }
  EXPECT_EQ(result.at("new_tokens"), made);
}

TEST_F(Batch, ARestartRunsWhatIsMissingAndCutsATornLine) {
  run(kThree);
  const auto all = results();
  const std::string whole = text();
  const std::string first = whole.substr(0, whole.find('\n') + 1);
  for (const std::string& torn :
       {std::string(), std::string("{"), whole.substr(first.size(), 30)}) {
    folder_.write("out.jsonl", first + torn);
    const CommandResult result = run(kThree);
    EXPECT_EQ(result.code, 0);
    EXPECT_TRUE(result.err.starts_with("2 requests done, 0 of them with an error, 1 skipped; "))
        << result.err;
    EXPECT_TRUE(text().starts_with(first));
    EXPECT_EQ(results(), all);
  }
  const std::string before = text();
  EXPECT_TRUE(run(kThree).err.starts_with("0 requests done, 0 of them with an error, 3 skipped; "));
  EXPECT_EQ(text(), before);
}

TEST_F(Batch, BadLinesGiveErrorsAndStopNoOther) {
  const std::string requests = "nonsense\n" + kThree +
                               R"({"id": 1, "prompt": "again"}
{"id": 7, "prompt": "x", "prompt_ids": [1]}
{"id": 8, "prompt": "x", "tmperature": 1}
{"id": 9, "prompt_ids": [2048]}
{"prompt": "x"}
{"id": 10, "prompt_ids": [1, 2, 3], "max_new_tokens": 100000}
{"id": 11, "prompt_ids": [1], "max_new_tokens": 0}
)";
  const CommandResult result = run(requests, {"--blocks", "8"});
  EXPECT_EQ(result.code, 0);
  EXPECT_TRUE(result.err.starts_with("11 requests done, 7 of them with an error, 0 skipped; "))
      << result.err;
  auto found = results();
  const auto expect_error = [&](const char* id, const std::string& error) {
    ASSERT_TRUE(found.contains(id)) << id;
    EXPECT_NE(found.at(id).at("error").get<std::string>().find(error), std::string::npos)
        << found.at(id);
    EXPECT_EQ(found.at(id).size(), 2u) << "id and error";
    found.erase(id);
  };
  expect_error("\"line 1\"", "not valid JSON");
  expect_error("\"line 5\"", "id 1 is that of line 2 already");
  expect_error("7", "either prompt or prompt_ids");
  expect_error("8", "tmperature");
  expect_error("9", "prompt id 2048 is outside");
  expect_error("\"line 9\"", "needs an id");
  expect_error("10", "but the pool has 32");
  EXPECT_EQ(found.at("11").at("new_tokens"), 0);
  found.erase("11");
  expect_the_three(found);
  EXPECT_TRUE(run(requests, {"--blocks", "8"}).err.starts_with("0 requests done")) << "all skipped";
}

TEST_F(Batch, MoreRequestsThanThePoolHoldsAllEnd) {
  std::string requests;
  for (int i = 0; i < 300; ++i) {
    requests += str("{\"id\": ", i, ", \"prompt_ids\": [1, ", i + 3,
                    "], \"max_new_tokens\": ", 5 + i % 20, ", \"priority\": ", i % 3, "}\n");
  }
  const CommandResult result = run(requests, {"--block-size", "4", "--blocks", "12", "--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const auto found = results();
  ASSERT_EQ(found.size(), 300u);
  for (const int i : {0, 57, 299}) {
    expect_same(found.at(std::to_string(i)),
                generate({"--prompt-ids", str("1,", i + 3), "-n", std::to_string(5 + i % 20)}));
  }
}

TEST_F(Batch, RequestsThatBeginAlikeFindTheBeginningCached) {
  std::string requests;
  for (int i = 0; i < 4; ++i)
    requests += str("{\"id\": ", i, ", \"prompt_ids\": [1, 7, 8, 9, 10, 11, 12, 13, 14, ", 20 + i,
                    "], \"max_new_tokens\": 3}\n");
  const auto hits = [&](const Arguments& more) {
    std::filesystem::remove(output());
    Arguments all = {"--block-size", "4", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return parse_json(run(requests, all).out, "the output").at("prefix_hit_tokens");
  };
  EXPECT_EQ(hits({}), 3 * 8) << "on unless it is turned off";
  EXPECT_EQ(hits({"--prefix-cache", "off"}), 0);
}

TEST_F(Batch, GuessesChangeNoTokenAndSaveSteps) {
  const std::string repeated =
      R"({"id": 1, "prompt": "To be, or not to be, or not to be, or not", "max_new_tokens": 40})";
  const Json plain = parse_json(run(repeated, {"--json"}).out, "the output");
  const auto expected = results();
  std::filesystem::remove(output());
  const Json guessed =
      parse_json(run(repeated, {"--json", "--prompt-lookup", "6"}).out, "the output");
  EXPECT_EQ(results(), expected);
  EXPECT_GT(guessed.at("accepted_tokens"), 0);
  EXPECT_EQ(guessed.at("steps").get<int64_t>() + guessed.at("accepted_tokens").get<int64_t>(),
            plain.at("steps").get<int64_t>());

  // A request may ask for it alone, and for none.
  const auto steps_of = [&](const std::string& setting, const Arguments& more) {
    std::filesystem::remove(output());
    std::string request = repeated;
    request.insert(request.size() - 1, setting);
    Arguments all = more;
    all.emplace_back("--json");
    return parse_json(run(request, all).out, "the output").at("steps");
  };
  EXPECT_EQ(steps_of(R"(, "prompt_lookup_num_tokens": 6)", {}), guessed.at("steps"));
  EXPECT_EQ(steps_of(R"(, "prompt_lookup_num_tokens": 0)", {"--prompt-lookup", "6"}),
            plain.at("steps"));
}

TEST_F(Batch, PrefixesOfOneRunAreFoundByTheNext) {
  const Arguments with = {"--prefix-folder", path("kept/prefixes"), "--block-size", "4", "--json"};
  const auto hits = [&] {
    std::filesystem::remove(output());
    return parse_json(run(kThree, with).out, "the output").at("prefix_hit_tokens").get<int64_t>();
  };
  EXPECT_EQ(hits(), 0);
  expect_the_three(results());
  EXPECT_GT(hits(), 0);
  expect_the_three(results());

  // A damaged file is said, passed over, and replaced.
  const auto file = std::filesystem::directory_iterator(path("kept/prefixes"))->path();
  folder_.write("kept/prefixes/" + file.filename().string(), read_file(file) + "x");
  std::filesystem::remove(output());
  const CommandResult damaged = run(kThree, with);
  EXPECT_EQ(damaged.code, 0);
  EXPECT_TRUE(damaged.err.starts_with("note: ")) << damaged.err;
  EXPECT_NE(damaged.err.find("; going on without it\n"), std::string::npos) << damaged.err;
  expect_the_three(results());
  EXPECT_GT(hits(), 0);
}

TEST_F(Batch, QuantizedBlocksCanBeChosen) {
  const CommandResult result =
      run(kThree, {"--cache-config", R"({"quantized": {"nbits": 8}})", "--blocks", "16"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(results().size(), 3u);
}

TEST_F(Batch, WrongFlagsAreOneLineAndWriteNothing) {
  const auto refused = [&](const Arguments& more, const std::string& error) {
    const CommandResult result = run(kThree, more);
    EXPECT_EQ(result.code, 2) << error;
    EXPECT_NE(result.err.find(error), std::string::npos) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << result.err;
    EXPECT_FALSE(std::filesystem::exists(output()));
  };
  refused({"--nonsense"}, "--nonsense");
  refused({"--prefix-cache", "maybe"}, "neither on nor off");
  refused({"--scheduler", "lifo"}, "there are: fifo, prefill_first");
  refused({"--cache", "dynamic"}, "share the cache \"paged\"");
  refused({"--blocks", "0"}, "--blocks 0 must be at least 1");
  refused({"--block-size", "257"}, "block_size 257 must be 1 to 256");
  refused({"--blocks", "4", "--cache-config", R"({"num_blocks": 3})"}, "say the same");
  refused({"--max-tokens-per-step", "0"}, "--max-tokens-per-step 0");
  refused({"-n", "-1"}, "-n -1 must be 0 to");
  refused({"--prompt-lookup", "-1"}, "--prompt-lookup -1 must be 0 to");
  refused({"--prefix-folder", path("in.jsonl")}, "--prefix-folder ");
  refused({"--prefix-folder", path("kept"), "--prefix-cache", "off"}, "cannot be used with");
  EXPECT_EQ(run_larder({"batch", "-m", toy_folder("toy-llama"), "--input", path("absent"),
                        "--output", output()})
                .code,
            2);
}

TEST_F(Batch, AFileThatHoldsNoResultsIsLeftAlone) {
  for (const std::string& other :
       {kThree, std::string("a poem\n"), std::string("no end of line")}) {
    folder_.write("out.jsonl", other);
    const CommandResult result = run(kThree);
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(result.err.find("line 1 is no result"), std::string::npos) << result.err;
    EXPECT_EQ(text(), other);
  }
}

TEST_F(Batch, TwoProcessesDoNotAddToOneFile) {
  const tools::BatchResults other(output());
  const CommandResult result = run(kThree);
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("another larder batch"), std::string::npos) << result.err;
}

// In a process of its own, which gets the signal when the first result is there.
[[noreturn]] void run_interrupted(const Arguments& arguments, const std::string& output) {
  std::thread([output] {
    while (std::ifstream(output).peek() == EOF) std::this_thread::yield();
    kill(getpid(), SIGINT);
  }).detach();
  std::vector<const char*> argv = {"larder"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::_Exit(tools::run_command(static_cast<int>(argv.size()), argv.data()));
}

TEST_F(Batch, CtrlCLeavesWholeResultsAndTheNextRunGoesOn) {
  if (kSanitized) GTEST_SKIP() << "a fork with threads";
  std::string requests;
  for (int i = 0; i < 400; ++i)
    requests +=
        str("{\"id\": ", i, ", \"prompt_ids\": [1, ", i + 3, "], \"max_new_tokens\": 60}\n");
  folder_.write("in.jsonl", requests);
  const Arguments arguments = {
      "batch", "-m", toy_folder("toy-llama"), "--input", path("in.jsonl"), "--output", output()};
  EXPECT_EXIT(run_interrupted(arguments, output()), testing::ExitedWithCode(tools::kInterrupted),
              "");
  const auto some = results();
  EXPECT_GT(some.size(), 0u);
  EXPECT_LT(some.size(), 400u);
  EXPECT_TRUE(text().ends_with("\n"));
  const CommandResult rest = run(requests);
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(rest.err.starts_with(str(
      400 - some.size(), " requests done, 0 of them with an error, ", some.size(), " skipped; ")))
      << rest.err;
  EXPECT_EQ(results().size(), 400u);
}

}  // namespace
}  // namespace larder::test
