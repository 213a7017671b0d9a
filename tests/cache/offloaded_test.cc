// Offloaded kinds: which bytes attention sees, how much memory holds them, and what a disk that
// fails does.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <functional>

#include "larder/attention/attention.h"
#include "larder/base/error.h"
#include "larder/base/json.h"
#include "larder/cache/offloaded_layer.h"
#include "larder/cache/registry.h"
#include "tests/support/kv_steps.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_block_file.h"

namespace larder::test {
namespace {

constexpr int32_t kHeads = 2, kHeadDim = 16;
using Faults = TestBlockFile::Faults;

std::vector<LayerSpec> specs(int layers) {
  return std::vector<LayerSpec>(static_cast<size_t>(layers), LayerSpec{kHeads, kHeadDim, 0});
}

CacheOptions options(const std::string& kind = {}) {
  const bool quantized = kind == "quantized";
  return {DType::kF32, 300, 0,
          quantized ? R"({"q_group_size": 16, "residual_length": 16})" : std::string()};
}

Cache plain(const std::string& kind, int layers, Allocator& allocator) {
  return CacheRegistry().make(kind, specs(layers), options(kind), allocator);
}

Cache offloaded(const std::string& inner, int layers, Allocator& allocator, Faults& faults) {
  const auto blocks =
      std::make_shared<TieredBlocks>(allocator, std::make_unique<TestBlockFile>(faults));
  return Cache(offload_layers(
      CacheRegistry().find(inner).make(specs(layers), options(inner), {blocks, allocator}),
      blocks));
}

// What attention gives for the step's own tokens as queries: depends on every byte that it reads.
void attend_to(const Exec& exec, const KVView& view, const Step& step, const TensorView& q,
               std::vector<float>& seen) {
  HostAllocator host;
  const Tensor out(host, q.shape, DType::kF32, "test");
  AttendArgs args;
  args.out = out;
  args.q = q;
  args.batch = step.batch;
  args.q_start = step.q_start;
  args.q_position = step.position;
  args.kv = view;
  args.scale = 1e-4f;  // so that no token drowns the others
  exec.scratch.reset();
  exec.scratch.reserve(attend_scratch_bytes(exec, AttentionKind::kFused, args));
  attend(exec, AttentionKind::kFused, args);
  seen.insert(seen.end(), out.as<float>(), out.as<float>() + out.view().count());
}

// Drives a cache and writes down all that attention sees and all that rows keep.
class Driven {
 public:
  explicit Driven(Cache driven) : cache(std::move(driven)) {}

  void step(const std::vector<Feed>& feeds, bool tentative = false,
            std::vector<int32_t> accepted = {}, bool cancelled = false) {
    const FedStep fed(cache, feeds, kHeads, kHeadDim, tentative);
    cache.begin(fed.step());
    for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
      const KVView view = cache.kv(layer).append(machine_.exec, fed.k(), fed.v(), fed.step());
      attend_to(machine_.exec, view, fed.step(), fed.v(), seen);
      cache.layer(layer).commit(fed.step());
    }
    if (tentative) cache.accept(fed.step(), accepted);
    if (cancelled) cache.cancel(fed.step());
  }
  void save_all() {
    HostAllocator host;
    for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
      for (int32_t row = 0; row < cache.batch(); ++row) {
        const RowImage image = cache.layer(layer).save(row, host);
        for (const SavedTensor& saved : image.tensors) {
          const auto* bytes = saved.tensor.as<uint8_t>();
          seen.insert(seen.end(), bytes, bytes + saved.tensor.view().byte_size());
        }
      }
    }
  }

  Cache cache;
  std::vector<float> seen;

 private:
  Machine machine_;
};

