#include "larder/cache/prefix_file.h"

#include <cstring>

#include "larder/base/checksum.h"
#include "larder/base/json.h"

namespace larder {
namespace {

constexpr SealedFormat kPrefixFile{"prefix file", "kv-prefixes", "1", "--prefix-folder"};
constexpr const char* kParents = "parents";  // [entries] places of them, -1: none
constexpr const char* kTokens = "tokens";    // [entries, block_size]
constexpr const char* kLayers = "layers";    // [entries, layers] 1: it has a block there

// Of each entry [blocks, bytes], as they lie in the pool.
std::string blocks_name(size_t entry) { return str("blocks.", entry); }

// What blocks must have in common to be exchanged.
std::string layout_of(const PrefixCache& prefixes) {
  Json layers = Json::array();
  const Cache& cache = prefixes.cache();
  for (int32_t l = 0; l < cache.num_layers(); ++l) {
    const LayerSpec& spec = cache.layer(l).spec();
    layers.push_back({cache.layer(l).format(), spec.num_kv_heads, spec.head_dim, spec.window});
  }
  return Json{{"block_size", prefixes.block_size()},
              {"block_bytes", prefixes.block_bytes()},
              {"layers", layers}}
      .dump();
}

std::vector<const std::byte*> present(const PrefixCache::Entry& entry) {
  std::vector<const std::byte*> blocks;
  for (const std::byte* block : entry.blocks)
    if (block != nullptr) blocks.push_back(block);
  return blocks;
}

TensorToWrite blocks_tensor(size_t entry, const std::vector<const std::byte*>& blocks,
                            size_t block_bytes) {
  return {blocks_name(entry),
          DType::kU8,
          {std::ssize(blocks), static_cast<int64_t>(block_bytes)},
          nullptr};
}

class Reader {
 public:
  Reader(const std::filesystem::path& path, const PrefixCache& prefixes)
      : file_(path, kPrefixFile), prefixes_(prefixes) {}

  std::vector<PrefixCache::Entry> read(const CacheOrigin& origin) const {
    file_.check_origin(origin);
    if (file_.meta("layout") != layout_of(prefixes_)) {
      file_.refuse("its blocks are ", file_.meta("layout"), ", but this cache's are ",
                   layout_of(prefixes_));
    }
    const auto layers = static_cast<size_t>(prefixes_.cache().num_layers());
    const auto size = static_cast<size_t>(prefixes_.block_size());
    const auto parents = values<int32_t>(kParents, DType::kI32);
    const auto tokens = values<int32_t>(kTokens, DType::kI32);
    const auto has = values<uint8_t>(kLayers, DType::kU8);
    if (tokens.size() != parents.size() * size || has.size() != parents.size() * layers)
      file_.refuse("its lists have other lengths than its ", parents.size(), " entries");
    std::vector<PrefixCache::Entry> entries(parents.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      if (parents[i] < -1 || parents[i] >= static_cast<int64_t>(i))
        file_.refuse("entry ", i, " stands behind ", parents[i], ", which is not before it");
      entries[i].parent = parents[i];
      entries[i].tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(i * size),
                               tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * size));
      read_blocks(i, std::span(has).subspan(i * layers, layers), entries[i]);
    }
    return entries;
  }

 private:
  template <class T>
  std::vector<T> values(const char* name, DType dtype) const {
    const StoredTensor* const tensor = file_.file().find(name);
    if (tensor == nullptr || tensor->dtype != dtype) file_.refuse("it has no list of ", name);
    std::vector<T> list(tensor->bytes / sizeof(T));
    if (!list.empty()) std::memcpy(list.data(), tensor->data, tensor->bytes);
    return list;
  }

  void read_blocks(size_t index, std::span<const uint8_t> has, PrefixCache::Entry& entry) const {
    const size_t bytes = prefixes_.block_bytes();
    const StoredTensor* const tensor = file_.file().find(blocks_name(index));
    if (tensor == nullptr) file_.refuse("blocks of entry ", index, " are missing");
    size_t at = 0;
    for (size_t l = 0; l < has.size(); ++l) {
      const bool keeps_all = prefixes_.cache().kv(static_cast<int32_t>(l)).sliding_window() == 0;
      if (keeps_all && has[l] == 0) file_.refuse("entry ", index, " lacks a block of layer ", l);
      if (has[l] != 0 && at + bytes > tensor->bytes)
        file_.refuse("blocks of entry ", index, " are missing");
      entry.blocks.push_back(has[l] == 0 ? nullptr : tensor->data + at);
      at += has[l] == 0 ? 0 : bytes;
    }
  }

  SealedFile file_;
  const PrefixCache& prefixes_;
};

}  // namespace

std::string prefix_file_name(const PrefixCache& prefixes, const CacheOrigin& origin) {
  std::string all = layout_of(prefixes);
  for (const std::string& part : {origin.config, origin.weights, origin.dtype}) all += part + "\n";
  return str("prefixes-", hex(checksum64(std::as_bytes(std::span(all)))), ".safetensors");
}

int64_t save_prefixes(const std::filesystem::path& path, PrefixCache& prefixes,
                      const CacheOrigin& origin) {
  const std::vector<PrefixCache::Entry> entries = prefixes.entries_of("");
  if (entries.empty()) return 0;
  std::vector<int32_t> parents, tokens;
  std::vector<uint8_t> has;
  for (const PrefixCache::Entry& entry : entries) {
    parents.push_back(static_cast<int32_t>(entry.parent));
    tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
    for (const std::byte* block : entry.blocks) has.push_back(block == nullptr ? 0 : 1);
  }
  const auto count = std::ssize(entries);
  const int64_t size = prefixes.block_size(), layers = prefixes.cache().num_layers();
  std::vector<TensorToWrite> tensors{{kParents, DType::kI32, {count}, parents.data()},
                                     {kTokens, DType::kI32, {count, size}, tokens.data()},
                                     {kLayers, DType::kU8, {count, layers}, has.data()}};
  const size_t lists = tensors.size();
  for (size_t i = 0; i < entries.size(); ++i)
    tensors.push_back(blocks_tensor(i, present(entries[i]), prefixes.block_bytes()));
  SealedStream stream(path, kPrefixFile, tensors, origin, {{"layout", layout_of(prefixes)}});
  for (size_t i = 0; i < lists; ++i) stream.write(tensors[i]);
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < entries.size(); ++i) {
    bytes.clear();
    for (const std::byte* block : present(entries[i]))
      bytes.insert(bytes.end(), block, block + prefixes.block_bytes());
    tensors[lists + i].data = bytes.data();
    stream.write(tensors[lists + i]);
  }
  stream.commit();
  return count;
}

int64_t load_prefixes(const std::filesystem::path& path, PrefixCache& prefixes,
                      const CacheOrigin& origin) {
  const Reader reader(path, prefixes);
  return prefixes.add_entries("", reader.read(origin));
}

}  // namespace larder
