#include "larder/models/common_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "larder/base/json.h"

namespace larder {
namespace {

// Far above any model; it bounds what a hostile file can make a reader allocate.
constexpr int64_t kMaxLayers = 1 << 16;
constexpr int64_t kMaxHeadDim = 1 << 16;
constexpr int64_t kMaxLength = int64_t{1} << 53;  // positions stay whole numbers in double

void read_sizes(const ConfigReader& reader, const FamilyDefaults& defaults, DecoderConfig& out) {
  out.vocab_size = reader.size("vocab_size", std::nullopt);
  out.hidden_size = reader.size("hidden_size", std::nullopt);
  out.intermediate_size = reader.size("intermediate_size", std::nullopt);
  out.num_hidden_layers = reader.size("num_hidden_layers", std::nullopt, kMaxLayers);
  out.num_attention_heads = reader.size("num_attention_heads", std::nullopt);
  out.max_position_embeddings =
      reader.size("max_position_embeddings", defaults.max_position_embeddings, kMaxLength);
  out.num_key_value_heads = reader.size_or_null("num_key_value_heads", defaults.num_key_value_heads,
                                                out.num_attention_heads);
  if (out.num_key_value_heads > 0 && out.num_attention_heads % out.num_key_value_heads != 0) {
    reader.problem("num_attention_heads ", out.num_attention_heads,
                   " is not a multiple of num_key_value_heads ", out.num_key_value_heads);
  }
}

void read_head_dim(const ConfigReader& reader, const FamilyDefaults& defaults, DecoderConfig& out) {
  out.head_dim = reader.size_or_null("head_dim", defaults.head_dim, 0, kMaxHeadDim);
  const auto& fields = reader.fields();
  const bool derived =
      fields.is_null("head_dim") || (!fields.has("head_dim") && !defaults.head_dim);
  if (!derived || out.hidden_size == 0 || out.num_attention_heads == 0) return;
  if (out.hidden_size % out.num_attention_heads != 0) {
    reader.problem("hidden_size ", out.hidden_size, " is not a multiple of num_attention_heads ",
                   out.num_attention_heads, " and there is no head_dim");
    return;
  }
  out.head_dim = out.hidden_size / out.num_attention_heads;
  if (out.head_dim > kMaxHeadDim) {
    reader.problem("head_dim ", out.head_dim, " (hidden_size / num_attention_heads) is above ",
                   kMaxHeadDim);
    out.head_dim = 0;
  }
}

// The bytes of every weight, at 8 a number, must be countable.
void check_products(const ConfigReader& reader, const DecoderConfig& config) {
  const auto check = [&](std::string_view a, int64_t x, std::string_view b, int64_t y) {
    int64_t bytes = 0;
    if (!__builtin_mul_overflow(x, y, &bytes) && !__builtin_mul_overflow(bytes, 8, &bytes))
      return true;
    reader.problem(a, " ", x, " x ", b, " ", y, " is more than 64 bits can count");
    return false;
  };
  check("vocab_size", config.vocab_size, "hidden_size", config.hidden_size);
  check("intermediate_size", config.intermediate_size, "hidden_size", config.hidden_size);
  check("num_attention_heads", config.num_attention_heads, "head_dim", config.head_dim) &&
      check("num_attention_heads * head_dim", config.num_attention_heads * config.head_dim,
            "hidden_size", config.hidden_size);
}

void read_window(const ConfigReader& reader, const FamilyDefaults& defaults, DecoderConfig& out) {
  out.sliding_window =
      reader.size_or_null("sliding_window", defaults.sliding_window, 0, kMaxLength);
  if (!reader.flag("use_sliding_window", true)) out.sliding_window = 0;
}

void read_rope(const ConfigReader& reader, const FamilyDefaults& defaults, DecoderConfig& out) {
  // Without these two there is a problem already, and nothing to read rope for.
  if (out.head_dim == 0 || out.max_position_embeddings == 0) return;
  try {
    out.rope = read_rope_config(reader.fields(), out.head_dim, defaults.rope_theta,
                                out.max_position_embeddings);
  } catch (const Error& error) {
    reader.problems().add_error(error);
  }
}

std::optional<LayerType> layer_type(const std::string& name) {
  if (name == "full_attention") return LayerType::kFullAttention;
  if (name == "sliding_attention") return LayerType::kSlidingAttention;
  if (name == "chunked_attention") return LayerType::kChunkedAttention;
  return std::nullopt;
}

void take_layer_list(const ConfigReader& reader, const std::vector<std::string>& names,
                     DecoderConfig& out) {
  if (static_cast<int64_t>(names.size()) != out.num_hidden_layers) {
    reader.problem("layer_types has ", names.size(), " entries for num_hidden_layers ",
                   out.num_hidden_layers);
    return;
  }
  for (const std::string& name : names) {
    const auto type = layer_type(name);
    if (!type) {
      reader.problem("layer_types: ", in_quotes(name),
                     " is not supported (supported: full_attention, sliding_attention, "
                     "chunked_attention)");
      return;
    }
    out.layer_types.push_back(*type);
  }
}

}  // namespace

std::optional<DType> read_dtype(const ConfigReader& reader) {
  // Two spellings of one key; the newer one wins.
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const auto name = reader.text(key);
    if (!name || *name == "auto") continue;
    const auto dtype = dtype_from_name(*name);
    if (dtype && is_float(*dtype)) return dtype;
    reader.problem(key, " ", in_quotes(*name), " is not a floating-point type that is supported");
    return std::nullopt;
  }
  return std::nullopt;
}

