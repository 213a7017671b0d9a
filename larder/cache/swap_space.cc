#include "larder/cache/swap_space.h"

#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/shared_blocks.h"

namespace larder {

SwapSpace::SwapSpace(Cache& cache, std::unique_ptr<BlockFile> file)
    : cache_(cache),
      pool_(shared_pool(cache, "swapping")),
      block_bytes_(pool_.block_bytes(0)),
      file_(std::move(file)) {}

int32_t SwapSpace::take_place() {
  if (free_.empty()) {
    free_.reserve(static_cast<size_t>(places_) + 1);  // so that drop() never allocates
    file_->allocate(offset_of(places_), block_bytes_);
    return places_++;
  }
  const int32_t place = free_.back();
  free_.pop_back();
  return place;
}

SwapSpace::Row SwapSpace::put(int32_t row) {
  Row aside;
  aside.len = cache_.seq_len(row);
  try {
    for (int32_t l = 0; l < cache_.num_layers(); ++l) {
      const KVLayer& layer = cache_.kv(l);
      const int64_t size = layer.shared_block_size();
      LARDER_ASSERT(size > 0);
      const int64_t first = (aside.len - layer.kept_len(row)) / size;
      aside.first_block.push_back(first);
      for (int64_t index = first; index * size < aside.len; ++index) {
        const BlockPtr block = layer.shared_block(row, index);
        if (!block)
          fail_as(ErrorKind::kUnsupported, "row ", row, " begins within a block: it was converted");
        aside.places.push_back(take_place());
        const int64_t at = offset_of(aside.places.back());
        if (const int error = file_->write(at, block->data(), block_bytes_); error != 0)
          fail_as(ErrorKind::kIo, "cannot write ", file_->name(), ": ", std::strerror(error));
      }
    }
  } catch (...) {
    drop(aside);
    throw;
  }
  return aside;
}

void SwapSpace::get(int32_t row, const Row& aside) {
  std::vector<Cache::SharedBlocks> layers;
  size_t next = 0;
  for (int32_t l = 0; l < cache_.num_layers(); ++l) {
    const int64_t size = cache_.kv(l).shared_block_size();
    Cache::SharedBlocks& of = layers.emplace_back();
    of.first_block = aside.first_block[static_cast<size_t>(l)];
    of.len = aside.len;
    for (int64_t index = of.first_block; index * size < aside.len; ++index) {
      of.blocks.push_back(pool_.make(block_bytes_));
      const int64_t at = offset_of(aside.places[next++]);
      if (const int error = file_->read(at, of.blocks.back()->data(), block_bytes_); error != 0)
        fail_as(ErrorKind::kIo, "cannot read ", file_->name(), ": ", std::strerror(error));
    }
  }
  cache_.adopt(row, layers);
}

void SwapSpace::drop(Row& aside) noexcept {
  for (const int32_t place : aside.places) free_.push_back(place);
  aside = {};
}

}  // namespace larder
