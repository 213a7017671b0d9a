// larder bench: tokens a second, in llama-bench's terms.
#include <chrono>
#include <ctime>
#include <iostream>
#include <thread>

#include "larder/base/json.h"
#include "tools/bench_batched.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"
#include "tools/read_speed.h"
#include "tools/speed_run.h"

namespace larder::tools {
namespace {

struct Flags {
  ModelFlags model;
  std::vector<int64_t> n_prompt = {512}, n_gen = {64}, n_depth = {0};
  int repetitions = 5;
  std::string output = "table";
  BatchedBench batched;
  bool is_batched = false;
  CLI::Option *has_depth = nullptr, *has_repetitions = nullptr;
  std::vector<CLI::Option*> of_batched;  // those that say nothing without --batched
};

// One line of the result: n_prompt tokens after n_depth, or n_gen tokens one by one after n_depth.
struct Test {
  int64_t n_prompt, n_gen, n_depth;
  int64_t tokens() const { return n_prompt + n_gen; }
  std::string name() const {
    return str(n_prompt > 0 ? str("pp", n_prompt) : str("tg", n_gen),
               n_depth > 0 ? str(" @ d", n_depth) : "");
  }
};

void check(const Flags& flags) {
  for (const auto& [name, list] :
       {std::pair{"-p", flags.n_prompt}, {"-n", flags.n_gen}, {"-d", flags.n_depth}}) {
    for (const int64_t n : list) {
      if (n < 0 || n > INT32_MAX) fail(name, " ", n, " must be 0 to ", INT32_MAX);
    }
  }
  if (flags.repetitions < 1) fail("-r ", flags.repetitions, " must be at least 1");
  if (flags.output != "table" && flags.output != "json" && flags.output != "csv") {
    fail("-o ", in_quotes(flags.output), " is not one of table, json, csv");
  }
}

int run_batched(Flags& flags) {
  if (flags.has_depth->count() > 0) fail("-d cannot be used with --batched; -p is the depth");
  if (flags.output == "csv") fail("-o csv cannot be used with --batched; give table or json");
  if (flags.model.has_cache->count() == 0) flags.model.cache = "paged";
  flags.batched.json = flags.output == "json";
  if (flags.has_repetitions->count() > 0) flags.batched.repetitions = flags.repetitions;
  return run_batched(flags.batched, flags.model, flags.n_prompt, flags.n_gen);
}

void refuse_without_batched(const Flags& flags) {
  for (const CLI::Option* option : flags.of_batched)
    if (option->count() > 0) fail(option->get_name(), " needs --batched");
}

std::vector<Test> plan(const Flags& flags, int64_t context) {
  std::vector<Test> tests;
  for (const int64_t depth : flags.n_depth) {
    for (const int64_t n : flags.n_prompt)
      if (n > 0) tests.push_back({n, 0, depth});
    for (const int64_t n : flags.n_gen)
      if (n > 0) tests.push_back({0, n, depth});
  }
  if (tests.empty()) fail("nothing to measure: give -p or -n above 0");
  for (const Test& test : tests) {
    if (test.n_depth + test.tokens() > context) {
      fail(test.name(), " needs ", test.n_depth + test.tokens(),
           " tokens, but the model's context (max_position_embeddings) is ", context);
    }
  }
  return tests;
}

// Nanoseconds of one run; -1 when interrupted.
int64_t time(SpeedRun& speed, const Test& test) {
  if (!speed.set_depth(test.n_depth)) return -1;
  const auto start = std::chrono::steady_clock::now();
  if (!speed.feed(test.tokens(), test.n_prompt > 0 ? SpeedRun::kChunk : 1)) return -1;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              start)
      .count();
}

// What one token reads at least: all weights, and the rows that the cache holds.
double step_bytes(const LoadedModel& loaded, const Cache& cache) {
  const ModelInfo& info = loaded.model()->info();
  const auto kept = static_cast<double>(loaded.memory().of("kv").live);
  const int64_t room = cache.max_len();
  const double full =
      room > 0 ? static_cast<double>(cache.seq_len(0)) / static_cast<double>(room) : 1;
  return static_cast<double>(info.mapped_weight_bytes + info.converted_weight_bytes) + kept * full;
}

// As llama-bench writes it: 2026-01-31T23:59:59Z.
std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ",
                &utc);  // digits only: the same in every locale
  return text;
}

