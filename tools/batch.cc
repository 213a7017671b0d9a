// larder batch: a file of requests over one engine.
#include <filesystem>
#include <fstream>
#include <iostream>

#include "larder/generate/text_stream.h"
#include "tools/batch_events.h"
#include "tools/batch_run.h"
#include "tools/command.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"
#include "tools/numbers.h"
#include "tools/prefix_folder.h"

namespace larder::tools {
namespace {

// Of a pool whose size nobody gave: some dozens of usual requests.
constexpr int64_t kPoolTokens = 16384;

struct Flags {
  ModelFlags model;
  EngineFlags engine;
  std::string input, output, prefix_folder, event_log;
  int64_t prompt_lookup = 0;
  bool top = false;
  int64_t max_new_tokens = BatchDefaults().max_new_tokens;
  bool json = false;
};

std::ifstream open_input(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path))
    fail_as(ErrorKind::kIo, "--input ", in_quotes(path), " cannot be read");
  return file;
}

// For the progress bar; nobody waits for it where there is none.
int64_t count_lines(const std::string& path) {
  if (!ProgressBar::wanted() || !std::filesystem::is_regular_file(path)) return 0;
  std::ifstream file = open_input(path);
  int64_t lines = 0;
  for (std::string text; std::getline(file, text);) lines += text.empty() ? 0 : 1;
  return lines;
}

std::optional<Tokenizer> find_tokenizer(const std::string& folder) {
  const auto file = std::filesystem::path(folder) / "tokenizer.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  return Tokenizer::load(file);
}

Json summary(const BatchCounts& counts, const EngineStats& stats) {
  const double rate =
      stats.seconds > 0 ? static_cast<double>(counts.new_tokens) / stats.seconds : 0;
  return {{"done", counts.done},
          {"errors", counts.failed},
          {"skipped", counts.skipped},
          {"prompt_tokens", counts.prompt_tokens},
          {"new_tokens", counts.new_tokens},
          {"seconds", stats.seconds},
          {"new_tokens_per_second", rate},
          {"steps", stats.steps},
          {"preemptions", stats.preemptions},
          {"prefix_hit_tokens", stats.prefixes.hit_tokens},
          {"guessed_tokens", stats.guessed},
          {"accepted_tokens", stats.accepted}};
}

std::string as_line(const Json& summary) {
  const auto count = [&](const char* key) { return summary.at(key).get<int64_t>(); };
  return str(count("done"), " requests done, ", count("errors"), " of them with an error, ",
             count("skipped"), " skipped; ", count("prompt_tokens"), " prompt and ",
             count("new_tokens"), " new tokens in ", fixed(summary.at("seconds"), 1), " s, ",
             fixed(summary.at("new_tokens_per_second"), 1), " new tokens/s; ", count("preemptions"),
             " preemptions, ", count("prefix_hit_tokens"), " prompt tokens found cached");
}

void print(const Json& summary, bool json) {
  std::cerr << as_line(summary) << std::endl;
  if (json) std::cout << summary.dump(2) << std::endl;
}

BatchDefaults defaults_of(const Flags& flags, const ModelInfo& info, const Tokenizer* tokenizer) {
  BatchDefaults defaults{flags.max_new_tokens, {}, tokenizer, flags.prompt_lookup};
  for (const int64_t id : info.eos_token_ids)
    defaults.eos_token_ids.push_back(static_cast<int32_t>(id));
  return defaults;
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;  // files that are not there yet
  const auto full = [&ignored](const std::string& path) {
    return std::filesystem::absolute(path, ignored).lexically_normal();
  };
  return full(a) == full(b) || std::filesystem::equivalent(a, b, ignored);
}

