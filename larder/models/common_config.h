// The steps of reading config.json that families share. Each takes what differs as an argument and
// adds what is wrong to the reader's problems.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "larder/models/config_reader.h"
#include "larder/models/decoder_config.h"

namespace larder {

// What a family's configuration class says for a key that is absent. The sizes that decide the
// shapes of weights (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
// vocab_size) have no default here on purpose: a file without them is broken, and a guess would
// fail later with a stranger message.
struct FamilyDefaults {
  int64_t max_position_embeddings = 0;
  std::optional<int64_t> num_key_value_heads = {};  // none: as many as query heads
  std::optional<int64_t> head_dim = {};             // none: hidden_size / num_attention_heads
  std::optional<int64_t> sliding_window = {};       // none: off
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  std::optional<int64_t> bos_token_id = {}, eos_token_id = {}, pad_token_id = {};
};

// Sizes, norms, ids, dtype, tie_word_embeddings, head_dim and its scale, the window and rope: all
// but layer_types, the activation, biases and caps.
void read_common_config(const ConfigReader& reader, const FamilyDefaults& defaults,
                        DecoderConfig& out);

// layer_types. A list wins; without one, `pattern` says which layers slide while there is a window.
// Needs: num_hidden_layers and sliding_window were read. Gives sliding_window 0 when none slides.
void read_layer_types(const ConfigReader& reader, LayerType (*pattern)(int64_t layer),
                      DecoderConfig& out);

// "dtype" or its older spelling "torch_dtype"; nullopt for absent, null and "auto".
std::optional<DType> read_dtype(const ConfigReader& reader);

enum class NullActivation { kRefused, kIsDefault };

// silu, gelu or gelu_pytorch_tanh under `key`; `absent` where the key is absent.
Activation read_activation(const ConfigReader& reader, std::string_view key, Activation absent,
                           NullActivation null);

// Refuses, by name, keys with a value that changes the arithmetic in a way the family lacks; `own`
// are those that it has. Other unknown keys are ignored.
void refuse_foreign_keys(const ConfigReader& reader, std::initializer_list<std::string_view> own);

}  // namespace larder
