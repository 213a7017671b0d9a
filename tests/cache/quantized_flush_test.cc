// When a quantized layer flushes, what that changes, and how rows are cut into groups.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "larder/base/error.h"
#include "tests/support/error_of.h"
#include "tests/support/kv_decode.h"
#include "tests/support/kv_steps.h"
#include "tests/support/quantized_fixture.h"
#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

using Case07 = Quantized;
using Case08 = Quantized;

TEST_F(Case07, TheResidualFillsAndFlushesAsTheReferenceSays) {
  Cache cache = make(R"({"q_group_size":16,"residual_length":4})", {2, 16});
  feed_more(cache, 0, 3);
  std::vector<int64_t> counts;
  for (int i = 0; i < 9; ++i) {
    feed_more(cache, 0, 1);
    counts.push_back(residual(cache));
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{1, 2, 3, 0, 1, 2, 3, 0, 1}));
  EXPECT_EQ(cache.seq_len(0), 12);
  feed_more(cache, 0, 1);
  EXPECT_EQ(residual(cache), 2);
  feed_more(cache, 0, 5);
  feed_more(cache, 0, 1);
  EXPECT_EQ(residual(cache), 0);
  EXPECT_EQ(cache.seq_len(0), 19);
}

TEST_F(Case07, AResidualOfOneOrNoneWorks) {
  for (const char* config : {R"({"q_group_size":16,"residual_length":1})",
                             R"({"q_group_size":16,"residual_length":0})"}) {
    Cache cache = make(config, {2, 16});
    feed_more(cache, 0, 3);
    for (int i = 0; i < 6; ++i) {
      feed_more(cache, 0, 1);
      EXPECT_LE(residual(cache), 1);
    }
    EXPECT_EQ(cache.seq_len(0), 9);
  }
}

TEST_F(Case07, TheNewTokensOfAStepAreShownExact) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    for (const int64_t n : {8, 1, 1, 1, 1, 5, 1, 1}) {
      const std::vector<float> old = n == 8 ? std::vector<float>{} : values(cache, 0, 0);
      const std::vector<float> k = random_floats(n * shape.heads * shape.head_dim, 70);
      const std::vector<float> v = random_floats(n * shape.heads * shape.head_dim, 71);
      std::vector<int64_t> position;
      for (int64_t i = 0; i < n; ++i) position.push_back(cache.seq_len(0) + i);
      const int32_t q_start[] = {0, static_cast<int32_t>(n)}, slot = 0;
      const Step step{1, static_cast<int32_t>(n), q_start, position.data(), &slot, false};
      const Shape floats{n, shape.heads, shape.head_dim};
      const auto view_of = [&](const std::vector<float>& x) {
        return TensorView::contiguous(const_cast<float*>(x.data()), DType::kF32, floats);
      };
      cache.begin(step);
      const KVView view = cache.kv(0).append(machine_.exec, view_of(k), view_of(v), step);
      const int64_t len = view_len(view, 0);
      ASSERT_EQ(len, position.front() + n);
      const std::vector<float> shown[2] = {decode_view(view, 0, Side::kKeys),
                                           decode_view(view, 0, Side::kValues)};
      for (int which = 0; which < 2; ++which) {
        const std::vector<float>& fed = which == 0 ? k : v;
        for (int32_t h = 0; h < shape.heads; ++h) {
          for (int64_t i = 0; i < n; ++i) {
            const float* got = &shown[which][static_cast<size_t>((h * len + position.front() + i) *
                                                                 shape.head_dim)];
            EXPECT_EQ(
                std::memcmp(got, &fed[static_cast<size_t>((i * shape.heads + h) * shape.head_dim)],
                            static_cast<size_t>(shape.head_dim) * sizeof(float)),
                0)
                << config;
          }
          // What was there before is what read() gives: in f32 bit for bit.
          for (int64_t t = 0; which == 0 && t < position.front(); ++t)
            for (int32_t d = 0; d < shape.head_dim; ++d)
              EXPECT_EQ(shown[0][static_cast<size_t>((h * len + t) * shape.head_dim + d)],
                        old[static_cast<size_t>((t * shape.heads + h) * shape.head_dim + d)])
                  << config;
        }
      }
      cache.layer(0).commit(step);
    }
  }
}

TEST_F(Case07, WhatAppendsNeverChangesATokenAgain) {
  for (const auto& [config, shape] : kFormats) {
    Cache cache = make(config, shape);
    const QuantLayout& layout = layer(cache).layout();
    feed_more(cache, 0, 8);
    feed_more(cache, 0, 1);
    const std::vector<float> k = values(cache, 0, 0), v = values(cache, 0, 1);
    for (int i = 0; i < 120; ++i) feed_more(cache, 0, 1);
    ASSERT_GT(layer(cache).row_at(0).quantized, 100) << config;
    if (layout.k.appends) {
      EXPECT_EQ(first(values(cache, 0, 0), 8, shape), first(k, 8, shape)) << config;
    }
    if (layout.v.appends) {
      EXPECT_EQ(first(values(cache, 0, 1), 8, shape), first(v, 8, shape)) << config;
    }
  }
}

