#include "larder/cache/state_layer.h"

#include <gtest/gtest.h>

#include <numeric>
#include <optional>

#include "larder/base/error.h"
#include "larder/cache/mamba_cache.h"
#include "larder/cache/registry.h"

namespace larder::test {
namespace {

constexpr LayerSpec kSpec{
    .kind = LayerKind::kState, .conv_channels = 2, .conv_kernel = 3, .state_size = 4};
constexpr size_t kBlockBytes = (2 * 3 + 4) * sizeof(float);

struct Fed {
  int32_t slot;
  std::vector<float> tokens;
};

// A step of numbered tokens: the window keeps the last numbers (channel 1 their negatives), the
// state sums up powers, so that the order shows: s = 2 s + token.
class Numbered {
 public:
  Numbered(const Cache& cache, const std::vector<Fed>& feeds, bool tentative = false)
      : feeds_(feeds) {
    for (const Fed& feed : feeds) {
      for (size_t i = 0; i < feed.tokens.size(); ++i)
        position_.push_back(cache.seq_len(feed.slot) + static_cast<int64_t>(i));
      slot_.push_back(feed.slot);
      q_start_.push_back(static_cast<int32_t>(position_.size()));
    }
    step_ = {static_cast<int32_t>(slot_.size()),
             q_start_.back(),
             q_start_.data(),
             position_.data(),
             slot_.data(),
             tentative};
  }
  const Step& step() const { return step_; }

  void write(StateLayer& layer) const {
    for (size_t b = 0; b < feeds_.size(); ++b) {
      if (feeds_[b].tokens.empty()) continue;
      const StateLayer::Row row = layer.row(step_, static_cast<int32_t>(b));
      std::copy_n(row.conv_before, 6, row.conv);
      std::copy_n(row.state_before, 4, row.state);
      for (const float token : feeds_[b].tokens) {
        for (int channel = 0; channel < 2; ++channel) {
          float* window = row.conv + 3 * channel;
          std::copy_n(window + 1, 2, window);
          window[2] = channel == 0 ? token : -token;
        }
        for (int i = 0; i < 4; ++i) row.state[i] = 2 * row.state[i] + token + static_cast<float>(i);
      }
    }
  }

 private:
  std::vector<Fed> feeds_;
  std::vector<int32_t> q_start_{0}, slot_;
  std::vector<int64_t> position_;
  Step step_;
};

void feed(Cache& cache, const std::vector<Fed>& feeds) {
  const Numbered step(cache, feeds);
  cache.begin(step.step());
  for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    step.write(cache.state(layer));
    cache.layer(layer).commit(step.step());
  }
}

using Floats = std::vector<float>;

template <class Action>
std::optional<ErrorKind> error_kind(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.kind();
  }
  return std::nullopt;
}

Floats held(Cache& cache, int32_t layer, int32_t row) {
  const StateLayer& state = cache.state(layer);
  Floats all(state.conv_of(row), state.conv_of(row) + 6);
  all.insert(all.end(), state.state_of(row), state.state_of(row) + 4);
  return all;
}

Floats after(const Floats& tokens) {
  HostAllocator host;
  Cache cache = CacheRegistry().make("mamba", std::vector{kSpec}, {}, host);
  feed(cache, {{0, tokens}});
  return held(cache, 0, 0);
}

class StateLayers : public ::testing::TestWithParam<std::string> {
 protected:
  Cache make(int layers = 2) {
    const std::vector<LayerSpec> specs(static_cast<size_t>(layers), kSpec);
    return CacheRegistry().make(GetParam(), specs, {DType::kBF16, 8}, tracking_);
  }
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
};
INSTANTIATE_TEST_SUITE_P(Registry, StateLayers, ::testing::ValuesIn(CacheRegistry().names()));

TEST_P(StateLayers, Case18_AShortRowHasZerosOnTheOldSide) {
  Cache cache = make();
  feed(cache, {{0, {5}}, {2, {6, 7}}});
  EXPECT_EQ(held(cache, 1, 0), (Floats{0, 0, 5, 0, 0, -5, 5, 6, 7, 8}));
  EXPECT_EQ(held(cache, 1, 2), (Floats{0, 6, 7, 0, -6, -7, 19, 22, 25, 28}));
  EXPECT_EQ(cache.batch(), 3);
  EXPECT_EQ(cache.seq_len(0), 1);
  EXPECT_EQ(cache.seq_len(1), 0);
  EXPECT_EQ(cache.seq_len(2), 2);
}