// As llama-bench names it: with the weights' type.
std::string model_type(const Model& model) {
  const ModelInfo& info = model.info();
  return str(info.model_type, " ",
             info.weights == WeightFormat::kStored ? dtype_name(model.dtype())
                                                   : weight_format_name(info.weights));
}

// The runs of one test.
struct Samples {
  std::vector<int64_t> ns;
  std::vector<double> read_speed;  // bytes a second, beside each run of a decode test
  double step_bytes = 0;
};

// Of what the memory would allow: bytes a token over bytes a second. Null for a prefill.
Json read_fields(const Samples& samples, double tokens_per_second) {
  if (samples.read_speed.empty())
    return {{"step_bytes", nullptr}, {"read_speed", nullptr}, {"of_read_speed", nullptr}};
  const double speed = median(samples.read_speed);
  return {{"step_bytes", static_cast<int64_t>(samples.step_bytes)},
          {"read_speed", speed},
          {"of_read_speed", samples.step_bytes * tokens_per_second / speed}};
}

Json result_of(const Test& test, const Flags& flags, const LoadedModel& loaded, Session& session,
               const Samples& samples) {
  std::vector<double> ns, ts;
  for (const int64_t sample : samples.ns) {
    ns.push_back(static_cast<double>(sample));
    ts.push_back(static_cast<double>(test.tokens()) * 1e9 / static_cast<double>(sample));
  }
  const Model& model = *loaded.model();
  const std::string kv(dtype_name(session.cache().kv(0).dtype()));
  Json result = {
      {"model_filename", flags.model.model},
      {"model_type", model_type(model)},
      {"model_size", model.info().mapped_weight_bytes + model.info().converted_weight_bytes},
      {"model_n_params", model.info().num_parameters},
      {"backends", "CPU"},
      {"test_time", utc_now()},
      {"kernels", session.exec().kernels.name},
      {"cache", flags.model.cache},
      {"attention", flags.model.attention},
      {"n_batch", SpeedRun::kChunk},
      {"n_ubatch", SpeedRun::kChunk},
      {"n_threads", session.exec().threads.size()},
      {"type_k", kv},
      {"type_v", kv},
      {"n_prompt", test.n_prompt},
      {"n_gen", test.n_gen},
      {"n_depth", test.n_depth},
      {"avg_ns", static_cast<int64_t>(median(ns))},
      {"stddev_ns", static_cast<int64_t>(deviation(ns))},
      {"avg_ts", median(ts)},
      {"stddev_ts", deviation(ts)},
      {"samples_ns", samples.ns},
      {"samples_ts", ts}};
  result.update(read_fields(samples, median(ts)));
  return result;
}

std::string of_read_speed(const Json& row) {
  const Json& share = row.at("of_read_speed");
  return share.is_null() ? "" : str(fixed(100 * share.get<double>(), 0), " %");
}

void print(const std::string& output, const Json& results, const std::vector<Test>& tests) {
  if (output == "json") {
    std::cout << results.dump(2) << std::endl;
    return;
  }
  if (output == "csv") {
    bool head = true;
    for (const Json& row : results) {
      std::vector<std::string> names, values;
      for (const auto& [name, value] : row.items()) {
        if (value.is_array()) continue;
        names.push_back(name);
        values.push_back(value.dump());
      }
      if (head) std::cout << join(names, ",") << "\n";
      head = false;
      std::cout << join(values, ",") << "\n";
    }
    std::cout << std::flush;
    return;
  }
  std::cout << "| model | cache | kv | threads | kernels | test | t/s (median) "
               "| of read speed |\n|---|---|---|---:|---|---:|---:|---:|\n";
  for (size_t i = 0; i < tests.size(); ++i) {
    const Json& row = results[i];
    std::cout << str(
        "| ", row["model_type"].get<std::string>(), " | ", row["cache"].get<std::string>(), " | ",
        row["type_k"].get<std::string>(), " | ", row["n_threads"].get<int64_t>(), " | ",
        row["kernels"].get<std::string>(), " | ", tests[i].name(), " | ", fixed(row["avg_ts"], 2),
        " ± ", fixed(row["stddev_ts"], 2), " | ", of_read_speed(row), " |\n");
  }
  std::cout << std::flush;
}

