#include "larder/cache/rows.h"

#include "larder/base/error.h"

namespace larder {

void check_row(int64_t row, int32_t batch) {
  if (row < 0 || row >= batch) fail("row ", row, " of a cache of ", batch, " rows");
}

BlockPtr take_block(std::vector<BlockPtr>& spare, BlockSource& source, size_t bytes) {
  if (spare.empty() || spare.back()->size() != bytes) return source.make(bytes);
  BlockPtr block = std::move(spare.back());
  spare.pop_back();
  return block;
}

void retire_blocks(std::vector<BlockPtr>& blocks, std::vector<BlockPtr>& spare) noexcept {
  for (BlockPtr& block : blocks) {
    if (block.use_count() == 1 && spare.size() < spare.capacity())
      spare.push_back(std::move(block));
  }
  blocks.clear();
}

TokenTensors read_tokens(const KVLayer& layer, int32_t row, Allocator& allocator,
                         std::string_view tag) {
  const LayerSpec& spec = layer.spec();
  const Shape shape{spec.num_kv_heads, layer.kept_len(row), spec.head_dim};
  TokenTensors tokens{Tensor(allocator, shape, layer.dtype(), tag),
                      Tensor(allocator, shape, layer.dtype(), tag)};
  layer.read(row, tokens.k, tokens.v);
  return tokens;
}

RowImage save_tokens(const KVLayer& layer, int32_t row, Allocator& allocator) {
  TokenTensors tokens = read_tokens(layer, row, allocator, "save");
  RowImage image{layer.seq_len(row), {}};
  image.tensors.push_back({"k", std::move(tokens.k)});
  image.tensors.push_back({"v", std::move(tokens.v)});
  return image;
}

}  // namespace larder
