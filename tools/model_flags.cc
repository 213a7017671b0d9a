#include "tools/model_flags.h"

#include <sys/resource.h>

#include <iostream>

#include "larder/base/error.h"
#include "tools/numbers.h"

namespace larder::tools {

size_t parse_bytes(const std::string& flag, const std::string& text) {
  size_t shift = 0;
  std::string digits = text;
  if (!text.empty()) {
    const char last = text.back();
    shift = last == 'K' || last == 'k'   ? 10
            : last == 'M' || last == 'm' ? 20
            : last == 'G' || last == 'g' ? 30
                                         : 0;
    if (shift > 0) digits.pop_back();
  }
  const auto count = parse_number<uint64_t>(flag, digits);
  if (count > (SIZE_MAX >> shift))
    fail(flag, " ", in_quotes(text), " is more bytes than 64 bits can count");
  return static_cast<size_t>(count) << shift;
}

CacheFormat parse_cache_format(const std::string& text) {
  const size_t colon = text.find(':');
  CacheFormat format{text.substr(0, colon), ""};
  if (colon != std::string::npos) format.config = text.substr(colon + 1);
  CacheRegistry().find(format.cache);
  return format;
}

WeightFormat parse_weight_format(const std::string& name) {
  const auto format = weight_format_from_name(name);
  if (!format) fail("--weights ", in_quotes(name), " is not one of stored, int8, int4");
  return *format;
}

void ModelFlags::add_to(CLI::App& app) {
  app.add_option("-m,--model", model,
                 "Folder of a Hugging Face checkpoint: config.json, *.safetensors, tokenizer.json")
      ->type_name("DIR")
      ->required();
  app.add_option(
      "--dtype", dtype,
      "What matmul inputs are rounded to: f32, bf16 or f16 (default: as the file stores them)");
  has_weights =
      app.add_option(
             "--weights", weights,
             "What matrices become as they are loaded: stored, int8 or int4 (docs/weights.md)")
          ->capture_default_str();
  app.add_flag("--cache-weights", cache_weights,
               "With --weights int8 or int4: keep them in larder-weights-*.safetensors beside the "
               "model,\nand map that file the next time");
  has_cache = app.add_option("--cache", cache,
                             "cache_implementation: " + join(CacheRegistry().names(), ", "))
                  ->capture_default_str();
  app.add_option("--cache-config", cache_config,
                 "The cache's own settings, as '{\"nbits\": 4}'; docs/caches.md lists them")
      ->type_name("JSON");
  app.add_option("--cache-dtype", cache_dtype,
                 "What the cache stores: f32, bf16 or f16 (default: as --dtype)");
  add_number(app, "--max-cache-len", max_cache_len,
             "Tokens a row of a static cache (default: what the run needs)");
  app.add_option("--attention", attention, "fused or eager")->capture_default_str();
  app.add_option("--kernels", kernels, "Kernel set (default: the fastest one of this machine)");
  add_number(app, "--threads", threads, "Threads, 0 = the cores this process may use (default 0)");
  app.add_flag("--pin-threads", pin_threads, "Keep each thread on a core of its own");
  app.add_option("--memory-limit", memory_limit,
                 "Most bytes to allocate, as 1000000, 64K, 512M or 2G; mapped weights do not count")
      ->type_name("BYTES");
}

namespace {

std::optional<DType> float_dtype(const std::string& flag, const std::string& name) {
  if (name.empty()) return std::nullopt;
  const auto dtype = dtype_from_name(name);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kBF16 && *dtype != DType::kF16)) {
    fail(flag, " ", in_quotes(name), " is not one of f32, bf16, f16");
  }
  return dtype;
}

Allocator& outer(HostAllocator& host, std::optional<BudgetAllocator>& budget,
                 const std::string& limit) {
  if (limit.empty()) return host;
  return budget.emplace(host, parse_bytes("--memory-limit", limit));
}

}  // namespace

LoadedModel::LoadedModel(const ModelFlags& flags)
    : tracking_(outer(host_, budget_, flags.memory_limit)) {
  load_ = {float_dtype("--dtype", flags.dtype), parse_weight_format(flags.weights), flags.threads,
           flags.cache_weights,
           [](const std::string& text) { std::cerr << "larder: note: " << text << std::endl; }};
  if (flags.cache_weights && load_.weights == WeightFormat::kStored)
    fail("--cache-weights keeps codes; give --weights int8 or int4");
  CacheRegistry().find(flags.cache);
  if (flags.max_cache_len < 0)
    fail("--max-cache-len ", flags.max_cache_len, " must not be negative");
  choose_threads(flags.threads);
  choose_kernels(flags.kernels);
  options_ = {.cache_implementation = flags.cache,
              .cache_dtype = float_dtype("--cache-dtype", flags.cache_dtype),
              .max_cache_len = flags.max_cache_len,
              .attention = attention_kind(flags.attention),
              .threads = flags.threads,
              .kernels = flags.kernels,
              .cache_config = flags.cache_config,
              .pin_threads = flags.pin_threads};
  model_ = Model::load(flags.model, load_, tracking_);
}

std::unique_ptr<Session> LoadedModel::session(int64_t needed, int64_t rollback) {
  SessionOptions options = options_;
  if (options.max_cache_len == 0) options.max_cache_len = needed;
  options.rollback = rollback;
  return std::make_unique<Session>(model_, options, tracking_);
}

std::unique_ptr<Session> LoadedModel::draft_session(const std::string& folder, int64_t needed,
                                                    int64_t rollback) {
  SessionOptions options = options_;
  options.cache_implementation = "dynamic";
  options.cache_config.clear();
  options.max_cache_len = needed;
  options.rollback = rollback;
  LoadOptions load = load_;
  load.dtype = std::nullopt;
  return std::make_unique<Session>(Model::load(folder, load, tracking_), options, tracking_);
}

size_t peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

}  // namespace larder::tools
