#include "larder/cache/larder_quantized_config.h"

#include <algorithm>
#include <bit>

#include "larder/base/error.h"
#include "larder/base/json.h"

namespace larder {
namespace {

constexpr const char* kWhat = "cache_config";
constexpr const char* kKeys[] = {
    "backend",          "nbits",     "nbits_key", "nbits_value", "q_group_size", "residual_length",
    "keys_per_channel", "symmetric", "search",    "hadamard",    "scale_dtype"};

void refuse_unknown(const Json& config) {
  for (const auto& [key, value] : config.items()) {
    if (std::ranges::find(kKeys, key) == std::end(kKeys)) {
      fail(kWhat, ": backend \"larder\" has no setting ", in_quotes(key),
           "; there are: ", join(kKeys, ", "));
    }
  }
}

// A width for every layer, or a list with one for each.
std::vector<int32_t> bits_of(const JsonFields& fields, const char* key, size_t layers) {
  auto list = fields.integers(key);
  const char* used = key;
  if (!list) list = fields.integers(used = "nbits");
  if (!list) list = {4};
  const Json* given = fields.find(used);
  const bool is_list = given != nullptr && given->is_array();
  if (is_list && list->size() != layers)
    fail(kWhat, ": ", used, " lists ", list->size(), " widths for ", layers, " layers");
  std::vector<int32_t> bits;
  for (size_t i = 0; i < layers; ++i) {
    const int64_t width = (*list)[is_list ? i : 0];
    if (width != 2 && width != 3 && width != 4 && width != 8 && width != CodeRecipe::kExact)
      fail(kWhat, ": ", used, " ", width, " is not one of 2, 3, 4, 8, 16 (exact)");
    bits.push_back(static_cast<int32_t>(width));
  }
  return bits;
}

DType scale_dtype(const JsonFields& fields) {
  const std::string name = fields.string("scale_dtype").value_or("f16");
  const auto dtype = dtype_from_name(name);
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16)
    fail(kWhat, ": scale_dtype ", in_quotes(name), " is not one of f16, bf16, f32");
  return *dtype;
}

int32_t group_size(const JsonFields& fields) {
  const int64_t size = fields.integer("q_group_size").value_or(64);
  if (size < 1 || size > kMaxGroup)
    fail(kWhat, ": q_group_size ", size, " must be 1 to ", kMaxGroup);
  return static_cast<int32_t>(size);
}

}  // namespace

LarderQuantizedConfig read_larder_quantized_config(const std::string& config,
                                                   std::span<const LayerSpec> specs) {
  const Json json = config.empty() ? Json::object() : parse_json(config, kWhat);
  const JsonFields fields(json, kWhat);
  refuse_unknown(json);
  LarderQuantizedConfig result;
  result.residual_length = fields.integer("residual_length").value_or(128);
  if (result.residual_length < 0 || result.residual_length > INT32_MAX)
    fail(kWhat, ": residual_length ", result.residual_length, " must be 0 to ", INT32_MAX);
  result.hadamard = fields.boolean("hadamard").value_or(false);
  const std::vector<int32_t> key_bits = bits_of(fields, "nbits_key", specs.size());
  const std::vector<int32_t> value_bits = bits_of(fields, "nbits_value", specs.size());
  CodeRecipe recipe;
  recipe.group = group_size(fields);
  recipe.symmetric = fields.boolean("symmetric").value_or(false);
  recipe.scale_dtype = scale_dtype(fields);
  const bool per_channel = fields.boolean("keys_per_channel").value_or(true);
  if (per_channel && kCodedBlock % std::min(recipe.group, kCodedBlock) != 0) {
    fail(kWhat, ": q_group_size ", recipe.group, " does not divide the ", kCodedBlock,
         " tokens that keys per channel are cut into; use 8, 16, 32 or 64, or keys_per_channel "
         "false");
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (result.hadamard && !std::has_single_bit(static_cast<uint32_t>(specs[i].head_dim))) {
      fail(kWhat, ": hadamard needs a head_dim that is a power of two, not ", specs[i].head_dim);
    }
    recipe.bits = value_bits[i];
    recipe.search = fields.boolean("search").value_or(recipe.bits <= 4);
    result.value.push_back(recipe);
    CodeRecipe key = recipe;
    key.bits = key_bits[i];
    key.search = fields.boolean("search").value_or(key.bits <= 4);
    key.per_channel = per_channel;
    if (per_channel) key.group = std::min(key.group, kCodedBlock);
    result.key.push_back(key);
  }
  return result;
}

}  // namespace larder