int run(Flags& flags) {
  check(flags);
  if (flags.is_batched) return run_batched(flags);
  refuse_without_batched(flags);
  catch_interrupts();
  LoadedModel loaded(flags.model);
  const std::vector<Test> tests = plan(flags, loaded.model()->info().max_position_embeddings);
  int64_t longest = 0;
  for (const Test& test : tests) longest = std::max(longest, test.n_depth + test.tokens());
  const auto session = loaded.session(longest);
  SpeedRun speed(*session);
  ReadSpeed reads(flags.model.model);
  Json results = Json::array();
  for (const Test& test : tests) {
    Samples samples;
    for (int run = 0; run <= flags.repetitions; ++run) {  // the first one warms up
      const int64_t ns = time(speed, test);
      if (ns < 0) return kInterrupted;
      const double read = test.n_gen > 0 ? reads.measure(session->exec().threads) : 0;
      if (run == 0) continue;
      samples.ns.push_back(ns);
      if (read > 0) samples.read_speed.push_back(read);
    }
    samples.step_bytes = step_bytes(loaded, session->cache());
    results.push_back(result_of(test, flags, loaded, *session, samples));
  }
  print(flags.output, results, tests);
  return 0;
}

void add_batched(CLI::App& app, Flags& flags) {
  app.add_flag("--batched", flags.is_batched,
               "Several sequences at once over the paged cache, in llama-batched-bench's terms: a "
               "table, or a JSON object a line");
  flags.of_batched = {
      add_list(app, "-b,--sequences", flags.batched.sequences,
               "With --batched: sequences at once (default 1,4,8,16,32)"),
      add_number(app, "--shared-prefix", flags.batched.shared_prefix,
                 "With --batched: prompt tokens that all sequences begin with (default 0)"),
  };
  const std::vector<CLI::Option*> of_engine = flags.batched.engine.add_to(app);
  flags.of_batched.insert(flags.of_batched.end(), of_engine.begin(), of_engine.end());
}

}  // namespace

void add_bench(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app =
      *parent.add_subcommand("bench", "Measure prefill and decode speed, in llama-bench's terms");
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(app);
  add_list(app, "-p,--n-prompt", flags->n_prompt,
           "Prompt tokens to prefill after the depth (default 512; 0 leaves it out)");
  add_list(app, "-n,--n-gen", flags->n_gen,
           "Tokens to decode one by one after the depth (default 64; 0 leaves it out)");
  flags->has_depth =
      add_list(app, "-d,--n-depth", flags->n_depth, "Tokens in the cache before (default 0)");
  flags->has_repetitions =
      add_number(app, "-r,--repetitions", flags->repetitions,
                 "Timed runs of each test, after one to warm up (default 5; 1 with --batched)");
  app.add_option("-o,--output", flags->output, "table, json or csv")->capture_default_str();
  app.add_flag_callback(
      "--json", [flags] { flags->output = "json"; }, "The same as -o json");
  add_batched(app, *flags);
  app.footer(
      "avg_ts is the median of the runs. \"of read speed\" is how much of the memory's own speed a "
      "decode reaches: weights and cache, read once a token, beside a bare read of the weights by "
      "the same threads.\n\nExample:\n  larder bench -m models/smollm2 -p 512 -n "
      "64 -d 0,4096 --threads 2 -o json\n  larder bench -m models/smollm2 --batched -p 128 -n 64 "
      "-b "
      "1,4,8,16,32");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
