#include "tools/engine_flags.h"

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "tools/numbers.h"

namespace larder::tools {
namespace {

constexpr const char* kConfig = "--cache-config";

void at_least_one(const char* flag, const std::optional<int64_t>& value) {
  if (value && *value < 1) fail(flag, " ", *value, " must be at least 1");
}

}  // namespace

std::vector<CLI::Option*> EngineFlags::add_to(CLI::App& app) {
  return {
      add_number(app, "--max-tokens-per-step", max_tokens_per_step,
                 "Tokens of a step at most, prompts and next tokens together"),
      add_number(app, "--blocks", blocks,
                 "Blocks of the pool: it holds so many times --block-size tokens in every layer"),
      add_number(app, "--block-size", block_size, "Tokens a block, 1 to 256 (default 16)"),
      app.add_option("--scheduler", scheduler,
                     "Who comes first in a step: fifo or prefill_first (default fifo)"),
      app.add_option("--prefix-cache", prefix_cache,
                     "Keep full blocks of prompts for requests that begin alike: on or off")
          ->type_name("on|off"),
      app.add_option("--swap-folder", swap_folder,
                     "Where sequences that must give way stand aside in a file, to come back as "
                     "they were; without it their tokens are fed again")
          ->type_name("DIR"),
  };
}

void EngineFlags::check(const ModelFlags& model) const {
  if (model.cache != "paged")
    fail("--cache ", in_quotes(model.cache), ": an engine's requests share the cache \"paged\"");
  at_least_one("--max-tokens-per-step", max_tokens_per_step);
  at_least_one("--blocks", blocks);
  at_least_one("--block-size", block_size);
  parse_scheduler(scheduler);
  if (!prefix_cache.empty() && prefix_cache != "on" && prefix_cache != "off")
    fail("--prefix-cache ", in_quotes(prefix_cache), " is neither on nor off");
  cache_config(model.cache_config);
}

// The settings of --cache-config and those that have flags of their own.
std::string EngineFlags::cache_config(const std::string& given) const {
  Json config = given.empty() ? Json::object() : parse_json(given, kConfig);
  const JsonFields fields(config, kConfig);
  for (const auto& [key, flag, value] :
       {std::tuple{"num_blocks", "--blocks", blocks}, {"block_size", "--block-size", block_size}}) {
    if (!value) continue;
    if (fields.has(key)) fail(flag, " and ", key, " of ", kConfig, " say the same; give one");
    config[key] = *value;
  }
  return config.dump();
}

EngineOptions EngineFlags::options(const LoadedModel& loaded, int64_t pool_tokens) const {
  EngineOptions options;
  options.session = loaded.options();
  options.session.cache_config = cache_config(loaded.options().cache_config);
  // The paged kind makes its pool of that many tokens where no setting says another size.
  if (options.session.max_cache_len == 0) options.session.max_cache_len = pool_tokens;
  options.scheduler.kind = parse_scheduler(scheduler);
  if (swap_folder) options.swap_folder = *swap_folder;
  if (max_tokens_per_step) options.scheduler.max_tokens_per_step = *max_tokens_per_step;
  return options;
}

std::unique_ptr<Engine> EngineFlags::make(LoadedModel& loaded, EngineOptions options,
                                          bool with_prefixes) const {
  const auto made = [&](bool with) {
    options.prefix_cache = with;
    return std::make_unique<Engine>(loaded.model(), options, loaded.allocator());
  };
  if (!prefix_cache.empty()) return made(prefix_cache == "on");
  if (!with_prefixes) return made(false);
  try {
    return made(true);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return made(false);  // and its own reason, if that was another
  }
}

}  // namespace larder::tools
