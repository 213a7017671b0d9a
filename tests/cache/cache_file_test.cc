// Cache files without a model: every kind there and back, and every way in which a file can be
// wrong.
#include "larder/cache/cache_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/cache/registry.h"
#include "larder/tensor/safetensors.h"
#include "tests/support/cache_contents.h"
#include "tests/support/error_of.h"
#include "tests/support/machine.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

const CacheOrigin kOrigin{R"({"hidden_size":8,"rope_theta":10000.0})", "00ff", "bf16"};
using Tokens = std::vector<std::vector<int32_t>>;

class CacheFiles : public ::testing::TestWithParam<std::string> {
 protected:
  Cache make(int64_t capacity = 120, int layers = 2, int32_t heads = 1,
             DType dtype = DType::kBF16) {
    return CacheRegistry().make(
        GetParam(), std::vector<LayerSpec>(static_cast<size_t>(layers), LayerSpec{heads, 64, 0}),
        {.dtype = dtype, .max_cache_len = capacity}, host_);
  }
  // Rows of 9 and 4 tokens; the second has one token more that was not fed.
  Cache fed() {
    Cache cache = make();
    feed_random(cache, machine_.exec, {{0, 9}, {1, 4}});
    return cache;
  }
  static Tokens tokens() { return {{1, 2, 3, 4, 5, 6, 7, 8, 9}, {5, 4, 3, 2, 1}}; }
  std::string saved() {
    save_cache(path_, fed(), tokens(), kOrigin, host_);
    return read_file(path_);
  }
  void write(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
  }
  // The refusal's text; checks that the cache that was to be loaded is as it was.
  std::string refusal(Cache& cache, const CacheOrigin& origin = kOrigin) {
    const auto before = contents(cache, 0);
    const int32_t batch = cache.batch();
    const std::string text = error_of([&] { CacheFile(path_).load(cache, origin); });
    EXPECT_EQ(cache.batch(), batch);
    EXPECT_TRUE(contents(cache, 0) == before);
    return text;
  }

  HostAllocator host_;
  Machine machine_;
  TempFolder folder_;
  const std::filesystem::path path_ = folder_ / "cache.safetensors";
};
INSTANTIATE_TEST_SUITE_P(Registry, CacheFiles, ::testing::ValuesIn(CacheRegistry().names()));

TEST_P(CacheFiles, Case38_AGoodFileGivesTheSameCache) {
  saved();
  Cache cache = fed(), loaded = make();
  feed_random(loaded, machine_.exec, {{0, 30}}, 99);
  const CacheFile file(path_);
  EXPECT_EQ(file.tokens(), tokens());
  file.load(loaded, kOrigin);
  ASSERT_EQ(loaded.batch(), 2);
  for (int step = 0; step < 20; ++step) {
    for (int32_t row = 0; row < 2; ++row) {
      EXPECT_EQ(loaded.seq_len(row), cache.seq_len(row));
      ASSERT_TRUE(contents(loaded, row) == contents(cache, row)) << "row " << row;
    }
    for (Cache* both : {&cache, &loaded}) feed_random(*both, machine_.exec, {{0, 1}, {1, 3}});
  }
}

TEST_P(CacheFiles, Case38_AFileCutAnywhereIsRefused) {
  const std::string good = saved();
  Cache cache = fed();
  // Every length of the head for one kind; the others have the same container.
  const size_t stride = kSanitized ? 211 : GetParam() == "dynamic" ? 1 : 23;
  for (size_t length = 0; length < good.size(); length += length < 2200 ? stride : 197) {
    write(good.substr(0, length));
    EXPECT_NE(refusal(cache), "") << "cut at " << length;
  }
  write(good + "x");
  EXPECT_NE(refusal(cache), "");
}

TEST_P(CacheFiles, Case38_AFlippedByteIsRefused) {
  const std::string good = saved();
  Cache cache = fed();
  const size_t stride = kSanitized ? 31 : GetParam() == "dynamic" ? 1 : 11;
  for (size_t at = 0; at < good.size(); at += at < 256 ? stride : 197) {
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write(bad);
      EXPECT_NE(refusal(cache), "") << "byte " << at << " bit " << bit;
    }
  }
}

