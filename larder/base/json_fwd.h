// Names of the JSON types, for headers: the parser itself is slow to compile and only sources need
// it.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace larder {

using Json = nlohmann::ordered_json;
class JsonFields;

}  // namespace larder
