// larder plan: what a model will need, from config.json and the safetensors headers alone.
#include <algorithm>
#include <iostream>
#include <limits>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/models/config_file.h"
#include "larder/models/kv_plan.h"
#include "larder/models/scratch_plan.h"
#include "larder/tensor/safetensors.h"
#include "larder/tensor/thread_pool.h"
#include "tools/command.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"

namespace larder::tools {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostSource = 512;  // tokens of a source that the bound of scratch knows

struct Flags {
  std::string model, weights = "stored", cache, cache_config, cache_dtype = "bf16", budget;
  int64_t context = 0, batch = 1, new_tokens = 0, rollback = 0, source = kMostSource;
  int threads = 0;
  bool json = false;
};

// Bytes of all tensors, or what loading as codes takes; nullopt where the folder has none.
std::optional<size_t> weight_bytes(const fs::path& folder, WeightFormat format) {
  if (!fs::exists(folder / "model.safetensors") &&
      !fs::exists(folder / "model.safetensors.index.json"))
    return std::nullopt;
  if (format != WeightFormat::kStored) {
    LoadOptions options;
    options.weights = format;
    const WeightBytes bytes = Model::weight_bytes(folder, options);
    return bytes.mapped + bytes.converted;
  }
  const SafetensorsFolder files(folder);
  size_t bytes = 0;
  for (const StoredTensor* tensor : files.tensors()) bytes += tensor->bytes;
  return bytes;
}

class Plan {
 public:
  explicit Plan(const Flags& flags)
      : flags_(flags),
        file_(read_config_file(flags.model)),
        threads_(choose_threads(flags.threads)),
        format_(parse_weight_format(flags.weights)) {
    const auto dtype = dtype_from_name(flags.cache_dtype);
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
      fail("--cache-dtype ", in_quotes(flags.cache_dtype), " is not one of f32, bf16, f16");
    options_ = {*dtype, 0, flags.rollback, flags.cache_config};
    config_ = read_kv_plan_config(file_.json, file_.what);
    if (fs::is_directory(flags.model)) weights_ = weight_bytes(flags.model, format_);
    context_ = flags.context > 0 ? flags.context : config_.context;
    check();
    if (!flags.budget.empty()) budget_ = parse_bytes("--budget", flags.budget);
  }

  Json report() const {
    Json kinds = Json::object();
    if (!flags_.cache.empty()) {
      kinds[flags_.cache] = of_kind(flags_.cache);
    } else {
      for (const std::string_view kind : planned_kinds())
        kinds[std::string(kind)] = of_kind_or_refusal(std::string(kind));
    }
    const DType dtype = options_.dtype;
    return {{"context", context_},
            {"new_tokens", flags_.new_tokens},
            {"batch", flags_.batch},
            {"source_tokens", has_source() ? Json(flags_.source) : Json()},
            {"threads", threads_},
            {"cache_dtype", dtype_name(dtype)},
            {"weights", weight_format_name(format_)},
            {"weights_bytes", weights_ ? Json(*weights_) : Json()},
            {"kv_bytes_per_token", config_.bytes_per_token(dtype)},
            {"kv_bytes_per_token_per_layer", config_.bytes_per_token_per_layer(dtype)},
            {"kv_full_bytes", config_.full_bytes(context_, dtype)},
            {"kv_windowed_bytes", config_.windowed_bytes(context_, dtype)},
            {"budget", budget_ ? Json(*budget_) : Json()},
            {"caches", kinds}};
  }

 private:
  static constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
  static constexpr int64_t kMostRows = 65536;

  struct Need {
    KVBytes kv;
    std::optional<int64_t> scratch;  // of the forward and of flushes
    int64_t memory() const { return kv.kv + scratch.value_or(0); }
  };

  bool has_source() const {
    return std::ranges::find(config_.layers, LayerKind::kCross, &LayerSpec::kind) !=
           config_.layers.end();
  }

