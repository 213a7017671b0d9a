// MistralForCausalLM: Llama with a sliding window on every layer in its first version and none in
// the later ones (sliding_window null). Defaults are those of transformers' MistralConfig.
#include "larder/models/common_config.h"
#include "larder/models/families/llama_names.h"

namespace larder {
namespace {

void read_config(const JsonFields& config, DecoderConfig& out, ConfigProblems& problems) {
  const ConfigReader reader(config, problems);
  read_common_config(reader,
                     {.max_position_embeddings = 4096 * 32,
                      .num_key_value_heads = 8,
                      .sliding_window = 4096,
                      .bos_token_id = 1,
                      .eos_token_id = 2},
                     out);
  out.hidden_act =
      read_activation(reader, "hidden_act", Activation::kSilu, NullActivation::kRefused);
  read_layer_types(
      reader, [](int64_t) { return LayerType::kSlidingAttention; }, out);
  refuse_foreign_keys(reader, {});
}

}  // namespace

extern const Family kMistralFamily;
const Family kMistralFamily = {"MistralForCausalLM", "mistral", read_config, llama_layer_names,
                               llama_model_names};

}  // namespace larder
