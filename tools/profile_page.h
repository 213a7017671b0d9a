// What `larder profile` measured, as JSON and as one HTML page that needs nothing beside it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "larder/base/json.h"

namespace larder::tools {

struct ProfilePoint {
  int64_t context = 0;                   // tokens in the cache
  double kv_bytes = 0;                   // held for them in memory, by the allocator's count
  double kv_peak_bytes = 0;              // the most that was held on the way
  double prefill_tokens_per_second = 0;  // over the whole context
  double decode_tokens_per_second = 0;   // at this depth
};

struct ProfileKind {
  std::string cache, config;  // cache_implementation and its settings
  bool lossless = true;       // gives the tokens of the dynamic cache
  std::vector<ProfilePoint> points;
  std::string refused;  // why there are none
  std::string name() const { return config.empty() ? cache : cache + " " + config; }
};

struct Profile {
  std::string model, kernels = {}, dtype, cache_dtype;
  int threads = 0;
  std::vector<ProfileKind> kinds;
};

Json profile_json(const Profile& profile);
std::string profile_html(const Profile& profile);

// The kinds worth choosing at the longest context that all reached: none of the others is both as
// small and as fast. Fastest first.
std::vector<const ProfileKind*> best_kinds(const Profile& profile, bool lossless_only);

}  // namespace larder::tools