// 50 steps of two rows, with everything that can happen to a cache between them.
void drive(Driven& driven) {
  float next = 0;
  const auto tokens = [&next](int count) {
    next += static_cast<float>(count);
    return numbers(next - static_cast<float>(count), count);
  };
  driven.step({{0, tokens(70)}, {1, tokens(3)}});
  for (int step = 1; step < 50; ++step) {
    if (step == 6) driven.cache.select_rows(std::vector<int32_t>{1, 0});
    if (step == 10) driven.cache.select_rows(std::vector<int32_t>{0, 0});
    if (step == 15) driven.cache.crop(std::vector<int64_t>{66, 5});
    if (step == 20) driven.save_all();
    if (step == 35) {
      driven.cache.reset();
      driven.step({{0, tokens(4)}, {1, tokens(80)}});
    }
    if (step % 12 == 9) {
      const auto most = static_cast<int>(std::min<int64_t>(3, driven.cache.tentative_limit(1)));
      driven.step({{1, tokens(most)}, {0, tokens(1)}}, true, {1, 1});
    } else if (step % 12 == 4) {
      driven.step({{0, tokens(1)}, {1, tokens(9)}}, false, {}, true);
    } else if (step % 12 == 7) {  // a fork lives for a step, and goes before what it came from
      Driven fork(driven.cache.fork());
      driven.step({{0, tokens(1)}});
      fork.step({{0, tokens(2)}, {1, tokens(1)}});
      fork.save_all();
      driven.seen.insert(driven.seen.end(), fork.seen.begin(), fork.seen.end());
    } else if (step % 12 == 11) {  // and here the fork goes on alone
      driven.cache = driven.cache.fork();
    }
    driven.step({{0, tokens(1)}, {1, tokens(1)}});
  }
  driven.save_all();
}

class AnyKind : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  const std::string& inner() const { return std::get<0>(GetParam()); }
  int layers() const { return std::get<1>(GetParam()); }
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  Faults faults_;
};
using Case16 = AnyKind;
using ExactKind = AnyKind;
const auto kExact = ::testing::Values("dynamic", "static");
const auto kAny = ::testing::Values("dynamic", "static", "quantized");
INSTANTIATE_TEST_SUITE_P(Offloaded, Case16, ::testing::Combine(kAny, ::testing::Values(1, 2, 5)));
INSTANTIATE_TEST_SUITE_P(Offloaded, AnyKind,
                         ::testing::Combine(kAny, ::testing::Values(1, 2, 3, 5)));
INSTANTIATE_TEST_SUITE_P(Offloaded, ExactKind,
                         ::testing::Combine(kExact, ::testing::Values(1, 2, 3, 5)));

TEST_P(Case16, SlowCopiesChangeNoByte) {
  Driven without(plain(inner(), layers(), host_));
  drive(without);
  faults_.max_sleep_ms = 3;
  {
    Driven with(offloaded(inner(), layers(), tracking_, faults_));
    drive(with);
    EXPECT_EQ(with.seen, without.seen);
    if (layers() > 2) {
      EXPECT_GT(faults_.reads, 50);
    }
  }
  EXPECT_EQ(tracking_.total().live, 0u);
}

TEST_P(Case16, ACacheThatGoesInMidStepWaitsForItsCopies) {
  faults_.max_sleep_ms = 3;
  Machine machine;
  for (int end = 0; end <= layers(); ++end) {
    {
      Cache cache = offloaded(inner(), layers(), tracking_, faults_);
      feed(cache, machine.exec, {{0, numbers(0, 200)}});
      const FedStep fed(cache, {{0, numbers(200, 5)}}, kHeads, kHeadDim);
      cache.begin(fed.step());
      for (int layer = 0; layer < end; ++layer) {
        cache.kv(layer).append(machine.exec, fed.k(), fed.v(), fed.step());
        cache.layer(layer).commit(fed.step());
      }
      if (end % 2 == 1) cache.reset();
    }
    EXPECT_EQ(tracking_.total().live, 0u);
  }
}

TEST_P(AnyKind, HoldsTwoLayersInMemoryAtMost) {
  TrackingAllocator all(host_);
  Machine machine;
  Cache without = plain(inner(), layers(), all);
  Cache with = offloaded(inner(), layers(), tracking_, faults_);
  for (int step = 0; step < 40; ++step) {
    const std::vector<Feed> tokens = {{0, numbers(0, step == 0 ? 150 : 1)}};
    feed(without, machine.exec, tokens);
    feed(with, machine.exec, tokens);
    const size_t total = all.of("kv").peak, resident = tracking_.of("kv").peak;
    EXPECT_LE(resident * static_cast<size_t>(layers()),
              total * std::min<size_t>(2, static_cast<size_t>(layers())));
  }
}

