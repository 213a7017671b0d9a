// Conversion between every pair of cache kinds.
#include "larder/cache/convert.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "tests/support/cache_contents.h"
#include "tests/support/machine.h"
#include "tests/support/sanitized.h"

namespace larder::test {
namespace {

bool rounds(const std::string& kind) { return kind.find("quantized") != std::string::npos; }

class EveryPairOfKinds : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static constexpr int64_t kCapacity = 300;
  static const std::vector<LayerSpec>& specs() {
    static const std::vector<LayerSpec> kLayers(3, LayerSpec{2, 64, 0});
    return kLayers;
  }
  Cache make(const std::string& kind, Allocator& allocator) const {
    return registry_.make(kind, specs(), options(), allocator);
  }
  static CacheOptions options() { return {.dtype = DType::kBF16, .max_cache_len = kCapacity}; }
  std::string from() const { return std::get<0>(GetParam()); }
  std::string to() const { return std::get<1>(GetParam()); }
  bool inexact() const { return rounds(from()) || rounds(to()); }

  CacheRegistry registry_;
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Machine machine_;
};
INSTANTIATE_TEST_SUITE_P(Registry, EveryPairOfKinds,
                         ::testing::Combine(::testing::ValuesIn(CacheRegistry().names()),
                                            ::testing::ValuesIn(CacheRegistry().names())));

TEST_P(EveryPairOfKinds, KeepsTheTokensAndGoesOn) {
  Cache cache = make(from(), host_), plain = make(from(), host_);
  for (Cache* both : {&cache, &plain})
    feed_random(*both, machine_.exec, {{0, 150}, {1, 7}, {2, 64}});
  convert_cache(cache, to(), options(), registry_, host_);
  EXPECT_EQ(cache.layer(0).format(), make(to(), host_).layer(0).format());
  ASSERT_EQ(cache.batch(), 3);
  for (int32_t row = 0; row < 3; ++row) {
    EXPECT_EQ(cache.seq_len(row), plain.seq_len(row));
    EXPECT_TRUE(rounds(to()) || contents(cache, row) == contents(plain, row)) << "row " << row;
  }
  for (Cache* both : {&cache, &plain}) feed_random(*both, machine_.exec, {{0, 1}, {2, 30}});
  EXPECT_EQ(cache.seq_len(2), 94);
  EXPECT_TRUE(inexact() || contents(cache, 2) == contents(plain, 2));
}

TEST_P(EveryPairOfKinds, WhenMemoryRunsOutEveryTokenIsStillThere) {
  const std::vector<RandomFeed> before = {{0, 70}, {1, 7}}, after = {{0, 3}, {1, 3}};
  Cache plain = make(from(), host_);
  for (const auto& feeds : {before, after}) feed_random(plain, machine_.exec, feeds);
  const std::vector<std::byte> expected[] = {contents(plain, 0), contents(plain, 1)};
  for (size_t fail_at = 0;; fail_at += kSanitized ? 5 : 1) {
    FaultAllocator faults(tracking_);
    Cache cache = make(from(), faults);
    feed_random(cache, machine_.exec, before);
    faults.arm(fail_at);
    try {
      convert_cache(cache, to(), options(), registry_, faults);
      EXPECT_GT(fail_at, 3u) << "three layers of two rows take more than that";
      return;
    } catch (const OutOfMemory&) {
      EXPECT_EQ(tracking_.of("convert").live, 0u);
    }
    faults.arm(SIZE_MAX);
    feed_random(cache, machine_.exec, after);
    for (int32_t row = 0; row < 2; ++row) {
      EXPECT_EQ(cache.seq_len(row), plain.seq_len(row));
      EXPECT_TRUE(inexact() || contents(cache, row) == expected[row]) << "call " << fail_at;
    }
  }
}

TEST_P(EveryPairOfKinds, NothingOfTheOldLayersStays) {
  if (rounds(to())) GTEST_SKIP() << "what its residual holds depends on how it was fed";
  if (to().starts_with("offloaded")) GTEST_SKIP() << "which layers are resident depends on it too";
  TrackingAllocator other(host_);
  Cache cache = make(from(), tracking_), fresh = make(to(), other);
  for (Cache* both : {&cache, &fresh}) feed_random(*both, machine_.exec, {{0, 290}});
  convert_cache(cache, to(), options(), registry_, tracking_);
  EXPECT_EQ(tracking_.total().live, other.total().live);
}

class Conversion : public EveryPairOfKinds {};
INSTANTIATE_TEST_SUITE_P(Into, Conversion,
                         ::testing::Combine(::testing::ValuesIn(CacheRegistry().names()),
                                            ::testing::Values("static")));

TEST_P(Conversion, IntoACapacityBelowARowsLengthIsRefusedAndNothingChanges) {
  Cache cache = make(from(), host_);
  feed_random(cache, machine_.exec, {{0, 12}, {1, 40}});
  const std::string format = cache.layer(0).format();
  const auto before = contents(cache, 1);
  CacheOptions small = options();
  small.max_cache_len = 39;
  try {
    convert_cache(cache, "static", small, registry_, host_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNoRoom);
    const std::string text = error.what();
    EXPECT_NE(text.find("40"), std::string::npos) << text;
    EXPECT_NE(text.find("39"), std::string::npos) << text;
  }
  EXPECT_EQ(cache.layer(0).format(), format);
  EXPECT_EQ(cache.layer(0).max_len(), from() == "static" ? kCapacity : cache.layer(0).max_len());
  EXPECT_TRUE(contents(cache, 1) == before);
  EXPECT_THROW(convert_cache(cache, "nowhere", options(), registry_, host_), Error);
}

}  // namespace
}  // namespace larder::test
