// larder generate: text from a checkpoint.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/generate/text_stream.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"

namespace larder::tools {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Flags {
  ModelFlags model;
  std::string prompt, prompt_file, prompt_ids;
  int64_t max_new_tokens = 128;
  SamplingParams sampling;
  std::vector<std::string> stop;
  bool ignore_eos = false, json = false;
  CLI::Option *has_prompt = nullptr, *has_file = nullptr, *has_ids = nullptr;
  std::vector<CLI::Option*> sampling_flags;
};

void add_sampling(CLI::App& app, Flags& flags) {
  SamplingParams& s = flags.sampling;
  flags.sampling_flags = {
      add_number(app, "--temperature", s.temperature, "Sample at this temperature; 0 is greedy"),
      add_number(app, "--top-k", s.top_k, "Sample among the k best; 0 is off"),
      add_number(app, "--top-p", s.top_p, "Sample among the likeliest that sum to p"),
      add_number(app, "--min-p", s.min_p,
                 "Sample among those at least min_p as likely as the best"),
  };
  add_number(app, "--seed", s.seed,
             "Seed of sampling; the same seed gives the same text (default 0)");
  add_number(app, "--repetition-penalty", s.repetition_penalty,
             "Above 1 makes seen tokens less likely");
  add_number(app, "--no-repeat-ngram-size", s.no_repeat_ngram_size,
             "No n-gram of this size twice; 0 is off");
  add_number(app, "--min-new-tokens", s.min_new_tokens, "No end before this many new tokens");
}

// A run has a prompt of one kind; what is wrong with the flags shows before the model is read.
void check(const Flags& flags) {
  const size_t given = flags.has_prompt->count() + flags.has_file->count() + flags.has_ids->count();
  if (given != 1) fail("give one prompt: -p TEXT, --prompt-file FILE or --prompt-ids 1,2,3");
  if (flags.max_new_tokens < 0) fail("-n ", flags.max_new_tokens, " must not be negative");
  validate(flags.sampling);
}

std::optional<Tokenizer> find_tokenizer(const Flags& flags) {
  const fs::path file = fs::path(flags.model.model) / "tokenizer.json";
  if (flags.has_ids->count() > 0 && !fs::exists(file)) return std::nullopt;
  return Tokenizer::load(file);
}

std::vector<int32_t> prompt_ids(const Flags& flags, const std::optional<Tokenizer>& tokenizer) {
  if (flags.has_ids->count() > 0) return parse_list<int32_t>("--prompt-ids", flags.prompt_ids);
  return tokenizer->encode(
      flags.has_file->count() > 0 ? read_file(flags.prompt_file) : flags.prompt, true);
}

struct Seconds {
  double load = 0, prefill = 0, decode = 0;
};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

// Runs to the end; prefill ends with the first new token, which it gives.
void run_timed(Generation& generation, Seconds& seconds) {
  auto start = Clock::now();
  bool more = true;
  while (more && !generation.prefilled()) more = generation.step();
  seconds.prefill = since(start);
  start = Clock::now();
  while (more) more = generation.step();
  seconds.decode = since(start);
}

Json report(const Generation& generation, const Seconds& seconds, const LoadedModel& loaded) {
  const Result& result = generation.result(0);
  const int64_t decoded = std::max<int64_t>(generation.new_tokens() - 1, 0);
  const ModelInfo& info = loaded.model()->info();
  const TrackingAllocator& memory = loaded.memory();
  return {{"prompt_ids", generation.prompt_ids(0)},
          {"output_ids", result.output_ids},
          {"text", result.text},
          {"finish_reason", finish_reason_name(result.finish_reason)},
          {"timing",
           {{"load_seconds", seconds.load},
            {"prompt_tokens", generation.prompt_tokens()},
            {"prefill_seconds", seconds.prefill},
            {"prefill_tokens_per_second", rate(generation.prompt_tokens_fed(), seconds.prefill)},
            {"new_tokens", generation.new_tokens()},
            {"decode_seconds", seconds.decode},
            {"decode_tokens_per_second", rate(decoded, seconds.decode)}}},
          {"memory",
           {{"mapped_weight_bytes", info.mapped_weight_bytes},
            {"converted_weight_bytes", info.converted_weight_bytes},
            {"kv_bytes", memory.of("kv").peak},
            {"scratch_bytes", memory.of("scratch").peak},
            {"allocator_peak_bytes", memory.total().peak},
            {"peak_resident_bytes", peak_resident_bytes()}}}};
}

std::string figures(const Json& report) {
  const Json& timing = report.at("timing");
  const Json& memory = report.at("memory");
  return str(timing.at("prompt_tokens").get<int64_t>(), " prompt tokens, prefill ",
             fixed(timing.at("prefill_tokens_per_second"), 1), " tokens/s, ",
             timing.at("new_tokens").get<int64_t>(), " new tokens, decode ",
             fixed(timing.at("decode_tokens_per_second"), 1), " tokens/s, KV ",
             human_bytes(memory.at("kv_bytes").get<double>()), ", peak memory ",
             human_bytes(memory.at("peak_resident_bytes").get<double>()));
}

// A row has no more places (and a model may have no limit).
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

int run(Flags& flags) {
  check(flags);
  for (const CLI::Option* flag : flags.sampling_flags)
    flags.sampling.do_sample |= flag->count() > 0;
  catch_interrupts();
  Seconds seconds;
  const auto start = Clock::now();
  LoadedModel loaded(flags.model);
  const std::optional<Tokenizer> tokenizer = find_tokenizer(flags);
  Request request{
      prompt_ids(flags, tokenizer), flags.max_new_tokens, flags.sampling, {}, flags.stop};
  if (!flags.ignore_eos) {
    for (const int64_t id : loaded.model()->info().eos_token_ids)
      request.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  const auto prompt = static_cast<int64_t>(std::max<size_t>(request.prompt_ids.size(), 1));
  const int64_t context = loaded.model()->info().max_position_embeddings;
  const int64_t needed = prompt + std::min({flags.max_new_tokens, context, kMostTokens - prompt});
  const std::unique_ptr<Session> session = loaded.session(needed);
  seconds.load = since(start);

  GenerationOptions options;
  options.interrupted = interrupted;
  if (tokenizer) options.make_text = stream_text(*tokenizer);
  if (!flags.json) {
    options.on_token = [&](const TokenEvent& event) {
      if (tokenizer)
        std::cout << event.text << std::flush;
      else if (event.id >= 0)
        std::cout << event.id << ' ' << std::flush;
      return true;
    };
  }
  Generation generation(*session, {std::move(request)}, std::move(options));
  run_timed(generation, seconds);
  const Json result = report(generation, seconds, loaded);
  if (flags.json) {
    std::cout << result.dump(2) << std::endl;
  } else {
    std::cout << std::endl;
    std::cerr << figures(result) << std::endl;
  }
  return interrupted() ? kInterrupted : 0;
}

}  // namespace

void add_generate(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app = *parent.add_subcommand("generate", "Generate text from a checkpoint");
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(app);
  flags->has_prompt = app.add_option("-p,--prompt", flags->prompt, "The prompt")->type_name("TEXT");
  flags->has_file =
      app.add_option("--prompt-file", flags->prompt_file, "A file that holds the prompt")
          ->type_name("FILE");
  flags->has_ids = app.add_option("--prompt-ids", flags->prompt_ids, "The prompt as token ids")
                       ->type_name("N,N,...");
  add_number(app, "-n,--max-new-tokens", flags->max_new_tokens, "New tokens at most (default 128)");
  add_sampling(app, *flags);
  app.add_option("--stop", flags->stop, "End before this text; may be given several times")
      ->type_name("TEXT");
  app.add_flag("--ignore-eos", flags->ignore_eos, "Go on after an end token");
  app.add_flag("--json", flags->json, "One JSON object: ids, text, finish_reason, timing, memory");
  app.footer(
      "Greedy unless a sampling flag is given. The text goes to stdout, a line of figures to "
      "stderr.\n\n"
      "Example:\n  larder generate -m models/toy/toy-llama -p 'To be, or not' -n 60 --temperature "
      "0.8 --top-p 0.9 --seed 1");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