void check(const Flags& flags) {
  if (flags.max_new_tokens < 0 || flags.max_new_tokens > INT32_MAX)
    fail("-n ", flags.max_new_tokens, " must be 0 to ", INT32_MAX);
  if (flags.prompt_lookup < 0 || flags.prompt_lookup > INT32_MAX)
    fail("--prompt-lookup ", flags.prompt_lookup, " must be 0 to ", INT32_MAX);
  flags.engine.check(flags.model);
  if (!flags.prefix_folder.empty() && flags.engine.prefix_cache == "off")
    fail("--prefix-folder cannot be used with --prefix-cache off");
  for (const std::string& other : {flags.input, flags.output}) {
    if (!flags.event_log.empty() && is_same_file(flags.event_log, other))
      fail("--event-log ", in_quotes(flags.event_log),
           " is a file of requests or results; give one of its own, which is replaced");
  }
  if (flags.top && !ProgressBar::wanted())
    fail(
        "--top draws on stderr, which is no terminal; write --event-log FILE, and see it with "
        "larder top --replay FILE");
}

int run(Flags flags) {
  check(flags);
  std::ifstream input = open_input(flags.input);
  std::optional<PrefixFolder> folder;
  if (!flags.prefix_folder.empty()) {
    flags.engine.prefix_cache = "on";
    folder.emplace(flags.prefix_folder, flags.model.model);
  }
  catch_interrupts();
  LoadedModel loaded(flags.model);
  const std::optional<Tokenizer> tokenizer = find_tokenizer(flags.model.model);
  EngineOptions options = flags.engine.options(loaded, kPoolTokens);
  if (tokenizer) options.make_text = stream_text(*tokenizer);
  BatchEvents events(flags.top);
  if (flags.top || !flags.event_log.empty()) options.events = &events;
  const std::unique_ptr<Engine> engine = flags.engine.make(loaded, std::move(options), true);

  BatchResults results(flags.output);
  if (!flags.event_log.empty()) events.open_log(flags.event_log);
  if (folder) folder->load(*engine);
  const BatchDefaults defaults =
      defaults_of(flags, loaded.model()->info(), tokenizer ? &*tokenizer : nullptr);
  BatchReader reader(input, defaults);
  const auto below = [&events] { return events.draw(1); };
  ProgressBar progress(count_lines(flags.input),
                       flags.top ? std::function<std::string()>(below) : nullptr);
  BatchRun run(*engine, reader, results, progress);
  const bool complete = run.run();
  progress.clear();
  if (folder) folder->save(*engine);
  print(summary(run.counts(), engine->stats()), flags.json);
  events.close();
  return complete ? 0 : kInterrupted;
}

}  // namespace

void add_batch(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app = *parent.add_subcommand("batch", "Run a file of requests over one paged cache");
  auto flags = std::make_shared<Flags>();
  flags->model.cache = "paged";
  flags->model.add_to(app);
  app.add_option("--input", flags->input,
                 "Requests, a JSON object a line; docs/batch.md has the keys")
      ->type_name("FILE")
      ->required();
  app.add_option("--output", flags->output,
                 "Results are added to this file as requests end; those that it has are not run "
                 "again")
      ->type_name("FILE")
      ->required();
  add_number(app, "-n,--max-new-tokens", flags->max_new_tokens,
             "New tokens at most of a request that does not say (default 128)");
  add_number(
      app, "--prompt-lookup", flags->prompt_lookup,
      "Guess up to N next tokens a step from the request's own text; the same tokens in fewer "
      "steps where it repeats itself (default 0: no)");
  flags->engine.add_to(app);
  app.add_option(
         "--prefix-folder", flags->prefix_folder,
         "Begin with the cached prefixes that an earlier run left here, and leave them at the "
         "end")
      ->type_name("DIR");
  app.add_option("--event-log", flags->event_log,
                 "Write what happens to requests and blocks into this file, for larder top")
      ->type_name("FILE");
  app.add_flag("--top", flags->top,
               "Draw the pool on stderr below the progress bar, as larder top does");
  app.add_flag("--json", flags->json, "The figures of the end as a JSON object on stdout too");
  app.footer(
      "A line that is wrong gives a result with `error` and stops no other. Ctrl-C ends after the "
      "step; the same command goes on from there.\n\nExample:\n  larder batch -m "
      "models/toy/toy-llama "
      "--input requests.jsonl --output results.jsonl\n  with lines such as {\"id\": 1, \"prompt\": "
      "\"To be, or not\", \"max_new_tokens\": 24}");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
