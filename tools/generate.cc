// larder generate: text from a checkpoint.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/generate/cache_ladder.h"
#include "larder/generate/text_stream.h"
#include "larder/models/origin.h"
#include "tools/command.h"
#include "tools/decoding_flags.h"
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
  DecodingFlags decoding;
  std::vector<std::string> stop;
  std::string save_cache, load_cache;
  bool ignore_eos = false, json = false, automatic = false;
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
  if (given > 1 || (given == 0 && flags.load_cache.empty()))
    fail("give one prompt: -p TEXT, --prompt-file FILE or --prompt-ids 1,2,3");
  if (!flags.save_cache.empty() && flags.max_new_tokens == 0)
    fail("--save-cache with -n 0 has nothing to save; give -n at least 1");
  if (flags.max_new_tokens < 0) fail("-n ", flags.max_new_tokens, " must not be negative");
  validate(flags.sampling);
  flags.decoding.check(flags.sampling.do_sample, !flags.stop.empty());
  if (flags.decoding.searches_beams() && !(flags.save_cache.empty() && flags.load_cache.empty()))
    fail("--num-beams cannot be combined with --save-cache or --load-cache: a file holds one row");
}

std::optional<Tokenizer> find_tokenizer(const Flags& flags) {
  const fs::path file = fs::path(flags.model.model) / "tokenizer.json";
  if (flags.has_ids->count() > 0 && !fs::exists(file)) return std::nullopt;
  return Tokenizer::load(file);
}

// The prompt's ids; behind those of a cache file, text begins without special tokens.
std::vector<int32_t> prompt_ids(const Flags& flags, const std::optional<Tokenizer>& tokenizer) {
  if (flags.has_ids->count() > 0) return parse_list<int32_t>("--prompt-ids", flags.prompt_ids);
  if (flags.has_prompt->count() + flags.has_file->count() == 0) return {};
  return tokenizer->encode(
      flags.has_file->count() > 0 ? read_file(flags.prompt_file) : flags.prompt,
      flags.load_cache.empty());
}

