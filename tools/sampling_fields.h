// Sampling settings from a JSON object, under the names that generation_config.json has for them.
#pragma once

#include <span>

#include "larder/base/json_fwd.h"
#include "larder/generate/sampling.h"

namespace larder::tools {

// The keys that read_sampling() knows.
std::span<const char* const> sampling_keys();

// Absent keys and null leave a setting off. Without do_sample a request samples when it has a
// setting that only sampling heeds, as the flags of `larder generate` do. Throws Error that names
// the key for values of a wrong type, and for those that validate() refuses.
SamplingParams read_sampling(const JsonFields& fields);

}  // namespace larder::tools
