#include "tests/support/counted_cache.h"

#include <set>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/dense_layer.h"

namespace larder::test {
namespace {

class CountedBlocks final : public BlockSource {
 public:
  CountedBlocks(std::shared_ptr<BlockSource> source, int64_t num_blocks)
      : source_(std::move(source)), left_(std::make_shared<int64_t>(num_blocks)) {}
  BlockPtr make(size_t bytes) override {
    if (*left_ == 0) fail_as(ErrorKind::kNoRoom, "no block is free");
    BlockPtr block = source_->make(bytes);
    --*left_;
    CacheBlock* const held = block.get();
    return {held, [left = left_, block = std::move(block)](CacheBlock*) mutable {
              block.reset();
              ++*left;
            }};
  }
  void copy(CacheBlock& to, const CacheBlock& from, size_t offset, size_t bytes) override {
    source_->copy(to, from, offset, bytes);
  }

 private:
  std::shared_ptr<BlockSource> source_;
  std::shared_ptr<int64_t> left_;
};

std::vector<std::unique_ptr<CacheLayer>> make_counted(std::span<const LayerSpec> specs,
                                                      const CacheOptions& options,
                                                      const CacheMemory& memory) {
  const Json config = parse_json(options.config, "cache_config");
  const auto blocks = std::make_shared<CountedBlocks>(
      memory.blocks, config.at("num_blocks").get<int64_t>() * static_cast<int64_t>(specs.size()));
  std::vector<std::unique_ptr<CacheLayer>> layers;
  for (const LayerSpec& spec : specs) {
    const DenseStorage storage{config.at("block_size").get<int32_t>(), DenseStorage::kUnbounded};
    layers.push_back(std::make_unique<DenseLayer>(spec, options.dtype, storage, blocks));
  }
  return layers;
}

class CountedView final : public PoolView {
 public:
  CountedView(const Cache& cache, int64_t block_size, int64_t num_blocks)
      : cache_(cache), block_size_(block_size), num_blocks_(num_blocks * cache.num_layers()) {}
  int64_t num_blocks() const override { return num_blocks_; }
  int64_t num_free() const override {
    std::set<const CacheBlock*> held;
    for (int32_t i = 0; i < cache_.num_layers(); ++i)
      cache_.layer(i).for_each_block([&](CacheBlock& block) { held.insert(&block); });
    return num_blocks_ - static_cast<int64_t>(held.size());
  }
  int64_t blocks_for(int64_t len) const override {
    return cache_.num_layers() * ((len + block_size_ - 1) / block_size_);
  }

 private:
  const Cache& cache_;
  int64_t block_size_, num_blocks_;
};

}  // namespace

CacheRegistry registry_with_counted() {
  CacheRegistry registry;
  registry.add({"counted", make_counted, false});
  return registry;
}

std::string counted_config(int64_t block_size, int64_t num_blocks) {
  return Json{{"block_size", block_size}, {"num_blocks", num_blocks}}.dump();
}

std::unique_ptr<PoolView> counted_pool_view(const Cache& cache, int64_t block_size,
                                            int64_t num_blocks) {
  return std::make_unique<CountedView>(cache, block_size, num_blocks);
}

void use_pool(EngineOptions& options, int64_t block_size, int64_t num_blocks) {
  options.session.cache_implementation = "counted";
  options.session.cache_config = counted_config(block_size, num_blocks);
  options.make_pool_view = [=](const Cache& cache) {
    return counted_pool_view(cache, block_size, num_blocks);
  };
}

}  // namespace larder::test
