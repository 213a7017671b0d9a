#include "larder/tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/temp_folder.h"

namespace larder {
namespace {

TEST(Arena, PiecesAreAlignedAndDoNotOverlap) {
  HostAllocator host;
  Arena arena(host);
  size_t need = 0;
  const std::array<int64_t, 5> counts = {1, 7, 63, 64, 65};
  for (const int64_t count : counts) need += Arena::padded(count, DType::kF32);
  arena.reserve(need);
  std::vector<TensorView> views;
  for (const int64_t count : counts) {
    views.push_back(arena.take(Shape{count}, DType::kF32));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(views.back().data) % kAlignment, 0u);
    std::fill_n(views.back().as<float>(), count, static_cast<float>(count));
  }
  for (size_t i = 0; i < counts.size(); ++i) {
    for (int64_t j = 0; j < counts[i]; ++j)
      ASSERT_EQ(views[i].as<float>()[j], static_cast<float>(counts[i]));
  }
  EXPECT_EQ(arena.used(), need) << "the sum of padded sizes is exactly what is taken";
  EXPECT_EQ(arena.take(Shape{0}, DType::kF32).count(), 0) << "an empty piece always fits";
}

TEST(Arena, FullIsAnErrorThatNamesRoomAndNeed) {
  HostAllocator host;
  Arena arena(host);
  arena.reserve(128);
  arena.take(Shape{16}, DType::kF32);
  const std::string text = test::error_text([&] { arena.take(Shape{17}, DType::kF32); });
  EXPECT_EQ(text, "scratch of 128 bytes is full: 64 taken, 128 more asked");
  EXPECT_EQ(arena.used(), 64u) << "a refusal takes nothing";
}

TEST(Arena, MarksGiveBackWhatWasTakenInside) {
  HostAllocator host;
  Arena arena(host);
  arena.reserve(640);
  arena.take(Shape{16}, DType::kF32);
  {
    const Arena::Mark outer(arena);
    arena.take(Shape{32}, DType::kF32);
    {
      const Arena::Mark inner(arena);
      arena.take(Shape{16}, DType::kF32);
      EXPECT_EQ(arena.used(), 256u);
    }
    EXPECT_EQ(arena.used(), 192u);
  }
  EXPECT_EQ(arena.used(), 64u);
  EXPECT_EQ(arena.peak(), 256u);
  arena.reset();
  EXPECT_EQ(arena.used(), 0u);
}

TEST(Arena, ReserveKeepsWhatSufficesAndOtherwiseHoldsOneRoomOnly) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  Arena arena(tracking);
  arena.reserve(1000);
  arena.reserve(10);
  EXPECT_EQ(tracking.of("scratch").calls, 1u);
  arena.reserve(2000);
  EXPECT_EQ(tracking.of("scratch").peak, 2000u) << "old and new room were never held together";
  EXPECT_EQ(arena.capacity(), 2000u);
}

TEST(Arena, AFailedReserveKeepsTheOldRoom) {
  HostAllocator host;
  BudgetAllocator budget(host, 1000);
  Arena arena(budget);
  arena.reserve(640);
  EXPECT_THROW(arena.reserve(1001), OutOfMemory);
  EXPECT_EQ(arena.capacity(), 640u);
  EXPECT_NO_THROW(arena.take(Shape{160}, DType::kF32));
}

TEST(Arena, ReleaseGivesTheRoomBack) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  Arena arena(tracking);
  arena.reserve(1024);
  arena.take(Shape{10}, DType::kF32);
  arena.release();
  EXPECT_EQ(tracking.total().live, 0u);
  EXPECT_EQ(arena.capacity(), 0u);
  arena.reserve(64);
  EXPECT_EQ(arena.take(Shape{16}, DType::kF32).count(), 16);
}

TEST(Arena, TakesMakeNoAllocation) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  Arena arena(tracking);
  arena.reserve(4096);
  const size_t calls = tracking.total().calls;
  for (int step = 0; step < 100; ++step) {
    for (int i = 0; i < 10; ++i) arena.take(Shape{5, 7}, DType::kBF16);
    arena.reset();
  }
  EXPECT_EQ(tracking.total().calls, calls);
}

}  // namespace
}  // namespace larder
