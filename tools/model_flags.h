// The flags that every subcommand with a model has, and what they lead to.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "larder/generate/kv_quality.h"
#include "larder/generate/session.h"

namespace larder::tools {

struct ModelFlags {
  std::string model;
  std::string dtype, weights = "stored", cache = "dynamic", cache_config, cache_dtype,
                     attention = "fused", kernels;
  bool cache_weights = false;
  int64_t max_cache_len = 0;
  int threads = 0;
  bool pin_threads = false;
  std::string memory_limit;
  CLI::Option *has_cache = nullptr, *has_weights = nullptr;

  void add_to(CLI::App& app);
};

// The allocators and the model of one run. Not movable: the model points to the allocators.
class LoadedModel {
 public:
  // Throws Error for flags that make no sense, before the model is read.
  explicit LoadedModel(const ModelFlags& flags);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  // A session; a cache of fixed size gets --max-cache-len, or `needed` tokens where the flag is not
  // given. `rollback`: see CacheOptions.
  std::unique_ptr<Session> session(int64_t needed, int64_t rollback = 0);
  // A session of another model, with a dynamic cache and all else by the same flags. It and its
  // model count towards memory() and the limit.
  std::unique_ptr<Session> draft_session(const std::string& folder, int64_t needed,
                                         int64_t rollback);
  const std::shared_ptr<const Model>& model() const { return model_; }
  const TrackingAllocator& memory() const { return tracking_; }
  // For sessions with other caches than the flags name.
  const SessionOptions& options() const { return options_; }
  const LoadOptions& load_options() const { return load_; }
  Allocator& allocator() { return tracking_; }

 private:
  HostAllocator host_;
  std::optional<BudgetAllocator> budget_;
  TrackingAllocator tracking_;
  SessionOptions options_;
  LoadOptions load_;
  std::shared_ptr<const Model> model_;
};

// A cache kind and its settings from NAME or NAME:JSON; throws Error for a name that is not there.
CacheFormat parse_cache_format(const std::string& text);

// stored, int8 or int4; throws Error for another name.
WeightFormat parse_weight_format(const std::string& name);

// The most memory that this process has had resident, mapped weights included.
size_t peak_resident_bytes();

}  // namespace larder::tools
