// The subcommands that need a model, as a user meets them.
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <locale>

#include "larder/base/json.h"
#include "tests/support/command_run.h"
#include "tests/support/logits_run.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

using Arguments = std::vector<std::string>;

Json json_of(const Arguments& arguments) {
  const CommandResult result = run_larder(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return parse_json(result.out, "the output");
}

Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

const Arguments kGenerate = {
    "generate", "-m", toy_folder("toy-llama"), "-p", "HAMLET.\nTo be, or not to be,", "-n", "20"};

TEST(Command, HelpOfEverySubcommandShowsAnExample) {
  for (const char* name :
       {"generate", "batch", "bench", "score", "inspect", "convert", "profile", "plan", "top"}) {
    const CommandResult result = run_larder({name, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_NE(result.out.find(str("Example:\n  larder ", name)), std::string::npos) << result.out;
    EXPECT_TRUE(result.out.ends_with("\n"));
  }
  const std::string version = run_larder({"--version"}).out;
  EXPECT_TRUE(version.starts_with("larder ") && version.ends_with("\n")) << version;
}

TEST(Command, WithoutASubcommandItSaysWhatIsMissing) {
  const CommandResult result = run_larder({});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(result.err.starts_with("larder: ")) << result.err;
}

TEST(Command, AnUnknownSubcommandIsNamed) {
  const CommandResult result = run_larder({"serve"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(result.err.starts_with(
      "larder: unknown subcommand \"serve\"; there are: generate, batch, bench, score, "))
      << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

TEST(Generate, StreamsTheTextAndEndsWithFigures) {
  const CommandResult result = run_larder(kGenerate);
  EXPECT_EQ(result.out, " and I will not.\n\n[Exeunt.]\n");
  for (const char* figure : {"14 prompt tokens, prefill ", "11 new tokens, decode ",
                             "tokens/s, KV 65.5 kB, peak memory "}) {
    EXPECT_NE(result.err.find(figure), std::string::npos) << result.err;
  }
}

TEST(Generate, JsonHoldsIdsTextReasonTimingAndMemory) {
  const Json json = json_of(with(kGenerate, {"--json", "--cache", "static"}));
  EXPECT_EQ(json.at("prompt_ids").size(), 14u);
  EXPECT_EQ(json.at("output_ids").size(), 11u);
  EXPECT_EQ(json.at("text"), " and I will not.\n\n[Exeunt.]");
  EXPECT_EQ(json.at("finish_reason"), "stop");
  // 14 + 20 tokens, 2 kv heads of 32 channels, K and V, bf16, 4 layers.
  EXPECT_EQ(json.at("memory").at("kv_bytes"), 34 * 2 * 32 * 2 * 2 * 4);
  EXPECT_GT(json.at("timing").at("decode_tokens_per_second").get<double>(), 0);
  EXPECT_EQ(json_of(with(kGenerate, {"--json", "--cache", "static", "--cache-dtype", "f32"}))
                .at("memory")
                .at("kv_bytes"),
            34 * 2 * 32 * 2 * 4 * 4);
}

TEST(Generate, TheSameSeedGivesTheSameTextAtAnyThreadCount) {
  const Arguments sampled =
      with(kGenerate, {"--json", "--temperature", "1.2", "--top-p", "0.9", "--seed", "7"});
  const Json one = json_of(with(sampled, {"--threads", "1"}));
  EXPECT_EQ(json_of(with(sampled, {"--threads", "2"})).at("output_ids"), one.at("output_ids"));
  EXPECT_EQ(json_of(with(sampled, {"--threads", "5"})).at("output_ids"), one.at("output_ids"));
  EXPECT_NE(
      json_of(with(kGenerate, {"--json", "--temperature", "1.2", "--seed", "8"})).at("output_ids"),
      one.at("output_ids"));
}

TEST(Generate, ReadsAPromptFromAFileOrAsIds) {
  const TempFolder folder;
  const std::string file = folder.write("prompt.txt", "HAMLET.\nTo be, or not to be,").string();
  const Json expected = json_of(with(kGenerate, {"--json"}));
  EXPECT_EQ(json_of({"generate", "-m", toy_folder("toy-llama"), "--prompt-file", file, "-n", "20",
                     "--json"})
                .at("output_ids"),
            expected.at("output_ids"));
  EXPECT_EQ(json_of({"generate", "-m", toy_folder("toy-llama"), "--prompt-ids",
                     "1,1951,637,55,17,202,413,308,15,532,327,293,308,15", "-n", "20", "--json"})
                .at("text"),
            expected.at("text"));
}

TEST(Generate, NoNewTokensGiveNoText) {
  const Json json =
      json_of({"generate", "-m", toy_folder("toy-llama"), "-p", "a", "-n", "0", "--json"});
  EXPECT_TRUE(json.at("output_ids").empty());
  EXPECT_EQ(json.at("finish_reason"), "length");
}

TEST(Bench, GivesTheFieldsThatLlamaBenchGives) {
  const Json rows = json_of({"bench", "-m", toy_folder("toy-llama"), "-p", "16,32", "-n", "8", "-d",
                             "0,64", "-r", "3", "-o", "json"});
  ASSERT_EQ(rows.size(), 6u);
  for (const Json& row : rows) {
    for (const char* field :
         {"model_filename", "model_size", "model_n_params", "test_time", "n_batch", "n_threads",
          "type_k", "type_v", "n_prompt", "n_gen", "n_depth", "avg_ns", "stddev_ns", "avg_ts",
          "stddev_ts", "samples_ns", "samples_ts"}) {
      EXPECT_TRUE(row.contains(field)) << field;
    }
    ASSERT_EQ(row.at("samples_ts").size(), 3u);
    std::vector<double> samples = row.at("samples_ts").get<std::vector<double>>();
    std::sort(samples.begin(), samples.end());
    EXPECT_EQ(row.at("avg_ts").get<double>(), samples[1]);
  }
  EXPECT_EQ(rows[0].at("n_prompt"), 16);
  EXPECT_EQ(rows[5].at("n_gen"), 8);
  EXPECT_EQ(rows[5].at("n_depth"), 64);
  EXPECT_TRUE(rows[0].at("of_read_speed").is_null());  // a prefill is not bound by memory
  const double share = rows[5].at("step_bytes").get<double>() * rows[5].at("avg_ts").get<double>() /
                       rows[5].at("read_speed").get<double>();
  EXPECT_DOUBLE_EQ(rows[5].at("of_read_speed").get<double>(), share);
  EXPECT_GT(rows[5].at("step_bytes").get<int64_t>(), rows[5].at("model_size").get<int64_t>());
}

TEST(Bench, PrintsATableOrCsvAndRefusesWhatPassesTheContext) {
  const Arguments quick = {"bench", "-m", toy_folder("toy-llama"), "-p", "8", "-n", "4", "-r", "1"};
  EXPECT_NE(run_larder(quick).out.find("| pp8 |"), std::string::npos);
  const std::string csv = run_larder(with(quick, {"-o", "csv"})).out;
  EXPECT_TRUE(csv.starts_with("model_filename,")) << csv;
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  const CommandResult past =
      run_larder({"bench", "-m", toy_folder("toy-llama"), "-p", "0", "-n", "8", "-d", "2041"});
  EXPECT_EQ(past.code, 2);
  EXPECT_NE(past.err.find("2049 tokens"), std::string::npos) << past.err;
  EXPECT_EQ(run_larder({"bench", "-m", toy_folder("toy-llama"), "-r", "0"}).code, 2);
}

TEST(Score, GivesTheLikelihoodOfAText) {
  const TempFolder folder;
  const std::string file =
      folder.write("text.txt", "To be, or not to be, that is the question.").string();
  const Json json = json_of({"score", "-m", toy_folder("toy-llama"), file, "--json"});
  EXPECT_EQ(json.at("scored_tokens").get<int>() + 1, json.at("tokens").get<int>());
  EXPECT_NEAR(std::log(json.at("perplexity").get<double>()), json.at("mean_nll").get<double>(),
              1e-9);
  EXPECT_LT(json.at("mean_nll").get<double>(), 5.0)
      << "better than chance, which is " << std::log(2048);
  EXPECT_EQ(run_larder({"score", "-m", toy_folder("toy-llama"), (folder / "absent").string()}).code,
            2);
  EXPECT_EQ(
      run_larder({"score", "-m", toy_folder("toy-llama"), folder.write("empty.txt", "").string()})
          .code,
      2);
}

// A decimal comma and grouped thousands, as a host program may have set them.
struct Commas : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Case37, AnotherLocaleChangesNoByteOfTheResult) {
  const Arguments sampled =
      with(kGenerate, {"--json", "--temperature", "0.7", "--top-p", "0.95", "--seed", "3"});
  const Json plain = json_of(sampled);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Commas));
  const std::string c_before = std::setlocale(LC_ALL, nullptr);
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where the machine has it
  const CommandResult elsewhere = run_larder(sampled);
  const CommandResult figures = run_larder(kGenerate);
  std::setlocale(LC_ALL, c_before.c_str());
  std::locale::global(before);
  const Json json = parse_json(elsewhere.out, "the output");
  for (const char* key : {"prompt_ids", "output_ids", "text"})
    EXPECT_EQ(json.at(key), plain.at(key));
  EXPECT_NE(figures.err.find("KV 65.5 kB"), std::string::npos) << figures.err;
}

}  // namespace
}  // namespace larder::test
