// The bytes of small safetensors files, right and wrong ones.
#pragma once

#include <string>
#include <string_view>

#include "larder/base/str.h"
#include "tests/support/temp_folder.h"

namespace larder::test {

// A header of this text behind its length, then the data.
inline std::string container(std::string_view header, std::string_view data = "") {
  return little_endian(header.size(), 8).append(header).append(data);
}

inline std::string braces(std::string_view inside) { return str("{", inside, "}"); }

inline std::string zeros(size_t count) { return std::string(count, '\0'); }

inline std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                         std::string_view offsets) {
  return str("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
             ",\"data_offsets\":", offsets, "}");
}

inline std::string one_tensor_file(std::string_view name, char value) {
  return container(braces(entry(name, "U8", "[1]", "[0,1]")), std::string(1, value));
}

}  // namespace larder::test