// Rows of one layer, as images or as plain numbers, put into a layer of another cache.
void put_rows(const Cache& from, Cache& to, int32_t layer, bool as_image) {
  HostAllocator host;
  std::vector<RowImage> images;
  std::vector<Tensor> tokens;
  std::vector<RowImageView> views;
  std::vector<RowTokens> rows;
  for (int32_t row = 0; row < from.batch(); ++row) {
    images.push_back(from.layer(layer).save(row, host));
    const Shape shape{kHeads, from.kv(layer).kept_len(row), kHeadDim};
    for (int side = 0; side < 2; ++side) tokens.emplace_back(host, shape, DType::kF32, "test");
    const Tensor &k = tokens[tokens.size() - 2], &v = tokens.back();
    from.kv(layer).read(row, k, v);
    rows.push_back({0, k, v});
  }
  for (const RowImage& image : images) {
    views.push_back({image.seq_len, {}});
    for (const SavedTensor& saved : image.tensors)
      views.back().tensors.push_back({saved.name, saved.tensor});
  }
  (as_image ? to.layer(layer).load(views) : to.kv(layer).assign(rows))->apply();
}

TEST_P(AnyKind, RowsAssignedLoadedAndShiftedAreThoseOfTheInnerKind) {
  const std::vector<float> cos(2, 0.5f), sin(2, -0.25f);
  const std::vector<ContextShift> shifts(static_cast<size_t>(layers()),
                                         ContextShift{4, 30, cos, sin});
  Driven from(plain(inner(), layers(), host_));
  from.step({{0, numbers(0, 130)}, {1, numbers(200, 7)}});
  for (const bool as_image : {false, true}) {
    Driven without(plain(inner(), layers(), host_));
    Driven with(offloaded(inner(), layers(), tracking_, faults_));
    for (Driven* driven : {&without, &with}) {
      driven->step({{0, numbers(900, 5)}});  // goes
      for (int32_t layer = 0; layer < layers(); ++layer)
        put_rows(from.cache, driven->cache, layer, as_image);
      driven->save_all();
      driven->step({{0, {-1}}, {1, {-2}}});
      driven->cache.shift(0, shifts);
      driven->step({{0, {-3}}, {1, {-4}}});
      driven->save_all();
    }
    EXPECT_EQ(with.seen, without.seen);
  }
}

TEST_P(ExactKind, AFullDiskRefusesTheStepAndNothingHasChanged) {
  Machine machine;
  for (int at = 0; at < layers(); ++at) {
    Cache cache = offloaded(inner(), layers(), tracking_, faults_);
    feed(cache, machine.exec, {{0, numbers(0, 60)}});
    faults_.fail_allocate = at;
    const std::vector<Feed> more = {{0, numbers(60, 10)}, {1, numbers(300, 10)}};
    try {
      feed(cache, machine.exec, more);
      FAIL() << "the step needs a block a layer";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
    }
    EXPECT_EQ(cache.batch(), 1);
    faults_.fail_allocate = Faults::kNever;
    feed(cache, machine.exec, more);
    for (int layer = 0; layer < layers(); ++layer) {
      EXPECT_EQ(kept(cache, layer, 0), numbers(0, 70));
      EXPECT_EQ(kept(cache, layer, 1), numbers(300, 10));
    }
  }
}

// Feeds tokens one by one, each again when a copy failed, and counts the failures.
int feed_stubbornly(Cache& cache, const Exec& exec, int first, int count) {
  int failures = 0;
  for (int i = first; i < first + count;) {
    const FedStep fed(cache, {{0, {static_cast<float>(i)}}}, kHeads, kHeadDim);
    try {
      cache.begin(fed.step());
      try {
        for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
          cache.kv(layer).append(exec, fed.k(), fed.v(), fed.step());
          cache.layer(layer).commit(fed.step());
        }
      } catch (...) {
        cache.cancel(fed.step());
        throw;
      }
      ++i;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find("the test's file"), std::string::npos);
      ++failures;
    }
  }
  return failures;
}

TEST_P(ExactKind, ACopyThatFailsOnceIsAnErrorAndLosesNoToken) {
  if (layers() <= 2) GTEST_SKIP() << "two layers are always in memory";
  Machine machine;
  for (const bool write : {false, true}) {
    for (const int at : {0, 1, 2, 3, 5, 8, 13, 21, 34}) {
      Cache cache = offloaded(inner(), layers(), host_, faults_);
      feed(cache, machine.exec, {{0, numbers(0, 60)}});
      (write ? faults_.fail_write : faults_.fail_read) = at;
      EXPECT_EQ(feed_stubbornly(cache, machine.exec, 60, 40), 1) << write << " " << at;
      for (int layer = 0; layer < layers(); ++layer)
        EXPECT_EQ(kept(cache, layer, 0), numbers(0, 100)) << write << " " << at;
    }
  }
}

