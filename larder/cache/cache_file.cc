#include "larder/cache/cache_file.h"

#include <algorithm>
#include <functional>

#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/cache_file_names.h"

namespace larder {
namespace {

using namespace cache_file;

// What is in the file: the tensors' names, dtypes and shapes in order, and their checksums as they
// are written.
class Writer {
 public:
  Writer(const Cache& cache, std::span<const std::vector<int32_t>> tokens, Allocator& allocator)
      : cache_(cache), tokens_(tokens), allocator_(allocator) {
    for (int32_t i = 0; i < cache.num_layers(); ++i)
      parts_.push_back({part_name("layer", i), &cache.layer(i)});
    for (int32_t i = 0; i < cache.num_cross(); ++i)
      parts_.push_back({part_name("cross", i), &cache.cross(i)});
  }

  void write(const std::filesystem::path& path, const CacheOrigin& origin) {
    // Wider types first, as the format asks for the sake of alignment.
    pass(kAllWidths, [&](TensorToWrite tensor) {
      tensor.data = nullptr;
      plan_.push_back(std::move(tensor));
    });
    std::ranges::stable_sort(plan_, std::greater(),
                             [](const TensorToWrite& tensor) { return dtype_size(tensor.dtype); });
    SealedStream stream(path, kCacheFile, std::move(plan_), origin, metadata());
    for (const size_t width : kWidths)
      pass(width, [&](const TensorToWrite& tensor) { stream.write(tensor); });
    stream.commit();
  }

 private:
  static constexpr size_t kWidths[] = {8, 4, 2, 1};
  static constexpr size_t kAllWidths = 15;
  struct Part {
    std::string name;
    const CacheLayer* layer;
    size_t widths = kAllWidths;  // those that it may have; all until the first pass knows
  };

  // Calls `body` for each tensor of these widths, a bit each. One row of one layer is in memory at
  // a time.
  template <class Body>
  void pass(size_t widths, const Body& body) {
    for (size_t row = 0; (widths & 4) != 0 && row < tokens_.size(); ++row) {
      body({row_name(row) + kTokens,
            DType::kI32,
            {static_cast<int64_t>(tokens_[row].size())},
            tokens_[row].data()});
    }
    for (Part& part : parts_) {
      if ((part.widths & widths) == 0) continue;
      size_t found = 0;
      for (int32_t row = 0; row < part.layer->batch(); ++row) {
        const RowImage image = part.layer->save(row, allocator_);
        for (const SavedTensor& saved : image.tensors) {
          const TensorView& tensor = saved.tensor.view();
          found |= dtype_size(tensor.dtype);
          if ((dtype_size(tensor.dtype) & widths) == 0) continue;
          body({row_name(static_cast<size_t>(row)) + part.name + saved.name,
                tensor.dtype,
                {tensor.shape.dims().begin(), tensor.shape.dims().end()},
                tensor.data});
        }
      }
      part.widths = found;
    }
  }

  std::map<std::string, std::string> metadata() const {
    Json formats = Json::array(), cross = Json::array(), rows = Json::array();
    for (int32_t i = 0; i < cache_.num_layers(); ++i) formats.push_back(cache_.layer(i).format());
    for (int32_t i = 0; i < cache_.num_cross(); ++i) cross.push_back(cache_.cross(i).format());
    for (int32_t row = 0; row < cache_.batch(); ++row) {
      Json lens = Json::array();
      for (int32_t i = 0; i < cache_.num_cross(); ++i) lens.push_back(cache_.cross(i).seq_len(row));
      rows.push_back({{"seq_len", cache_.seq_len(row)}, {"cross", lens}});
    }
    return {{"layers", formats.dump()}, {"cross_layers", cross.dump()}, {"rows", rows.dump()}};
  }

  const Cache& cache_;
  std::span<const std::vector<int32_t>> tokens_;
  Allocator& allocator_;
  std::vector<Part> parts_;
  std::vector<TensorToWrite> plan_;
};

}  // namespace

namespace cache_file {

std::string row_name(size_t row) { return str("row.", row, "."); }
std::string part_name(std::string_view part, int32_t index) { return str(part, ".", index, "."); }

}  // namespace cache_file

void save_cache(const std::filesystem::path& path, const Cache& cache,
                std::span<const std::vector<int32_t>> tokens, const CacheOrigin& origin,
                Allocator& allocator) {
  LARDER_ASSERT(tokens.size() == static_cast<size_t>(cache.batch()));
  for (size_t row = 0; row < tokens.size(); ++row) {
    const int64_t held = cache.seq_len(static_cast<int32_t>(row));
    if (static_cast<int64_t>(tokens[row].size()) < held) {
      fail("row ", row, " of the cache holds ", held, " tokens, but only ", tokens[row].size(),
           " were given to save with it");
    }
  }
  Writer(cache, tokens, allocator).write(path, origin);
}

}  // namespace larder