TEST_P(CacheFiles, Case38_AnotherModelIsRefusedWithWhatDiffers) {
  saved();
  Cache cache = fed();
  CacheOrigin other = kOrigin;
  other.config = R"({"hidden_size":8,"rope_theta":20000.0})";
  std::string text = refusal(cache, other);
  EXPECT_NE(text.find("rope_theta is 10000.0 in the file, but 20000.0"), std::string::npos) << text;
  other.config = R"({"hidden_size":8,"rope_theta":10000.0,"rope_scaling":{"type":"linear"}})";
  text = refusal(cache, other);
  EXPECT_NE(text.find("rope_scaling is absent in the file"), std::string::npos) << text;
  other = kOrigin;
  other.weights = "00fe";
  EXPECT_NE(refusal(cache, other).find("other weights"), std::string::npos);
  other = kOrigin;
  other.dtype = "f32";
  EXPECT_NE(refusal(cache, other).find("--dtype bf16"), std::string::npos);
}

TEST_P(CacheFiles, Case38_AnotherCacheIsRefusedWithWhatDiffers) {
  saved();
  Cache layers = make(120, 3), heads = make(120, 2, 2), dtype = make(120, 2, 1, DType::kF32);
  EXPECT_NE(refusal(layers).find("it has 2 layers, the cache has 3"), std::string::npos);
  EXPECT_NE(refusal(heads), "");
  EXPECT_NE(refusal(dtype).find("is stored as"), std::string::npos);
  for (const std::string& kind : CacheRegistry().names()) {
    Cache other = CacheRegistry().make(kind, std::vector<LayerSpec>(2, LayerSpec{1, 64, 0}),
                                       {.dtype = DType::kBF16, .max_cache_len = 120}, host_);
    const bool alike = other.layer(0).format() == make().layer(0).format();
    EXPECT_EQ(error_of([&] { CacheFile(path_).load(other, kOrigin); }).empty(), alike) << kind;
  }
}

TEST_P(CacheFiles, Case38_ASmallerCapacityIsRefused) {
  saved();
  Cache small = make(8);
  if (small.max_len() < 0) GTEST_SKIP() << "it grows";
  const std::string text = refusal(small);
  EXPECT_NE(text.find("9"), std::string::npos) << text;
  EXPECT_NE(text.find("8"), std::string::npos) << text;
}

TEST_P(CacheFiles, Case38_AnotherVersionIsRefused) {
  std::string bytes = saved();
  const std::string version = "\"larder.version\":\"1\"";
  bytes.replace(bytes.find(version), version.size(), "\"larder.version\":\"0\"");
  write(bytes);
  Cache cache = fed();
  EXPECT_NE(refusal(cache).find("version \"0\""), std::string::npos);
}

TEST_P(CacheFiles, AreSafetensorsWithEverythingInThem) {
  saved();
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.find("row.1.tokens")->shape, (std::vector<int64_t>{5}));
  EXPECT_EQ(file.metadata().at("weights"), "00ff");
  for (const StoredTensor& tensor : file.tensors())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % dtype_size(tensor.dtype), 0u);
}

TEST_P(CacheFiles, Case38_AFullDiskLeavesTheOldFile) {
  const std::string good = saved();
  Cache cache = fed();
  feed_random(cache, machine_.exec, {{0, 1}});
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  Tokens ten = tokens();
  ten[0].push_back(10);
  const std::string text = error_of([&] { save_cache(path_, cache, ten, kOrigin, host_); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(text, "");
  EXPECT_TRUE(read_file(path_) == good);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_.parent_path()), {}), 1);
}

TEST_P(CacheFiles, RefusesFewerTokensThanTheCacheHolds) {
  Cache cache = fed();
  const Tokens short_list = {{1, 2, 3}, {5, 4, 3, 2, 1}};
  EXPECT_NE(error_of([&] { save_cache(path_, cache, short_list, kOrigin, host_); }), "");
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace larder::test
