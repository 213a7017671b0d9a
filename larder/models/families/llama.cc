// LlamaForCausalLM: Llama 1 to 3.2 and the many models that share its form. Defaults are those of
// transformers' LlamaConfig.
#include "larder/models/common_config.h"
#include "larder/models/families/llama_names.h"

namespace larder {
namespace {

void read_config(const JsonFields& config, DecoderConfig& out, ConfigProblems& problems) {
  const ConfigReader reader(config, problems);
  read_common_config(reader,
                     {.max_position_embeddings = 2048, .bos_token_id = 1, .eos_token_id = 2}, out);
  out.hidden_act =
      read_activation(reader, "hidden_act", Activation::kSilu, NullActivation::kRefused);
  out.attention_bias = reader.flag("attention_bias", false);
  out.mlp_bias = reader.flag("mlp_bias", false);
  // Llama itself has neither window nor chunks: beside no layer_types, a window is a stray key. A
  // list is followed.
  read_layer_types(
      reader, [](int64_t) { return LayerType::kFullAttention; }, out);
  const std::string_view chunks = out.attention_chunk_size > 0 ? "attention_chunk_size" : "";
  refuse_foreign_keys(reader, {"attention_bias", "mlp_bias", chunks});
}

}  // namespace

extern const Family kLlamaFamily;
const Family kLlamaFamily = {"LlamaForCausalLM", "llama", read_config, llama_layer_names,
                             llama_model_names};

}  // namespace larder
