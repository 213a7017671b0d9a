// The quantized cache's own backend: "quantized" with {"backend": "larder"}.
#include "larder/cache/dense_layer.h"
#include "larder/cache/kinds.h"
#include "larder/cache/larder_quantized_config.h"
#include "larder/cache/larder_quantized_layer.h"

namespace larder {

CacheLayers make_larder_quantized_layers(std::span<const LayerSpec> specs,
                                         const CacheOptions& options, const CacheMemory& memory) {
  const LarderQuantizedConfig config = read_larder_quantized_config(options.config, specs);
  CacheLayers layers;
  for (size_t i = 0; i < specs.size(); ++i) {
    const CodeRecipe &key = config.key[i], &value = config.value[i];
    if (key.bits == CodeRecipe::kExact && value.bits == CodeRecipe::kExact) {
      CacheOptions plain = options;
      plain.config.clear();
      layers.push_back(std::move(make_dynamic_layers(specs.subspan(i, 1), plain, memory)[0]));
      continue;
    }
    layers.push_back(std::make_unique<LarderQuantizedLayer>(
        specs[i],
        LarderQuantizedOptions{options.dtype, key, value, config.residual_length, config.hadamard,
                               options.rollback},
        memory.blocks));
  }
  return layers;
}

}  // namespace larder
