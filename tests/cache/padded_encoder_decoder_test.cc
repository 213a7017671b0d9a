// The ecosystem's edge over both sides of an encoder-decoder cache.
#include "larder/cache/padded_encoder_decoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "larder/cache/registry.h"
#include "tests/support/machine.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

class PaddedEncoderDecoders : public ::testing::Test {
 protected:
  static constexpr PaddedSide kSelf = PaddedSide::kSelf, kCross = PaddedSide::kCross;

  PaddedEncoderDecoders() : cache_(make()), edge_(cache_, machine_.exec, machine_.host) {}
  Cache make() {
    LayerSpec own{2, 4, 0}, cross = own;
    cross.kind = LayerKind::kCross;
    return CacheRegistry().make("encoder_decoder", std::vector<LayerSpec>{own, cross}, {},
                                machine_.host);
  }
  Tensor random(int64_t batch, int64_t n) {
    Tensor t(machine_.host, {batch, 2, n, 4}, DType::kF32, "test");
    for (int64_t i = 0; i < t.view().count(); ++i) t.as<float>()[i] = static_cast<float>(next_++);
    return t;
  }
  // Row `row` of what the cross layer holds, against row `was` of the source.
  bool holds(int64_t row, const Tensor& source, int64_t was) {
    const auto held = edge_.side(kCross).keys_values(0);
    const auto floats = source.view().count() / source.view().shape[0];
    return held &&
           std::memcmp(held->keys.as<float>() + row * floats, source.as<float>() + was * floats,
                       static_cast<size_t>(floats) * sizeof(float)) == 0;
  }

  Machine machine_;
  int next_ = 1;
  Cache cache_;
  PaddedEncoderDecoder edge_;
};

TEST_F(PaddedEncoderDecoders, Case17_ASourceIsTakenOnceAndFollowsItsRows) {
  const Tensor a = random(2, 6), b = random(3, 3);
  EXPECT_FALSE(edge_.is_updated(0));
  edge_.update(kCross, 0, a, a);
  EXPECT_TRUE(edge_.is_updated(0));
  EXPECT_NE(error_text([&] { edge_.update(kCross, 0, a, a); }).find("reset"), std::string::npos);
  const Tensor own = random(2, 4);
  edge_.update(kSelf, 0, own, own, 0);
  edge_.crop(2);
  EXPECT_EQ(edge_.side(kSelf).get_seq_length(), 2);
  EXPECT_EQ(edge_.side(kCross).get_seq_length(), 6);

  edge_.batch_repeat_interleave(3);
  edge_.reorder_cache(std::vector<int32_t>{2, 0, 1, 5, 3, 3});
  for (int64_t row = 0; row < 6; ++row) EXPECT_TRUE(holds(row, a, row / 3)) << row;
  edge_.batch_select_indices(std::vector<int32_t>{3, 4, 5});
  for (int64_t row = 0; row < 3; ++row) EXPECT_TRUE(holds(row, a, 1)) << row;

  edge_.reset();
  EXPECT_FALSE(edge_.is_updated(0));
  EXPECT_FALSE(edge_.side(kCross).keys_values(0).has_value());
  edge_.update(kCross, 0, b, b);
  EXPECT_EQ(edge_.side(kCross).get_seq_length(), 3);
  for (int64_t row = 0; row < 3; ++row) EXPECT_TRUE(holds(row, b, row)) << row;
}

TEST_F(PaddedEncoderDecoders, RowsMoveWhenBothSidesHaveThem) {
  const Tensor a = random(2, 6);
  edge_.update(kCross, 0, a, a);
  for (const auto& move : std::vector<std::function<void()>>{
           [&] {
             edge_.reorder_cache(std::vector<int32_t>{1, 0});
           },
           [&] { edge_.batch_select_indices(std::vector<int32_t>{1}); },
           [&] { edge_.batch_repeat_interleave(2); }}) {
    EXPECT_NE(error_text(move).find("update both"), std::string::npos);
    EXPECT_EQ(edge_.side(kCross).batch(), 2);
    EXPECT_TRUE(holds(0, a, 0));
  }
  EXPECT_NE(error_text([&] { edge_.update(kCross, 1, a, a); }), "");
}

}  // namespace
}  // namespace larder::test