// Opens the cache file of --load-cache and puts its tokens before the prompt.
std::optional<CacheFile> open_cache(const Flags& flags, Request& request) {
  if (flags.load_cache.empty()) return std::nullopt;
  CacheFile file(flags.load_cache);
  if (file.tokens().size() != 1)
    fail(flags.load_cache, " holds ", file.tokens().size(), " rows, but one is wanted");
  request.prompt_ids.insert(request.prompt_ids.begin(), file.tokens()[0].begin(),
                            file.tokens()[0].end());
  return file;
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
template <class Generating>
void run_timed(Generating& generation, Seconds& seconds) {
  auto start = Clock::now();
  bool more = true;
  while (more && !generation.prefilled()) more = generation.step();
  seconds.prefill = since(start);
  start = Clock::now();
  while (more) more = generation.step();
  seconds.decode = since(start);
}

// What came of a run: one sequence, or those of a beam search.
struct Outcome {
  std::vector<int32_t> prompt_ids;
  std::vector<BeamResult> sequences;
  int64_t prompt_tokens_fed = 0, new_tokens = 0;
  bool guessed = false;
  int64_t drafted = 0, accepted = 0;
  std::vector<int32_t> ids = {};  // prompt and output, as the context holds them, of one sequence
};

Json json_of(const BeamResult& sequence) {
  return {{"output_ids", sequence.output_ids},
          {"text", sequence.text},
          {"finish_reason", finish_reason_name(sequence.finish_reason)}};
}

Json report(const Outcome& outcome, const Flags& flags, const Seconds& seconds,
            const LoadedModel& loaded) {
  const int64_t decoded = std::max<int64_t>(outcome.new_tokens - 1, 0);
  const ModelInfo& info = loaded.model()->info();
  const TrackingAllocator& memory = loaded.memory();
  Json out = json_of(outcome.sequences.at(0));
  out["prompt_ids"] = outcome.prompt_ids;
  out["timing"] = {{"load_seconds", seconds.load},
                   {"prompt_tokens", outcome.prompt_ids.size()},
                   {"prefill_seconds", seconds.prefill},
                   {"prefill_tokens_per_second", rate(outcome.prompt_tokens_fed, seconds.prefill)},
                   {"new_tokens", outcome.new_tokens},
                   {"decode_seconds", seconds.decode},
                   {"decode_tokens_per_second", rate(decoded, seconds.decode)}};
  out["memory"] = {{"mapped_weight_bytes", info.mapped_weight_bytes},
                   {"converted_weight_bytes", info.converted_weight_bytes},
                   {"kv_bytes", memory.of("kv").peak},
                   {"scratch_bytes", memory.of("scratch").peak},
                   {"allocator_peak_bytes", memory.total().peak},
                   {"peak_resident_bytes", peak_resident_bytes()}};
  if (outcome.guessed)
    out["speculation"] = {{"drafted_tokens", outcome.drafted},
                          {"accepted_tokens", outcome.accepted}};
  for (const BeamResult& sequence : outcome.sequences) {
    if (!flags.decoding.searches_beams()) break;
    out["sequences"].push_back(json_of(sequence));
    out["sequences"].back()["score"] = sequence.score;
  }
  return out;
}

std::string figures(const Json& report) {
  const Json& timing = report.at("timing");
  const Json& memory = report.at("memory");
  std::string guesses;
  if (report.contains("speculation")) {
    const Json& speculation = report.at("speculation");
    guesses = str(speculation.at("drafted_tokens").get<int64_t>(), " drafted and ",
                  speculation.at("accepted_tokens").get<int64_t>(), " accepted, ");
  }
  return str(timing.at("prompt_tokens").get<int64_t>(), " prompt tokens, prefill ",
             fixed(timing.at("prefill_tokens_per_second"), 1), " tokens/s, ",
             timing.at("new_tokens").get<int64_t>(), " new tokens, decode ",
             fixed(timing.at("decode_tokens_per_second"), 1), " tokens/s, ", guesses, "KV ",
             human_bytes(memory.at("kv_bytes").get<double>()), ", peak memory ",
             human_bytes(memory.at("peak_resident_bytes").get<double>()));
}

Request request_of(const Flags& flags, const Model& model,
                   const std::optional<Tokenizer>& tokenizer) {
  Request request{
      prompt_ids(flags, tokenizer), flags.max_new_tokens, flags.sampling, {}, flags.stop};
  if (!flags.ignore_eos) {
    for (const int64_t id : model.info().eos_token_ids)
      request.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  return request;
}

Outcome run_beams(Session& session, Request request, const BeamParams& params,
                  GenerationOptions options, Seconds& seconds) {
  BeamSearch search(session, {std::move(request)}, params, std::move(options));
  run_timed(search, seconds);
  const std::span<const BeamResult> found = search.results(0);
  return {search.prompt_ids(0),
          {found.begin(), found.end()},
          search.prompt_tokens_fed(),
          search.new_tokens()};
}

Outcome run_one(Session& session, Request request, GenerationOptions options, Seconds& seconds) {
  const bool guessed = options.drafter != nullptr;
  Generation generation(session, {std::move(request)}, std::move(options));
  run_timed(generation, seconds);
  BeamResult result;
  static_cast<Result&>(result) = generation.result(0);
  return {generation.prompt_ids(0),
          {std::move(result)},
          generation.prompt_tokens_fed(),
          generation.new_tokens(),
          guessed,
          generation.drafted_tokens(),
          generation.accepted_tokens(),
          generation.context_ids(0)};
}

// A stream of text, or of ids where there is no tokenizer.
void show(std::string_view text, std::span<const int32_t> ids, bool as_text) {
  if (as_text) std::cout << text;
  for (const int32_t id : ids)
    if (!as_text && id >= 0) std::cout << id << ' ';
  std::cout << std::flush;
}

// Found sequences are known at the end only. Several have a line with number and score before each.
void show_found(const std::vector<BeamResult>& sequences, bool as_text) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences.size() > 1) {
      std::cout << (i > 0 ? "\n\n" : "")
                << str("=== ", i + 1, " of ", sequences.size(), ", score ",
                       fixed(sequences[i].score, 4), "\n");
    }
    show(sequences[i].text, sequences[i].output_ids, as_text);
  }
}

// A row has no more places (and a model may have no limit).
constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

// Places that a cache of fixed size needs.
int64_t tokens_needed(const Flags& flags, int64_t prompt, int64_t context) {
  const int64_t all = prompt + std::min({flags.max_new_tokens, context, kMostTokens - prompt});
  const std::optional<ContextShiftParams> shift = flags.decoding.shift();
  if (!shift) return all;
  // A context that is never full shifts never, but must be one that could.
  const int64_t least = std::min(shift->keep, kMostTokens) + std::min(shift->discard, kMostTokens);
  return std::min(std::max(all, least + 2), std::max(context, prompt));
}

// --cache auto: the dynamic cache, and what to do when the limit is reached.
std::unique_ptr<CacheLadder> ladder_for(const Flags& flags, const LoadedModel& loaded,
                                        Session& session) {
  if (!flags.automatic) return nullptr;
  CacheLadder::Options options;
  if (!flags.model.memory_limit.empty()) {
    const size_t limit = parse_bytes("--memory-limit", flags.model.memory_limit);
    options.free_bytes = limit - std::min(limit, loaded.memory().total().live);
  }
  options.say = [](const std::string& line) { std::cerr << line << std::endl; };
  return std::make_unique<CacheLadder>(session, std::move(options));
}

