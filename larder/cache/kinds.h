// The factories of the built-in cache kinds, each defined in the kind's own file; see
// MakeCacheLayers. The last one is of no kind: state layers are the same in all.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "larder/cache/cache.h"

namespace larder {

using CacheLayers = std::vector<std::unique_ptr<CacheLayer>>;

CacheLayers make_dynamic_layers(std::span<const LayerSpec>, const CacheOptions&,
                                const CacheMemory&);
CacheLayers make_dynamic_full_layers(std::span<const LayerSpec>, const CacheOptions&,
                                     const CacheMemory&);
CacheLayers make_static_layers(std::span<const LayerSpec>, const CacheOptions&, const CacheMemory&);
CacheLayers make_encoder_decoder_layers(std::span<const LayerSpec>, const CacheOptions&,
                                        const CacheMemory&);
CacheLayers make_sliding_window_layers(std::span<const LayerSpec>, const CacheOptions&,
                                       const CacheMemory&);
CacheLayers make_hybrid_layers(std::span<const LayerSpec>, const CacheOptions&, const CacheMemory&);
CacheLayers make_hybrid_chunked_layers(std::span<const LayerSpec>, const CacheOptions&,
                                       const CacheMemory&);
CacheLayers make_quantized_layers(std::span<const LayerSpec>, const CacheOptions&,
                                  const CacheMemory&);
CacheLayers make_offloaded_layers(std::span<const LayerSpec>, const CacheOptions&,
                                  const CacheMemory&);
CacheLayers make_offloaded_static_layers(std::span<const LayerSpec>, const CacheOptions&,
                                         const CacheMemory&);
CacheLayers make_offloaded_hybrid_layers(std::span<const LayerSpec>, const CacheOptions&,
                                         const CacheMemory&);

CacheLayers make_paged_layers(std::span<const LayerSpec>, const CacheOptions&, const CacheMemory&);

// The quantized kind's own backend, {"backend": "larder"}.
CacheLayers make_larder_quantized_layers(std::span<const LayerSpec>, const CacheOptions&,
                                         const CacheMemory&);

// What the four kinds of fixed size share: they differ in name only. A full layer is one block of
// max_cache_len tokens a row; a sliding or chunked one a ring of the window, or of max_cache_len
// where that is less.
CacheLayers make_fixed_layers(std::string_view kind, std::span<const LayerSpec> specs,
                              const CacheOptions& options, const CacheMemory& memory);

std::unique_ptr<CacheLayer> make_state_layer(const LayerSpec&, Allocator&);

// Throws, naming `kind`, when options.config holds settings: for kinds that have none.
void refuse_config(std::string_view kind, const CacheOptions& options);

}  // namespace larder
