// What the writer and the reader of cache files share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace larder::cache_file {

inline constexpr const char* kFormat = "larder.format";
inline constexpr const char* kFormatName = "kv-cache";
inline constexpr const char* kVersion = "larder.version";
inline constexpr const char* kVersionNow = "1";
// Of the header and of each tensor in the order of the file, little-endian; the last tensor.
inline constexpr const char* kChecksums = "checksums";
inline constexpr const char* kTokens = "tokens";

std::string row_name(size_t row);                             // "row.0."
std::string part_name(std::string_view part, int32_t index);  // "layer.3."
std::vector<std::byte> bytes_of(std::span<const uint64_t> numbers);

}  // namespace larder::cache_file