TEST_F(Case07, AppendingGivesTheCodesThatQuantizingTheWholeRowAgainGives) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Cache cache = make(R"({"q_group_size":16,"residual_length":4})", {2, 32}, dtype);
    feed_more(cache, 0, 5);
    for (int i = 0; i < 20; ++i) feed_more(cache, 0, 1);
    const QuantizedLayer& at = layer(cache);
    const QuantRow& row = at.row_at(0);
    const int64_t count = at.layout().elements(row.quantized);
    for (int which = 0; which < 2; ++which) {
      const Quantizer& q = at.layout().side(which).quantizer;
      std::vector<float> x(static_cast<size_t>(count)), scale(x.size() / 16), zero(x.size() / 16);
      std::vector<uint8_t> again(x.size()), codes(32);
      for (int32_t h = 0; h < 2; ++h)
        for (int64_t t = 0; t < row.quantized; ++t)
          row.load(at.layout(), which, t, h, &x[static_cast<size_t>((h * row.quantized + t) * 32)]);
      quantize(q, x.data(), count, 32, again.data(), scale.data(), zero.data());
      for (int32_t h = 0; h < 2; ++h) {
        for (int64_t t = 0; t < row.quantized; ++t) {
          unpack_codes(row.codes_at(at.layout(), which, t, h), 32, q.bits, codes.data());
          EXPECT_EQ(std::memcmp(codes.data(),
                                &again[static_cast<size_t>((h * row.quantized + t) * 32)], 32),
                    0);
        }
      }
    }
  }
}

TEST_F(Case08, GroupsThatDoNotDivideLeaveTheRestExact) {
  for (const auto& [dim, group] : {std::pair{80, 64}, {96, 64}, {20, 16}, {6, 64}, {64, 48}}) {
    for (const int axis : {0, -1}) {
      const std::string config = str(R"({"q_group_size":)", group, R"(,"axis_key":)", axis,
                                     R"(,"axis_value":)", axis, "}");
      for (int64_t n = 1; n <= 9; ++n) {
        const Shape3 shape{2, dim};
        Cache cache = make(config, shape);
        feed_more(cache, 0, n);
        feed_more(cache, 1, 9 - n + 1, 4);
        EXPECT_EQ(cache.seq_len(0), n);
        const QuantLayout& layout = layer(cache).layout();
        EXPECT_EQ(layer(cache).row_at(0).quantized, n / layout.unit * layout.unit);
        // The row alone is the same row.
        Cache alone = make(config, shape);
        feed_more(alone, 0, n);
        EXPECT_TRUE(contents(cache, 0) == contents(alone, 0));
      }
    }
  }
}

TEST_F(Case08, EveryValueIsWithinHalfAStepOfItsGroup) {
  const Shape3 shape{2, 20};
  Cache cache = make(R"({"q_group_size":16})", shape),
        exact = make(R"({"q_group_size":16})", shape);
  feed_more(cache, 0, 9);
  const QuantRow& row = layer(cache).row_at(0);
  const QuantLayout& layout = layer(cache).layout();
  ASSERT_EQ(row.quantized, 8);
  const FlatGroups groups(layout.k.quantizer, layout.elements(8), 20);
  const auto* scales = reinterpret_cast<const float*>(row.flat->data());
  const std::vector<float> got = values(cache, 0, 0);
  Cache dense =
      CacheRegistry().make("dynamic", std::vector<LayerSpec>{{2, 20, 0}}, {DType::kF32, 0}, host_);
  feed_random(dense, machine_.exec, {{0, 9}});
  const Tensor k(host_, {2, 9, 20}, DType::kF32, "test"), v(host_, {2, 9, 20}, DType::kF32, "test");
  dense.kv(0).read(0, k, v);
  for (int64_t e = 0; e < layout.elements(8); ++e) {
    const int64_t h = e / 160, t = e / 20 % 8, d = e % 20;
    const float fed = k.as<float>()[(h * 9 + t) * 20 + d];
    EXPECT_LE(std::fabs(got[static_cast<size_t>((t * 2 + h) * 20 + d)] - fed),
              scales[groups.of(e)] * 0.5001f);
  }
}

TEST_F(Case08, GroupsThatDivideTooRarelyAreRefusedAtConstruction) {
  const std::string text = error_of([&] {
    make(R"({"q_group_size":4096,"residual_length":128})", {2, 8});
  });
  EXPECT_NE(text.find("q_group_size 4096"), std::string::npos) << text;
  EXPECT_NE(text.find("head_dim 8"), std::string::npos) << text;
  EXPECT_NE(error_of([&] {
              make(R"({"q_group_size":16,"append_only":true})", {2, 20});
            }).find("head_dim 20 with q_group_size 16"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              make(R"({"backend":"hqq","axis_key":0,"append_only":true})", {2, 64});
            }).find("hqq axis 0"),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
