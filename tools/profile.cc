// larder profile: memory and speed of every cache kind over a range of contexts.
#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <optional>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"
#include "tools/profile_page.h"
#include "tools/speed_run.h"

namespace larder::tools {
namespace {

struct Flags {
  ModelFlags model;
  std::vector<int64_t> contexts;
  std::vector<std::string> caches;
  int64_t n_gen = 16;
  int repetitions = 3;
  std::string output, html;
};

// Kinds that store nothing in a way of their own: names of others, or of other models.
constexpr std::array kSynonyms = {"sliding_window",  "hybrid", "hybrid_chunked", "offloaded_hybrid",
                                  "encoder_decoder", "mamba",  "recurrent"};

std::vector<ProfileKind> default_kinds() {
  std::vector<ProfileKind> kinds;
  for (const std::string& name : CacheRegistry().names()) {
    if (std::ranges::find(kSynonyms, name) != kSynonyms.end()) continue;
    if (name != "quantized") {
      kinds.push_back({name, "", true, {}, ""});
      continue;
    }
    for (const char* config :
         {R"({"backend":"larder","nbits":8})", R"({"backend":"larder","nbits":4})",
          R"({"backend":"quanto","nbits":4})", R"({"backend":"hqq","nbits":4})"})
      kinds.push_back({name, config, false, {}, ""});
  }
  return kinds;
}

ProfileKind named_kind(const std::string& text) {
  const CacheFormat format = parse_cache_format(text);
  const bool lossless = text.find("quantized") == std::string::npos;
  return {format.cache, format.config, lossless, {}, ""};
}

void check(const Flags& flags) {
  for (const int64_t context : flags.contexts)
    if (context < 1 || context > INT32_MAX)
      fail("--contexts ", context, " must be 1 to ", INT32_MAX);
  if (flags.n_gen < 1) fail("-n ", flags.n_gen, " must be at least 1");
  if (flags.repetitions < 1) fail("-r ", flags.repetitions, " must be at least 1");
  if (flags.model.has_cache->count() > 0)
    fail("--cache: profile runs many kinds; choose them with --kind NAME or NAME:JSON");
}

std::vector<int64_t> contexts_of(const Flags& flags, int64_t longest) {
  std::vector<int64_t> contexts = flags.contexts;
  for (int64_t n = 256; contexts.empty() || (flags.contexts.empty() && n <= 4096); n *= 2)
    contexts.push_back(std::min(n, longest - flags.n_gen));
  std::ranges::sort(contexts);
  contexts.erase(std::unique(contexts.begin(), contexts.end()), contexts.end());
  if (contexts.front() < 1 || contexts.back() > longest - flags.n_gen) {
    fail("--contexts ", contexts.back(), " and ", flags.n_gen,
         " new tokens do not fit the model's context (max_position_embeddings) of ", longest);
  }
  return contexts;
}

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The session of one kind, with a count of its own.
struct Subject {
  Subject(LoadedModel& loaded, const ProfileKind& kind, int64_t longest)
      : memory(loaded.allocator()) {
    SessionOptions options = loaded.options();
    options.cache_implementation = kind.cache, options.cache_config = kind.config;
    options.max_cache_len = longest;
    session.emplace(loaded.model(), options, memory);
  }
  TrackingAllocator memory;
  std::optional<Session> session;
};

// Memory is read when the context is there, before any token is decoded. False: interrupted.
bool measure_at(const Flags& flags, Subject& subject, int64_t context, ProfilePoint& point) {
  SpeedRun speed(*subject.session);
  bool going = true;
  const double prefill = seconds_of([&] { going = speed.set_depth(context); });
  if (!going) return false;
  const MemoryStats kv = subject.memory.of("kv");
  point = {context, static_cast<double>(kv.live), static_cast<double>(kv.peak),
           static_cast<double>(context) / prefill, 0};
  std::vector<double> rates;
  for (int run = 0; run < flags.repetitions; ++run) {
    going = speed.set_depth(context);
    const double seconds = seconds_of([&] { going = going && speed.feed(flags.n_gen, 1); });
    if (!going) return false;
    rates.push_back(static_cast<double>(flags.n_gen) / seconds);
  }
  point.decode_tokens_per_second = median(rates);
  return true;
}

bool measure(const Flags& flags, LoadedModel& loaded, const std::vector<int64_t>& contexts,
             ProfileKind& kind, Profile& profile) {
  for (const int64_t context : contexts) {
    Subject subject(loaded, kind, contexts.back() + flags.n_gen);
    ProfilePoint point;
    if (!measure_at(flags, subject, context, point)) return false;
    kind.points.push_back(point);
    profile.kernels = subject.session->exec().kernels.name;
    profile.threads = subject.session->exec().threads.size();
  }
  return true;
}

void print_table(const Profile& profile) {
  std::cout << "| cache | context | KV | prefill t/s | decode t/s |\n|---|---:|---:|---:|---:|\n";
  for (const ProfileKind& kind : profile.kinds) {
    if (!kind.refused.empty())
      std::cout << str("| ", kind.name(), " | not run: ", kind.refused, " | | | |\n");
    for (const ProfilePoint& point : kind.points)
      std::cout << str("| ", kind.name(), " | ", point.context, " | ", human_bytes(point.kv_bytes),
                       " | ", fixed(point.prefill_tokens_per_second, 1), " | ",
                       fixed(point.decode_tokens_per_second, 1), " |\n");
  }
  std::cout << std::flush;
}

void write(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

int run(const Flags& flags) {
  check(flags);
  std::vector<ProfileKind> kinds;
  for (const std::string& text : flags.caches) kinds.push_back(named_kind(text));
  if (kinds.empty()) kinds = default_kinds();
  catch_interrupts();
  LoadedModel loaded(flags.model);
  const Model& model = *loaded.model();
  const std::vector<int64_t> contexts =
      contexts_of(flags, std::min<int64_t>(model.info().max_position_embeddings, INT32_MAX));
  Profile profile{flags.model.model,
                  "",
                  std::string(dtype_name(model.dtype())),
                  std::string(dtype_name(loaded.options().cache_dtype.value_or(model.dtype()))),
                  0,
                  {}};
  for (ProfileKind& kind : kinds) {
    std::cerr << str("larder: measuring ", kind.name()) << std::endl;
    try {
      if (!measure(flags, loaded, contexts, kind, profile)) return kInterrupted;
    } catch (const Error& error) {
      kind.points.clear();
      kind.refused = error.what();
    }
    profile.kinds.push_back(kind);
  }
  print_table(profile);
  if (!flags.output.empty()) write(flags.output, profile_json(profile).dump(2) + "\n");
  if (!flags.html.empty()) write(flags.html, profile_html(profile));
  return 0;
}

}  // namespace

void add_profile(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app = *parent.add_subcommand(
      "profile", "Measure every cache kind over a range of contexts, with plots");
  auto flags = std::make_shared<Flags>();
  flags->model.add_to(app);
  app.add_option("--kind", flags->caches,
                 "A cache kind to measure, NAME or NAME:JSON; may be given several times (default: "
                 "all)")
      ->type_name("KIND");
  add_list(app, "--contexts", flags->contexts,
           "Tokens in the cache (default 256, 512, ... up to 4096 or the model's context)");
  add_number(app, "-n,--n-gen", flags->n_gen, "Tokens to decode at each context (default 16)");
  add_number(app, "-r,--repetitions", flags->repetitions,
             "Timed decodes at each context; the median counts (default 3)");
  app.add_option("-o,--output", flags->output, "Write the figures as JSON")->type_name("FILE");
  app.add_option("--html", flags->html, "Write one page with plots and a guide")->type_name("FILE");
  app.footer(
      "The table goes to stdout.\n\nExample:\n  larder profile -m models/smollm2 -o profile.json "
      "--html profile.html");
  app.callback([flags, &action] { action = [flags] { return run(*flags); }; });
}

}  // namespace larder::tools
