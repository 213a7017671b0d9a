// The flags of the subcommands that run an engine over the paged cache.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "larder/generate/engine.h"
#include "tools/model_flags.h"

namespace larder::tools {

struct EngineFlags {
  std::optional<int64_t> max_tokens_per_step, blocks, block_size;
  std::string scheduler = "fifo";
  std::string prefix_cache;  // "on", "off", or empty: not given
  std::optional<std::string> swap_folder;

  // Adds them and gives them. ModelFlags::add_to is the caller's.
  std::vector<CLI::Option*> add_to(CLI::App& app);
  // Throws for values that make no sense, before the model is read; so does the engine for others.
  void check(const ModelFlags& model) const;
  // What the engine is to be made with. A pool whose size nobody gave holds `pool_tokens` tokens.
  EngineOptions options(const LoadedModel& loaded, int64_t pool_tokens) const;
  // Makes it. Where --prefix-cache is not given, `with_prefixes` says whether there shall be one if
  // the cache can have it.
  std::unique_ptr<Engine> make(LoadedModel& loaded, EngineOptions options,
                               bool with_prefixes) const;

 private:
  std::string cache_config(const std::string& given) const;
};

}  // namespace larder::tools
