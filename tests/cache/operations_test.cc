// Every operation on every cache kind: right, or a typed refusal that changes nothing. The outcomes
// make the table in docs/operations.md: with LARDER_OPERATIONS_TABLE=FILE the program writes it,
// and without it the file must say what the tests found.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/cache/convert.h"
#include "larder/cache/padded.h"
#include "tests/cache/operations_table.h"
#include "tests/support/cache_subject.h"
#include "tests/support/source_dir.h"

namespace larder::test {
namespace {

void Table::TearDown() {
  if (!complete()) return;  // a filter was given
  if (const char* path = std::getenv("LARDER_OPERATIONS_TABLE")) {
    std::ofstream(path) << text();
    return;
  }
  const std::string page = source_path("docs/operations.md");
  EXPECT_EQ(read_file(page), text()) << "run `make matrix`";
}

// Three rows of 9, 14 and 5 tokens; who they are: 1, 2, 3.
class Operations : public ::testing::TestWithParam<CacheSubject> {
 protected:
  void SetUp() override {
    subject_.feed(cache(), {0, 1, 2}, {7, 12, 3}, {1, 2, 3});
    for (int i = 0; i < 2; ++i) subject_.feed(cache(), {0, 1, 2}, {1, 1, 1}, {1, 2, 3});
    before_ = subject_.rows(cache());
  }
  Cache& cache() { return subject_.cache(); }
  bool state() const { return GetParam().state; }
  std::vector<RowContent> now() { return subject_.rows(cache()); }
  void record(const char* operation, const std::string& outcome) {
    table().set(operation, GetParam().title, outcome);
  }
  // Whether `act` was carried out. A refusal must be an Error and leave the rows as they were.
  bool attempt(const char* operation, const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_TRUE(now() == before_) << "changed by a refused " << operation;
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      record(operation, "refused");
      return false;
    }
    record(operation, "yes");
    return true;
  }
  // Feeding one row must leave the others as they are.
  void expect_rows_apart() {
    const std::vector<RowContent> rows = now();
    for (int32_t r = 0; r < cache().batch(); ++r) {
      Cache other = cache().fork();
      subject_.feed(other, {r}, {5}, {50 + r});
      for (int32_t others = 0; others < cache().batch(); ++others) {
        if (others == r) continue;
        EXPECT_TRUE(subject_.row(other, others) == rows[static_cast<size_t>(others)])
            << "row " << others << " changed when row " << r << " was fed";
      }
      EXPECT_TRUE(now() == rows) << "a fork's tokens reached the cache it came from";
    }
  }
  void expect_selected(const char* operation, const std::vector<int32_t>& source) {
    if (!attempt(operation, [&] { cache().select_rows(source); })) return;
    const std::vector<RowContent> rows = now();
    ASSERT_EQ(rows.size(), source.size());
    for (size_t i = 0; i < source.size(); ++i)
      EXPECT_TRUE(rows[i] == before_[static_cast<size_t>(source[i])]) << operation << ", row " << i;
    expect_rows_apart();
  }