int run(Flags& flags) {
  for (const CLI::Option* flag : flags.sampling_flags)
    flags.sampling.do_sample |= flag->count() > 0;
  check(flags);
  flags.automatic = flags.model.cache == "auto";
  if (flags.automatic) flags.model.cache = "dynamic";
  catch_interrupts();
  Seconds seconds;
  const auto start = Clock::now();
  LoadedModel loaded(flags.model);
  const std::optional<Tokenizer> tokenizer = find_tokenizer(flags);
  Request request = request_of(flags, *loaded.model(), tokenizer);
  const std::optional<CacheFile> file = open_cache(flags, request);
  const ModelInfo& info = loaded.model()->info();
  // An encoder's input takes no places of the decoder, which begins with one start token.
  const auto prompt = static_cast<int64_t>(
      info.is_encoder_decoder ? 1 : std::max<size_t>(request.prompt_ids.size(), 1));
  const int64_t context = info.max_position_embeddings;
  std::optional<ContextShiftParams> shift = flags.decoding.shift();
  const int64_t needed = tokens_needed(flags, prompt, context);
  const Speculation speculation = flags.decoding.speculation(loaded, needed);
  const std::unique_ptr<Session> session = loaded.session(needed, flags.decoding.rollback());
  if (file) {
    file->load(session->cache(), cache_origin(flags.model.model, *loaded.model()));
    request.cached_tokens = session->cache().seq_len(0);
  }
  const std::unique_ptr<CacheLadder> ladder = ladder_for(flags, loaded, *session);
  seconds.load = since(start);

  GenerationOptions options;
  options.interrupted = interrupted;
  options.drafter = speculation.drafter;
  if (shift && shift->discard == 0)
    shift->discard = default_discard(shift->keep, context_length(*session));
  options.context_shift = shift;
  if (tokenizer) options.make_text = stream_text(*tokenizer);
  if (!flags.json) {
    options.on_token = [&](const TokenEvent& event) {
      show(event.text, {&event.id, 1}, tokenizer.has_value());
      return true;
    };
  }
  const bool beams = flags.decoding.searches_beams();
  const Outcome outcome = beams
                              ? run_beams(*session, std::move(request), flags.decoding.beams,
                                          std::move(options), seconds)
                              : run_one(*session, std::move(request), std::move(options), seconds);
  if (beams && !flags.json) show_found(outcome.sequences, tokenizer.has_value());
  const Json result = report(outcome, flags, seconds, loaded);
  if (!flags.save_cache.empty()) {
    const std::vector<std::vector<int32_t>> tokens = {outcome.ids};
    save_cache(flags.save_cache, session->cache(), tokens,
               cache_origin(flags.model.model, *loaded.model()), session->allocator());
  }
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
  CLI::Option& cache = *app.get_option("--cache");
  cache.description(cache.get_description() +
                    "; auto: dynamic until --memory-limit is reached, then ever smaller ones");
  flags->has_prompt = app.add_option("-p,--prompt", flags->prompt, "The prompt")->type_name("TEXT");
  flags->has_file =
      app.add_option("--prompt-file", flags->prompt_file, "A file that holds the prompt")
          ->type_name("FILE");
  flags->has_ids = app.add_option("--prompt-ids", flags->prompt_ids, "The prompt as token ids")
                       ->type_name("N,N,...");
  add_number(app, "-n,--max-new-tokens", flags->max_new_tokens, "New tokens at most (default 128)");
  add_sampling(app, *flags);
  flags->decoding.add_to(app);
  app.add_option("--stop", flags->stop, "End before this text; may be given several times")
      ->type_name("TEXT");
  app.add_option("--save-cache", flags->save_cache,
                 "Write the cache and its tokens to this file at the end")
      ->type_name("FILE");
  app.add_option("--load-cache", flags->load_cache,
                 "Go on from such a file, without prefill; a prompt is added to its tokens")
      ->type_name("FILE");
  app.add_flag("--ignore-eos", flags->ignore_eos, "Go on after an end token");
  app.add_flag("--json", flags->json,
               "One JSON object: ids, text, finish_reason, timing, memory; with beams `sequences`");
  app.footer(
      "Greedy unless a sampling flag or --num-beams is given. The text goes to stdout as it comes "
      "(found sequences at the end), a line of figures to stderr.\n\n"
      "Example:\n  larder generate -m models/toy/toy-llama -p 'To be, or not' -n 60 --temperature "
      "0.8 --top-p 0.9 --seed 1\n"
      "  larder generate -m models/toy/toy-llama -p 'To be, or not' -n 24 --num-beams 4 "
      "--num-return-sequences 2\n"
      "  larder generate -m models/toy/toy-llama -p 'To be, or not' -n 60 --prompt-lookup 8");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
