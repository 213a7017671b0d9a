// larder plan: what a model will need, from config.json and the safetensors headers alone.
#include <iostream>
#include <limits>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/models/kv_plan.h"
#include "larder/tensor/safetensors.h"
#include "tools/command.h"
#include "tools/model_flags.h"
#include "tools/numbers.h"

namespace larder::tools {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, cache, cache_dtype = "bf16", budget;
  int64_t context = 0, batch = 1;
  bool json = false;
};

// Bytes of all tensors; nullopt where the folder has none.
std::optional<size_t> weight_bytes(const fs::path& folder) {
  if (!fs::exists(folder / "model.safetensors") &&
      !fs::exists(folder / "model.safetensors.index.json"))
    return std::nullopt;
  const SafetensorsFolder files(folder);
  size_t bytes = 0;
  for (const StoredTensor* tensor : files.tensors()) bytes += tensor->bytes;
  return bytes;
}

class Plan {
 public:
  explicit Plan(const Flags& flags) : flags_(flags) {
    const auto dtype = dtype_from_name(flags.cache_dtype);
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)
      fail("--cache-dtype ", in_quotes(flags.cache_dtype), " is not one of f32, bf16, f16");
    dtype_ = *dtype;
    const fs::path path(flags.model);
    const fs::path file = fs::is_directory(path) ? path / "config.json" : path;
    constexpr size_t kMaxConfigBytes = size_t{16} << 20;
    config_ = read_kv_plan_config(parse_json(read_file(file, kMaxConfigBytes), file.string()),
                                  file.string());
    if (fs::is_directory(path)) weights_ = weight_bytes(path);
    if (flags.context < 0) fail("--context ", flags.context, " must not be negative");
    context_ = flags.context > 0 ? flags.context : config_.context;
    if (context_ < 1) fail("config.json names no longest context; give --context");
    if (context_ > kMostTokens || flags.batch < 1 || flags.batch > kMostTokens)
      fail("--context ", context_, " and --batch ", flags.batch, " must be in 1..", kMostTokens);
    if (!flags.budget.empty()) budget_ = parse_bytes("--budget", flags.budget);
  }

  Json report() const {
    Json kinds = Json::object();
    for (const std::string_view kind : planned_kinds()) {
      if (!flags_.cache.empty() && flags_.cache != kind) continue;
      kinds[std::string(kind)] = of_kind(kind);
    }
    if (kinds.empty()) planned_kv_bytes(config_, flags_.cache, context_, flags_.batch, dtype_);
    return {{"context", context_},
            {"batch", flags_.batch},
            {"cache_dtype", dtype_name(dtype_)},
            {"weights_bytes", weights_ ? Json(*weights_) : Json()},
            {"kv_bytes_per_token", config_.bytes_per_token(dtype_)},
            {"kv_bytes_per_token_per_layer", config_.bytes_per_token_per_layer(dtype_)},
            {"kv_full_bytes", config_.full_bytes(context_, dtype_)},
            {"kv_windowed_bytes", config_.windowed_bytes(context_, dtype_)},
            {"budget", budget_ ? Json(*budget_) : Json()},
            {"caches", kinds}};
  }

 private:
  static constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();

  Json of_kind(std::string_view kind) const {
    Json result = {{"kv_bytes", bytes(kind, context_)}};
    if (budget_) result["max_context"] = max_context(kind);
    return result;
  }
  int64_t bytes(std::string_view kind, int64_t tokens) const {
    return planned_kv_bytes(config_, kind, tokens, flags_.batch, dtype_);
  }
  // The most tokens a row that fit the budget beside the weights, at most what the model can have.
  int64_t max_context(std::string_view kind) const {
    const size_t taken = weights_.value_or(0);
    if (taken > *budget_) return 0;
    const size_t left = *budget_ - taken;
    int64_t low = 0, high = config_.context > 0 ? config_.context : kMostTokens;
    while (low < high) {
      const int64_t middle = low + (high - low + 1) / 2;
      if (static_cast<size_t>(bytes(kind, middle)) <= left)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }

  const Flags& flags_;
  DType dtype_ = DType::kBF16;
  KVPlanConfig config_;
  std::optional<size_t> weights_, budget_;
  int64_t context_ = 0;
};

void print(const Json& report) {
  const auto bytes = [](const Json& value) {
    return str(value.dump(), " bytes (", human_bytes(value.get<double>()), ")");
  };
  std::cout << "context " << report.at("context") << ", batch " << report.at("batch") << ", cache "
            << report.at("cache_dtype").get<std::string>() << '\n';
  if (!report.at("weights_bytes").is_null())
    std::cout << "weights         " << bytes(report.at("weights_bytes")) << '\n';
  std::cout << "KV a token      " << bytes(report.at("kv_bytes_per_token")) << '\n';
  for (const auto& [kind, plan] : report.at("caches").items()) {
    std::cout << kind << std::string(16 - std::min<size_t>(kind.size(), 15), ' ')
              << bytes(plan.at("kv_bytes"));
    if (plan.contains("max_context"))
      std::cout << ", at most " << plan.at("max_context") << " tokens a row in the budget";
    std::cout << '\n';
  }
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
  add_number(app, "--batch", flags->batch, "Rows (default 1)");
  app.add_option("--cache", flags->cache, "One cache_implementation only (default: all)");
  app.add_option("--cache-dtype", flags->cache_dtype, "f32, bf16 or f16")->capture_default_str();
  app.add_option("--budget", flags->budget,
                 "Bytes for weights and cache: print the longest context that fits")
      ->type_name("BYTES");
  app.add_flag("--json", flags->json, "One JSON object");
  app.footer(
      "Reads config.json and the headers of safetensors, nothing else; architectures that larder "
      "cannot run are planned too.\n\n"
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