  void check() const {
    if (flags_.context < 0) fail("--context ", flags_.context, " must not be negative");
    if (context_ < 1) fail("config.json names no longest context; give --context");
    if (context_ > kMostTokens) fail("--context ", context_, " must be in 1..", kMostTokens);
    if (flags_.batch < 1 || flags_.batch > kMostRows)
      fail("--batch ", flags_.batch, " must be in 1..", kMostRows);
    if (flags_.new_tokens < 0 || flags_.new_tokens > context_)
      fail("--new-tokens ", flags_.new_tokens, " must be in 0..", context_, ", the context");
    if (flags_.source < 1 || flags_.source > kMostSource)
      fail("--source ", flags_.source, " must be in 1..", kMostSource);
    if (!flags_.cache_config.empty() && flags_.cache.empty())
      fail("--cache-config needs --cache, the kind whose settings it has");
  }

  Json of_kind(const std::string& kind) const {
    const Need need = need_of(kind, context_);
    Json result = {{"kv_bytes", need.kv.kv},
                   {"scratch_bytes", need.scratch ? Json(*need.scratch) : Json()}};
    if (need.kv.file > 0) result["file_bytes"] = need.kv.file;
    for (const PoolUse& size : need.kv.pool) {
      result["pool"].push_back({{"what", size.what},
                                {"block_bytes", size.block_bytes},
                                {"num_blocks", size.num_blocks},
                                {"most_taken", size.most_taken}});
    }
    if (budget_) result["max_context"] = max_context(kind);
    return result;
  }
  // A kind whose settings do not fit the model stands in the list with the reason.
  Json of_kind_or_refusal(const std::string& kind) const {
    try {
      return of_kind(kind);
    } catch (const Error& error) {
      return {{"refused", error.what()}};
    }
  }

  Need need_of(const std::string& kind, int64_t tokens) const {
    const KVLoad load{kind,
                      options_,
                      flags_.batch,
                      tokens,
                      std::min(flags_.new_tokens, tokens),
                      has_source() ? flags_.source : 0};
    Need need{
        planned_kv_bytes(config_.layers, load),
        planned_scratch_bytes(file_.json, file_.what, {flags_.batch, tokens, threads_, format_})};
    if (need.scratch) *need.scratch += need.kv.flush_scratch;
    return need;
  }