TEST(OffloadFolder, HasNoFileInIt) {
  HostAllocator host;
  Machine machine;
  const TempFolder folder;
  CacheOptions with = options();
  with.config = str("{\"folder\": ", Json(folder.path().string()).dump(), "}");
  for (const char* kind : {"offloaded", "offloaded_static", "offloaded_hybrid"}) {
    Cache cache = CacheRegistry().make(kind, specs(4), with, host);
    feed(cache, machine.exec, {{0, numbers(0, 200)}});
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_EQ(kept(cache, 0, 0), numbers(0, 200));
  }
}

TEST(OffloadFolder, ThatCannotBeUsedIsRefusedWhenTheCacheIsMade) {
  HostAllocator host;
  const TempFolder folder;
  folder.write("file", "x");
  for (const char* name : {"missing", "file"}) {
    CacheOptions with = options();
    with.config = str("{\"folder\": ", Json((folder / name).string()).dump(), "}");
    const std::string text =
        error_text([&] { CacheRegistry().make("offloaded", specs(1), with, host); });
    EXPECT_NE(text.find((folder / name).string()), std::string::npos) << text;
    EXPECT_NE(text.find("name a writable folder"), std::string::npos) << text;
  }
}

TEST(OffloadFolder, ThatIsFullRefusesTheStep) {
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);  // past the limit: EFBIG
  HostAllocator host;
  Machine machine;
  Cache cache = CacheRegistry().make("offloaded", specs(3), options(), host);
  const size_t block = sizeof(float) * 2 * kHeads * 64 * kHeadDim;
  const struct rlimit tight { 4 * block, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &tight), 0);
  feed(cache, machine.exec, {{0, numbers(0, 64)}});
  const std::string text = error_text([&] { feed(cache, machine.exec, {{0, numbers(64, 1)}}); });
  EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(text.find("cannot grow"), std::string::npos) << text;
  feed(cache, machine.exec, {{0, numbers(64, 1)}});
  EXPECT_EQ(kept(cache, 2, 0), numbers(0, 65));
}

TEST(OffloadConfig, PicksTheInnerKindAndRefusesWhatItDoesNotKnow) {
  HostAllocator host;
  const auto text = [&](const std::string& config, int64_t max_cache_len = 300) {
    return error_text([&] {
      CacheRegistry().make("offloaded", specs(1), {DType::kF32, max_cache_len, 0, config}, host);
    });
  };
  EXPECT_EQ(text(R"({"cache": "static"})"), "");
  EXPECT_NE(text(R"({"cache": "static"})", 0).find("max_cache_len 0"), std::string::npos);
  EXPECT_NE(text(R"({"cache": "offloaded_static"})").find("offloaded already"), std::string::npos);
  EXPECT_NE(text(R"({"cache": "paged_turbo"})").find("paged_turbo"), std::string::npos);
  EXPECT_NE(text(R"({"folders": "x"})").find("\"folders\""), std::string::npos);
  EXPECT_NE(text(R"({"cache_config": {"nbits": 3}})").find("\"nbits\""), std::string::npos);
  EXPECT_EQ(CacheRegistry()
                .make("offloaded", specs(1), {DType::kF32, 77, 0, R"({"cache": "static"})"}, host)
                .max_len(),
            77);
}

// Without the limit on a step, prompts would be quantized in other portions than alone.
TEST(OffloadedLimits, AreThoseOfTheInnerKind) {
  HostAllocator host;
  Machine machine;
  const std::string settings = R"({"backend": "larder", "residual_length": 64})";
  const auto make = [&](const char* kind, const std::string& config) {
    Cache cache = CacheRegistry().make(kind, specs(2), {DType::kF32, 0, 0, config}, host);
    feed(cache, machine.exec, {{0, numbers(0, 150)}});
    return cache;
  };
  const Cache inner = make("quantized", settings);
  const std::string around = R"({"cache": "quantized", "cache_config": )" + settings + "}";
  const Cache outer = make("offloaded", around);
  EXPECT_LT(inner.step_limit(0), 128);
  EXPECT_EQ(outer.step_limit(0), inner.step_limit(0));
  EXPECT_EQ(outer.tentative_limit(0), inner.tentative_limit(0));
}

}  // namespace
}  // namespace larder::test