  SubjectCache subject_{GetParam()};
  std::vector<RowContent> before_;
};

TEST_P(Operations, UpdateShowsOldAndNewTokensAndCountsThem) {
  // That rows hold what they were fed is checked for lossless kinds; rounded ones must agree with
  // themselves fed alone.
  for (int32_t r = 0; r < 3; ++r) {
    Cache alone = subject_.make();
    subject_.feed(alone, {0}, {std::array{7, 12, 3}[static_cast<size_t>(r)]}, {r + 1});
    for (int i = 0; i < 2; ++i) subject_.feed(alone, {0}, {1}, {r + 1});
    EXPECT_TRUE(subject_.row(alone, 0) == before_[static_cast<size_t>(r)]) << "row " << r;
  }
  record("update", "yes");
}

TEST_P(Operations, LengthsAreOfAllTokensSeen) {
  const std::vector<int64_t> expected{9, 14, 5};
  for (int32_t r = 0; r < 3; ++r)
    for (int32_t l = 0; l < cache().num_layers(); ++l)
      EXPECT_EQ(cache().layer(l).seq_len(r), expected[static_cast<size_t>(r)]);
  record("get_seq_length", "yes");
}

TEST_P(Operations, MaskSizesAndShapesFollowTheKind) {
  record("get_mask_sizes", state() ? "–" : "yes");
  record("get_max_cache_shape", state() ? "–" : "yes");
  if (state()) return;
  Cache fresh = subject_.make();
  PaddedCache padded(fresh, subject_.exec(), subject_.allocator());
  const Shape shape{2, 2, 4, 16};
  const Tensor zeros(subject_.allocator(), shape, DType::kF32, "test");
  std::fill_n(zeros.as<float>(), shape.count(), 0.25f);
  for (int32_t l = 0; l < 2; ++l) {
    const int64_t most = padded.get_max_cache_shape(l);
    EXPECT_TRUE(most == -1 || most == 6 || most == SubjectCache::kMaxLen) << most;
    padded.update(l, zeros, zeros);
    const auto [length, offset] = padded.get_mask_sizes(3, l);
    EXPECT_EQ(padded.get_seq_length(l), 4);
    // Whatever is kept, the next 3 columns see at least the window.
    EXPECT_GE(offset + length, 7);
    EXPECT_GE(length, l == 0 ? 7 : 6);
  }
}

TEST_P(Operations, ReorderCacheMovesRowsWhole) { expect_selected("reorder_cache", {2, 0, 0}); }
TEST_P(Operations, BatchSelectIndicesKeepsSomeRows) {
  expect_selected("batch_select_indices", {1});
}
TEST_P(Operations, BatchRepeatInterleaveRepeatsRows) {
  expect_selected("batch_repeat_interleave", {0, 0, 1, 1, 2, 2});
}
TEST_P(Operations, AnIndexThatIsNoRowIsRefused) {
  EXPECT_THROW(cache().select_rows(std::vector<int32_t>{0, 3, 1}), Error);
  EXPECT_THROW(cache().select_rows(std::vector<int32_t>{-1, 0, 1}), Error);
  EXPECT_TRUE(now() == before_);
}

TEST_P(Operations, CropTakesBackTheLastTokens) {
  const std::vector<int64_t> len{8, 12, 5};
  if (!attempt("crop, the last tokens", [&] { cache().crop(len); })) return;
  for (int32_t r = 0; r < 3; ++r) {
    const auto at = static_cast<size_t>(r);
    const RowContent row = subject_.row(cache(), r);
    EXPECT_EQ(row.seq_len, len[at]);
    for (const RowContent::Layer& layer : row.layers)
      EXPECT_GE(layer.kept, std::min<int64_t>(len[at], 5));
    EXPECT_TRUE(row == tokens_between(before_[at], 0, len[at]) ||
                tokens_between(row, len[at] - 5, len[at]) ==
                    tokens_between(before_[at], len[at] - 5, len[at]));
  }
  subject_.feed(cache(), {0, 1, 2}, {2, 2, 2}, {1, 2, 3});
  EXPECT_EQ(cache().seq_len(0), 10);
}

TEST_P(Operations, CropToAnyLengthIsExactOrRefused) {
  const std::vector<int64_t> len{1, 2, 1};
  if (!attempt("crop, any length", [&] { cache().crop(len); })) return;
  for (int32_t r = 0; r < 3; ++r) {
    const auto at = static_cast<size_t>(r);
    EXPECT_TRUE(subject_.row(cache(), r) == tokens_between(before_[at], 0, len[at])) << r;
  }
}

TEST_P(Operations, CropToNothingEmptiesEveryKind) {
  cache().crop(std::vector<int64_t>{0, 0, 0});
  Cache fresh = subject_.make();
  for (Cache* each : {&cache(), &fresh}) subject_.feed(*each, {0, 1, 2}, {6, 3, 8}, {7, 8, 9});
  EXPECT_TRUE(now() == subject_.rows(fresh));
}

TEST_P(Operations, AfterResetACacheIsAsNew) {
  cache().reset();
  EXPECT_EQ(cache().batch(), 0);
  EXPECT_EQ(cache().seq_len(0), 0);
  Cache fresh = subject_.make();
  for (Cache* each : {&cache(), &fresh}) {
    subject_.feed(*each, {0, 1}, {6, 11}, {7, 8});
    subject_.feed(*each, {0, 1}, {1, 1}, {7, 8});
  }
  EXPECT_TRUE(now() == subject_.rows(fresh));
  record("reset", "yes");
}

TEST_P(Operations, AForkHasTheSameRowsAndALifeOfItsOwn) {
  Cache forked = cache().fork();
  EXPECT_TRUE(subject_.rows(forked) == before_);
  for (int i = 0; i < 9; ++i) subject_.feed(cache(), {0, 1, 2}, {1, 1, 1}, {1, 2, 3});
  EXPECT_TRUE(subject_.rows(forked) == before_);
  const std::vector<RowContent> grown = now();
  // Fed the same, it becomes the same; fed something else, the first does not notice.
  Cache third = forked.fork();
  for (int i = 0; i < 9; ++i) subject_.feed(forked, {0, 1, 2}, {1, 1, 1}, {1, 2, 3});
  EXPECT_TRUE(subject_.rows(forked) == grown);
  cache().reset();
  for (int i = 0; i < 9; ++i) subject_.feed(third, {0, 1, 2}, {1, 1, 1}, {4, 5, 6});
  EXPECT_TRUE(subject_.rows(forked) == grown);
  record("fork", "yes");
}

TEST_P(Operations, WhatIsSavedComesBackBitForBit) {
  Cache loaded = subject_.make();
  subject_.feed(loaded, {0}, {4}, {9});
  HostAllocator host;
  for (int32_t l = 0; l < cache().num_layers(); ++l) {
    EXPECT_EQ(loaded.layer(l).format(), cache().layer(l).format());
    std::vector<RowImage> images;
    std::vector<RowImageView> views;
    for (int32_t r = 0; r < 3; ++r) images.push_back(cache().layer(l).save(r, host));
    for (const RowImage& image : images) {
      RowImageView view{image.seq_len, {}};
      for (const SavedTensor& saved : image.tensors)
        view.tensors.push_back({saved.name, saved.tensor.view()});
      views.push_back(std::move(view));
    }
    loaded.layer(l).load(views)->apply();
  }
  EXPECT_TRUE(subject_.rows(loaded) == before_);
  for (Cache* each : {&cache(), &loaded}) {
    for (int i = 0; i < 6; ++i) subject_.feed(*each, {0, 1, 2}, {1, 1, 1}, {1, 2, 3});
  }
  EXPECT_TRUE(subject_.rows(loaded) == now());
  record("save and load", "yes");
}

// Row 1 has 14 tokens: 2 stay, 4 go, 8 move up by 4 positions, which the window still covers.
TEST_P(Operations, AShiftMovesTokensUpAndTurnsTheirKeys) {
  const std::vector<float> cos{std::cos(0.5f), std::cos(2.0f)},
      sin{-std::sin(0.5f), -std::sin(2.0f)};
  const std::vector<ContextShift> shifts(2, ContextShift{2, 4, cos, sin});
  if (!attempt("shift", [&] { cache().shift(1, shifts); })) return;
  const RowContent after = subject_.row(cache(), 1);
  EXPECT_EQ(after.seq_len, 10);
  EXPECT_TRUE(subject_.row(cache(), 0) == before_[0]);
  const RowContent tail = tokens_between(after, 5, 10), old = tokens_between(before_[1], 9, 14);
  const bool exact = !GetParam().rounds();
  for (size_t l = 0; l < 2; ++l) {
    ASSERT_EQ(tail.layers[l].kept, 5);
    if (exact) {
      EXPECT_EQ(tail.layers[l].v, old.layers[l].v);
    }
    const std::vector<float>&got = tail.layers[l].k, &was = old.layers[l].k;
    for (size_t i = 0; i < got.size(); i += 16) {
      for (size_t c = 0; c < 2; ++c) {
        const float tolerance = exact ? 1e-5f : 0.2f;
        EXPECT_NEAR(got[i + c], was[i + c] * cos[c] - was[i + c + 2] * sin[c], tolerance);
        EXPECT_NEAR(got[i + c + 2], was[i + c + 2] * cos[c] + was[i + c] * sin[c], tolerance);
      }
    }
  }
  subject_.feed(cache(), {1}, {2}, {2});
  EXPECT_EQ(cache().seq_len(1), 12);
}

TEST_P(Operations, ATentativeStepEndsAsIfItsAcceptedTokensHadComeOneByOne) {
  std::vector<int32_t> count;
  for (int32_t r = 0; r < 3; ++r)
    count.push_back(static_cast<int32_t>(std::min<int64_t>(3, cache().tentative_limit(r))));
  if (std::ranges::all_of(count, [](int32_t n) { return n == 0; })) count = {1, 1, 1};
  Cache single = cache().fork();
  SubjectCache::Fed fed;
  if (!attempt("tentative step", [&] {
        fed = subject_.write(cache(), {0, 1, 2}, count, {1, 2, 3}, true);
      }))
    return;
  EXPECT_TRUE(now() == before_) << "a tentative step committed";
  fed.step.q_start = fed.q_start.data(), fed.step.position = fed.position.data();
  fed.step.slot = fed.slot.data();
  const std::vector<int32_t> accepted{std::min(1, count[0]), std::min(2, count[1]), 0};
  cache().accept(fed.step, accepted);
  for (int32_t r = 0; r < 3; ++r)
    for (int32_t i = 0; i < accepted[static_cast<size_t>(r)]; ++i)
      subject_.feed(single, {r}, {1}, {r + 1});
  EXPECT_TRUE(now() == subject_.rows(single));
}

TEST_P(Operations, ACancelledStepLeavesNothing) {
  const auto cancel = [&](int32_t tokens) {
    SubjectCache::Fed fed = subject_.write(cache(), {0, 2}, {tokens, tokens}, {1, 3}, false);
    fed.step.q_start = fed.q_start.data(), fed.step.position = fed.position.data();
    fed.step.slot = fed.slot.data();
    cache().cancel(fed.step);
    EXPECT_TRUE(now() == before_) << tokens << " tokens";
  };
  for (const int32_t tokens : {1, 2, 5, 9}) cancel(tokens);
  record("cancel", "yes");
}

// Without computing anything again: what can be seen of the last 5 tokens stays.
TEST_P(Operations, ConversionKeepsWhatTheKindsCanHold) {
  for (const char* target : {"dynamic", "static", "offloaded", "quantized"}) {
    const std::string operation = str("convert to ", target);
    Cache other = cache().fork();
    CacheOptions options;
    options.max_cache_len = SubjectCache::kMaxLen;
    options.rollback = SubjectCache::kRollback;
    const bool rounds = std::string_view(target) == "quantized";
    if (rounds) options.config = R"({"q_group_size":16,"residual_length":4})";
    if (!attempt(operation.c_str(), [&] {
          convert_cache(other, target, options, CacheRegistry(), subject_.allocator());
        })) {
      // A layer that could be converted is not, when one behind it could not.
      EXPECT_TRUE(subject_.rows(other) == before_) << operation;
      for (int32_t l = 0; l < other.num_layers(); ++l)
        EXPECT_EQ(other.layer(l).format(), cache().layer(l).format()) << operation;
      continue;
    }
    EXPECT_TRUE(now() == before_) << operation << " changed the cache that was forked";
    for (int32_t r = 0; r < 3; ++r) {
      const RowContent row = subject_.row(other, r);
      const RowContent& was = before_[static_cast<size_t>(r)];
      EXPECT_EQ(row.seq_len, was.seq_len);
      if (rounds) continue;
      EXPECT_TRUE(tokens_between(row, was.seq_len - 5, was.seq_len) ==
                  tokens_between(was, was.seq_len - 5, was.seq_len))
          << operation << ", row " << r;
    }
    subject_.feed(other, {0, 1, 2}, {2, 2, 2}, {1, 2, 3});
    EXPECT_EQ(other.seq_len(1), 16);
  }
}

std::string test_name(const ::testing::TestParamInfo<CacheSubject>& info) {
  std::string name = info.param.title;
  std::erase_if(name, [](char c) { return c == ',' || c == ' '; });
  return name;
}
INSTANTIATE_TEST_SUITE_P(EveryKind, Operations, ::testing::ValuesIn(cache_subjects()), test_name);

}  // namespace
}  // namespace larder::test