  // The most tokens a row that fit the budget beside the weights, at most what the model can have.
  int64_t max_context(const std::string& kind) const {
    const size_t taken = weights_.value_or(0);
    const auto fits = [&](int64_t tokens) {
      try {
        return static_cast<size_t>(need_of(kind, tokens).memory()) <= *budget_ - taken;
      } catch (const Error& error) {  // a pool of a size that was given
        if (error.kind() != ErrorKind::kNoRoom) throw;
        return false;
      }
    };
    const int64_t most = config_.context > 0 ? config_.context : kMostTokens;
    if (taken > *budget_ || !fits(1)) return 0;
    // A walk takes as long as its context, so none goes far past what fits.
    int64_t low = 1, high = 2;
    while (high <= most && fits(high)) low = high, high *= 2;
    for (high = std::min(high - 1, most); low < high;) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (fits(middle))
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  const Flags& flags_;
  const ConfigFile file_;
  const int threads_;
  const WeightFormat format_;
  CacheOptions options_;
  KVPlanConfig config_;
  std::optional<size_t> weights_, budget_;
  int64_t context_ = 0;
};

std::string bytes_text(const Json& value) {
  return str(value.dump(), " bytes (", human_bytes(value.get<double>()), ")");
}

void print_kind(const std::string& kind, const Json& plan) {
  std::cout << kind << std::string(18 - std::min<size_t>(kind.size(), 17), ' ');
  if (plan.contains("refused")) {
    std::cout << "refused: " << plan.at("refused").get<std::string>() << '\n';
    return;
  }
  std::cout << "KV " << bytes_text(plan.at("kv_bytes"));
  if (plan.contains("file_bytes"))
    std::cout << ", in its file " << bytes_text(plan.at("file_bytes"));
  if (!plan.at("scratch_bytes").is_null())
    std::cout << ", scratch at most " << bytes_text(plan.at("scratch_bytes"));
  if (plan.contains("pool")) {
    for (const Json& size : plan.at("pool"))
      std::cout << ", " << size.at("most_taken") << " of " << size.at("num_blocks") << " "
                << size.at("what").get<std::string>() << " taken";
  }
  if (plan.contains("max_context"))
    std::cout << ", at most " << plan.at("max_context") << " tokens a row in the budget";
  std::cout << '\n';
}

void print(const Json& report) {
  std::cout << "context " << report.at("context");
  if (report.at("new_tokens") > 0)
    std::cout << " (" << report.at("new_tokens") << " of them one by one)";
  if (!report.at("source_tokens").is_null())
    std::cout << ", sources of " << report.at("source_tokens");
  std::cout << ", batch " << report.at("batch") << ", cache "
            << report.at("cache_dtype").get<std::string>() << ", threads " << report.at("threads")
            << '\n';
  if (!report.at("weights_bytes").is_null())
    std::cout << "weights           " << bytes_text(report.at("weights_bytes")) << ", "
              << report.at("weights").get<std::string>() << '\n';
  std::cout << "KV a token        " << bytes_text(report.at("kv_bytes_per_token")) << '\n';
  for (const auto& [kind, plan] : report.at("caches").items()) print_kind(kind, plan);
}

}  // namespace

void add_plan(CLI::App& parent, std::function<int()>& action) {
  CLI::App& app = *parent.add_subcommand("plan", "Say what memory a model's cache will need");
  auto flags = std::make_shared<Flags>();
  app.add_option("-m,--model", flags->model, "Folder with a config.json, or the file")
      ->type_name("DIR")
      ->required();
  add_number(app, "--context", flags->context,
             "Tokens a row (default: the longest that config.json names)");
  add_number(app, "-n,--new-tokens", flags->new_tokens,
             "Of these, tokens that are generated one by one; the others come in steps of 512 "
             "(default 0)");
  add_number(app, "--batch", flags->batch, "Rows (default 1)");
  add_number(app, "--source", flags->source,
             "Encoder-decoder models: tokens of each row's source, at most 512 (default 512)");
  add_number(app, "--threads", flags->threads, "Threads, for scratch (default: one a core)");
  app.add_option("--weights", flags->weights,
                 "stored, int8 or int4: what the matrices become as they are loaded")
      ->capture_default_str();
  app.add_option("--cache", flags->cache, "One cache_implementation only (default: all)");
  app.add_option("--cache-config", flags->cache_config, "Settings of --cache, a JSON object")
      ->type_name("JSON");
  add_number(app, "--rollback", flags->rollback,
             "Tokens that windows keep beyond their own, as speculation needs (default 0)");
  app.add_option("--cache-dtype", flags->cache_dtype, "f32, bf16 or f16")->capture_default_str();
  app.add_option("--budget", flags->budget,
                 "Bytes for weights, KV and scratch: print the longest context that fits")
      ->type_name("BYTES");
  app.add_flag("--json", flags->json, "One JSON object");
  app.footer(
      "Reads config.json and the headers of safetensors, nothing else; architectures that larder "
      "cannot run are planned too.\nKV: to the byte what the allocator hands out, recurrent states "
      "and cross layers included; for offloaded kinds\nwhat is in memory at once (and what lies in "
      "the file); for paged the whole pool, which holds all rows unless\n--cache-config says "
      "another size. Scratch: a bound for fused attention and steps of at most 512 tokens.\n"
      "For architectures that larder cannot run: of a plain decoder of that size, and no states or "
      "cross layers.\n\n"
      "Example:\n  larder plan -m models/toy/toy-llama --context 4096 --batch 4 --budget 64M");
  app.callback([flags, &action] {
    action = [flags] {
      const Json report = Plan(*flags).report();
      if (flags->json)
        std::cout << report.dump(2) << std::endl;
      else
        print(report);
      return 0;
    };
  });
}

}  // namespace larder::tools