TEST_P(StateLayers, RowsOfDifferentLengthsGoOnFromTheirOwnState) {
  Cache cache = make();
  feed(cache, {{1, {1, 2, 3, 4, 5}}, {0, {9}}});
  feed(cache, {{0, {8, 7}}, {1, {}}});
  feed(cache, {{1, {6}}});
  EXPECT_EQ(held(cache, 0, 0), after({9, 8, 7}));
  EXPECT_EQ(held(cache, 1, 1), after({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(cache.max_len(), -1);
}

TEST_P(StateLayers, CancelTakesBackACommittedStep) {
  Cache cache = make();
  feed(cache, {{0, {1, 2}}});
  const Numbered step(cache, {{0, {3}}, {1, {4}}});
  cache.begin(step.step());
  step.write(cache.state(0));
  cache.layer(0).commit(step.step());  // the second layer has not committed
  cache.cancel(step.step());
  EXPECT_EQ(cache.batch(), 1);
  for (int32_t layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(cache.layer(layer).seq_len(0), 2);
    EXPECT_EQ(held(cache, layer, 0), after({1, 2}));
  }
  cache.cancel(step.step());  // once more changes nothing
  EXPECT_EQ(held(cache, 0, 0), after({1, 2}));
  feed(cache, {{0, {7}}});
  EXPECT_EQ(held(cache, 1, 0), after({1, 2, 7}));
}

TEST_P(StateLayers, TentativeStepsAreRefused) {
  Cache cache = make();
  feed(cache, {{0, {1}}});
  EXPECT_EQ(cache.tentative_limit(0), 0);
  const Numbered step(cache, {{0, {3}}}, true);
  EXPECT_EQ(error_kind([&] { cache.begin(step.step()); }), ErrorKind::kUnsupported);
  EXPECT_EQ(held(cache, 0, 0), after({1}));
}

TEST_P(StateLayers, AStepThatLeavesAGapIsRefused) {
  Cache cache = make();
  feed(cache, {{0, {1}}});
  const int64_t position = 3;
  const int32_t q_start[] = {0, 1}, slot = 0;
  EXPECT_EQ(error_kind([&] {
              cache.begin({1, 1, q_start, &position, &slot, false});
            }),
            ErrorKind::kInvalid);
}

TEST_P(StateLayers, Case05_SelectedRowsPartAfterwards) {
  for (const std::vector<int32_t>& source : {std::vector<int32_t>{1, 1, 0, 1}, {2, 0, 1}, {0}}) {
    Cache cache = make();
    const std::vector<Floats> tokens = {{1, 2, 3}, {4}, {5, 6, 7, 8}};
    feed(cache, {{0, tokens[0]}, {1, tokens[1]}, {2, tokens[2]}});
    cache.select_rows(source);
    ASSERT_EQ(cache.batch(), static_cast<int32_t>(source.size()));
    std::vector<Fed> next;
    for (size_t i = 0; i < source.size(); ++i)
      next.push_back({static_cast<int32_t>(i), {static_cast<float>(20 + i)}});
    feed(cache, next);
    for (size_t i = 0; i < source.size(); ++i) {
      Floats all = tokens[static_cast<size_t>(source[i])];
      all.push_back(static_cast<float>(20 + i));
      EXPECT_EQ(held(cache, 1, static_cast<int32_t>(i)), after(all)) << i;
    }
  }
  Cache cache = make();
  feed(cache, {{0, {1}}});
  EXPECT_THROW(cache.select_rows(std::vector<int32_t>{1}), Error);
}

TEST_P(StateLayers, CropRefusesAllButTheWholeAndNothing) {
  Cache cache = make();
  feed(cache, {{0, {1, 2, 3}}, {1, {4, 5}}});
  EXPECT_EQ(error_kind([&] { cache.crop(std::vector<int64_t>{0, 1}); }), ErrorKind::kUnsupported);
  EXPECT_EQ(held(cache, 0, 0), after({1, 2, 3}));
  EXPECT_EQ(cache.seq_len(0), 3);
  cache.crop(std::vector<int64_t>{3, INT64_MAX});
  EXPECT_EQ(held(cache, 1, 1), after({4, 5}));
  cache.crop(std::vector<int64_t>{0, 2});
  EXPECT_EQ(cache.seq_len(0), 0);
  feed(cache, {{0, {9}}, {1, {6}}});
  EXPECT_EQ(held(cache, 1, 0), after({9}));
  EXPECT_EQ(held(cache, 1, 1), after({4, 5, 6}));
}

TEST_P(StateLayers, ContextShiftIsRefused) {
  Cache cache = make(1);
  feed(cache, {{0, {1, 2, 3}}});
  const std::vector<ContextShift> shifts = {{1, 1, {}, {}}};
  EXPECT_EQ(error_kind([&] { cache.shift(0, shifts); }), ErrorKind::kUnsupported);
}

TEST_P(StateLayers, Case12_AResetCacheTakesASecondPrompt) {
  Cache cache = make();
  feed(cache, {{0, {1, 2, 3}}, {1, {4}}});
  cache.reset();
  EXPECT_EQ(cache.batch(), 0);
  EXPECT_EQ(tracking_.of("kv").live, 0u);
  feed(cache, {{0, {5}}});
  EXPECT_EQ(held(cache, 0, 0), after({5}));
}

TEST_P(StateLayers, AForkSharesUntilOneOfTheTwoGoesOn) {
  Cache cache = make(1);
  feed(cache, {{0, {1, 2}}, {1, {3}}});
  const size_t before = tracking_.of("kv").live;
  Cache fork = cache.fork();
  EXPECT_EQ(tracking_.of("kv").live, before);
  feed(fork, {{0, {8}}});
  EXPECT_EQ(tracking_.of("kv").live, before + kBlockBytes);
  feed(cache, {{0, {9}}, {1, {7}}});
  cache.crop(std::vector<int64_t>{0, 99});
  feed(cache, {{0, {6}}});
  EXPECT_EQ(held(fork, 0, 0), after({1, 2, 8}));
  EXPECT_EQ(held(fork, 0, 1), after({3}));
  EXPECT_EQ(held(cache, 0, 0), after({6}));
  EXPECT_EQ(held(cache, 0, 1), after({3, 7}));
}

TEST_P(StateLayers, ARowCroppedToNothingLeavesAForkAlone) {
  Cache cache = make(1);
  feed(cache, {{0, {1, 2}}});
  Cache fork = cache.fork();
  cache.crop(std::vector<int64_t>{0});
  feed(cache, {{0, {5}}});
  EXPECT_EQ(held(fork, 0, 0), after({1, 2}));
}

TEST_P(StateLayers, TwoBlocksARowAndNoMoreHoweverLongItRunsAndReorders) {
  Cache cache = make(1);
  feed(cache, {{0, {1}}, {1, {2}}, {2, {3}}});
  EXPECT_EQ(tracking_.of("kv").live, 6 * kBlockBytes);
  const size_t calls = tracking_.total().calls;
  for (int i = 0; i < 20; ++i) {
    feed(cache, {{0, {1}}, {1, {2}}, {2, {3}}});
    cache.select_rows(std::vector<int32_t>{i % 3, 1, (i + 2) % 3});
  }
  EXPECT_EQ(tracking_.total().calls, calls);
  size_t blocks = 0;
  cache.layer(0).for_each_block([&](CacheBlock&) { ++blocks; });
  EXPECT_GE(blocks, 3u);
}

TEST_P(StateLayers, SavedRowsComeBackBitForBit) {
  Cache cache = make(1);
  feed(cache, {{0, {0.1f, 2, -0.3f}}, {1, {}}, {2, {7}}});
  Cache second = make(1);
  feed(second, {{0, {99}}});
  std::vector<RowImage> images;
  std::vector<RowImageView> views;
  for (int32_t row = 0; row < 3; ++row) images.push_back(cache.layer(0).save(row, host_));
  for (const RowImage& image : images) {
    RowImageView view{image.seq_len, {}};
    for (const SavedTensor& saved : image.tensors)
      view.tensors.push_back({saved.name, saved.tensor.view()});
    views.push_back(view);
  }
  second.layer(0).load(views)->apply();
  EXPECT_EQ(second.batch(), 3);
  EXPECT_EQ(second.layer(0).format(), cache.layer(0).format());
  feed(second, {{0, {5}}, {1, {6}}});
  EXPECT_EQ(held(second, 0, 0), after({0.1f, 2, -0.3f, 5}));
  EXPECT_EQ(held(second, 0, 1), after({6}));
  EXPECT_EQ(held(second, 0, 2), after({7}));

  views[0].tensors[0].name = "k";
  EXPECT_THROW(second.layer(0).load(views), Error);
  views[0].tensors.erase(views[0].tensors.begin());
  EXPECT_THROW(second.layer(0).load(views), Error);
  views[0].tensors = {{"conv", images[0].tensors[1].tensor.view()},
                      {"state", images[0].tensors[1].tensor.view()}};
  EXPECT_THROW(second.layer(0).load(views), Error);
  EXPECT_EQ(held(second, 0, 2), after({7}));
}

TEST_P(StateLayers, AnOutOfMemoryLeavesEveryStateAsItWas) {
  BudgetAllocator budget(host_, 7 * kBlockBytes);  // two rows of two layers need eight
  const std::vector<LayerSpec> specs(2, kSpec);
  Cache cache = CacheRegistry().make(GetParam(), specs, {DType::kF32, 8}, budget);
  feed(cache, {{0, {1, 2}}});
  const Numbered step(cache, {{0, {3}}, {1, {4}}});
  EXPECT_THROW(cache.begin(step.step()), OutOfMemory);
  EXPECT_EQ(cache.batch(), 1);
  EXPECT_EQ(held(cache, 1, 0), after({1, 2}));
  feed(cache, {{0, {3}}});
  EXPECT_EQ(held(cache, 1, 0), after({1, 2, 3}));
}

TEST(MambaCaches, PushesInputsIntoTheWindowAndResetsToZeros) {
  HostAllocator host;
  Cache cache = CacheRegistry().make("mamba", std::vector{kSpec}, {}, host);
  MambaCache edge(cache, host, 2);
  Floats conv(2 * 2 * 2), ssm(2 * 4);
  std::iota(conv.begin(), conv.end(), 1.0f);
  std::iota(ssm.begin(), ssm.end(), 50.0f);
  const auto floats = [](const Tensor& tensor) {
    return Floats(tensor.as<float>(), tensor.as<float>() + tensor.view().count());
  };
  EXPECT_EQ(floats(edge.conv_states(0)), Floats(12, 0.0f));
  edge.update(0, TensorView::contiguous(conv.data(), DType::kF32, {2, 2, 2}),
              TensorView::contiguous(ssm.data(), DType::kF32, {2, 2, 2}));
  EXPECT_EQ(floats(edge.conv_states(0)), (Floats{0, 1, 2, 0, 3, 4, 0, 5, 6, 0, 7, 8}));
  EXPECT_EQ(floats(edge.ssm_states(0)), ssm);
  edge.update(0, TensorView::contiguous(conv.data(), DType::kF32, {2, 2, 1}),
              TensorView::contiguous(ssm.data(), DType::kF32, {2, 2, 2}));
  EXPECT_EQ(floats(edge.conv_states(0)), (Floats{1, 2, 1, 3, 4, 2, 5, 6, 3, 7, 8, 4}));
  EXPECT_THROW(edge.update(0, TensorView::contiguous(conv.data(), DType::kF32, {1, 2, 1}),
                           TensorView::contiguous(ssm.data(), DType::kF32, {2, 2, 2})),
               Error);
  edge.reset();
  EXPECT_EQ(floats(edge.conv_states(0)), Floats(12, 0.0f));
  EXPECT_EQ(floats(edge.ssm_states(0)), Floats(8, 0.0f));
}

}  // namespace
}  // namespace larder::test