void read_common_config(const ConfigReader& reader, const FamilyDefaults& defaults,
                        DecoderConfig& out) {
  read_sizes(reader, defaults, out);
  read_head_dim(reader, defaults, out);
  check_products(reader, out);
  out.rms_norm_eps = reader.number("rms_norm_eps", defaults.rms_norm_eps);
  out.tie_word_embeddings = reader.flag("tie_word_embeddings", defaults.tie_word_embeddings);
  if (out.head_dim > 0) out.attention_scale = 1 / std::sqrt(static_cast<double>(out.head_dim));
  read_window(reader, defaults, out);
  read_rope(reader, defaults, out);
  out.dtype = read_dtype(reader);
  out.bos_token_id = reader.id("bos_token_id", defaults.bos_token_id);
  out.pad_token_id = reader.id("pad_token_id", defaults.pad_token_id);
  out.eos_token_ids = reader.ids("eos_token_id", defaults.eos_token_id);
}

void read_layer_types(const ConfigReader& reader, LayerType (*pattern)(int64_t layer),
                      DecoderConfig& out) {
  out.layer_types.clear();
  if (out.num_hidden_layers == 0) return;
  if (const auto names = reader.texts("layer_types")) {
    take_layer_list(reader, *names, out);
  } else {
    for (int64_t layer = 0; layer < out.num_hidden_layers; ++layer)
      out.layer_types.push_back(out.sliding_window > 0 ? pattern(layer)
                                                       : LayerType::kFullAttention);
  }
  const auto has = [&](LayerType type) {
    return std::find(out.layer_types.begin(), out.layer_types.end(), type) != out.layer_types.end();
  };
  const bool slides = has(LayerType::kSlidingAttention), chunks = has(LayerType::kChunkedAttention);
  if (slides && out.sliding_window == 0)
    reader.problem("layer_types names sliding_attention, but sliding_window is off");
  if (!slides) out.sliding_window = 0;
  out.attention_chunk_size =
      chunks ? reader.size_or_null("attention_chunk_size", 0, 0, kMaxLength) : 0;
  if (chunks && out.attention_chunk_size == 0)
    reader.problem("layer_types: ", in_quotes("chunked_attention"), " needs attention_chunk_size");
}

Activation read_activation(const ConfigReader& reader, std::string_view key, Activation absent,
                           NullActivation null) {
  if (!reader.fields().has(key)) return absent;
  if (reader.fields().is_null(key)) {
    if (null == NullActivation::kRefused) reader.problem(key, " is null, which means nothing here");
    return absent;
  }
  const auto name = reader.text(key);
  if (!name) return absent;
  if (*name == "silu") return Activation::kSilu;
  if (*name == "gelu") return Activation::kGelu;
  if (*name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  reader.problem(key, " ", in_quotes(*name),
                 " is not supported (supported: silu, gelu, gelu_pytorch_tanh)");
  return absent;
}

}  // namespace larder
