#include "larder/tensor/allocator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "larder/base/error.h"

namespace larder {
namespace {

TEST(HostAllocator, GivesAlignedMemoryForOddSizes) {
  HostAllocator host;
  for (const size_t bytes : {1, 7, 63, 64, 65, 4097}) {
    void* p = host.allocate(bytes, "test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % kAlignment, 0u);
    std::memset(p, 0xAB, bytes);
    host.release(p, bytes, "test");
  }
  EXPECT_EQ(host.allocate(0, "test"), nullptr);
  host.release(nullptr, 0, "test");
}

TEST(HostAllocator, AnImpossibleRequestIsATypedError) {
  HostAllocator host;
  try {
    host.allocate(std::numeric_limits<size_t>::max(), "kv");
    FAIL() << "nothing was thrown";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_EQ(error.tag(), "kv");
    EXPECT_EQ(error.requested(), std::numeric_limits<size_t>::max());
  }
}

TEST(TrackingAllocator, CountsLivePeakAndCallsInAllAndPerTag) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  {
    const Buffer a(tracking, 100, "kv"), b(tracking, 50, "scratch");
    { const Buffer c(tracking, 30, "kv"); }
    const Buffer none(tracking, 0, "kv");
    EXPECT_EQ(tracking.total().live, 150u);
    EXPECT_EQ(tracking.total().peak, 180u);
    EXPECT_EQ(tracking.total().calls, 3u);
    EXPECT_EQ(tracking.of("kv").live, 100u);
    EXPECT_EQ(tracking.of("kv").peak, 130u);
    EXPECT_EQ(tracking.of("kv").calls, 2u);
    EXPECT_EQ(tracking.of("scratch").peak, 50u);
    EXPECT_EQ(tracking.of("never").calls, 0u);
  }
  EXPECT_EQ(tracking.total().live, 0u);
  EXPECT_EQ(tracking.of("kv").live, 0u);
  EXPECT_EQ(tracking.total().peak, 180u);
}

TEST(TrackingAllocator, ARefusedRequestIsNotCounted) {
  HostAllocator host;
  FaultAllocator fault(host, 0);
  TrackingAllocator tracking(fault);
  EXPECT_THROW(tracking.allocate(10, "kv"), OutOfMemory);
  EXPECT_EQ(tracking.total().calls, 0u);
  EXPECT_EQ(tracking.total().peak, 0u);
}

TEST(BudgetAllocator, RefusesPastTheLimitAndNamesEverything) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  BudgetAllocator budget(tracking, 100);
  const Buffer held(budget, 60, "weights");
  try {
    const Buffer more(budget, 41, "kv");
    FAIL() << "nothing was thrown";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(error.tag(), "kv");
    EXPECT_EQ(error.requested(), 41u);
    EXPECT_EQ(error.live(), 60u);
    EXPECT_EQ(error.limit(), 100u);
    for (const char* part : {"kv", "41", "60", "100"})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
  EXPECT_EQ(tracking.total().calls, 1u) << "the system was not asked";
  EXPECT_THROW(budget.allocate(std::numeric_limits<size_t>::max(), "kv"), OutOfMemory);
  {
    const Buffer exact(budget, 40, "kv");
    EXPECT_EQ(budget.live(), 100u);
  }
  EXPECT_EQ(budget.live(), 60u);
}

TEST(BudgetAllocator, AFailureBelowItGivesTheRoomBack) {
  HostAllocator host;
  FaultAllocator fault(host, 0);
  BudgetAllocator budget(fault, 100);
  EXPECT_THROW(budget.allocate(100, "kv"), OutOfMemory);
  EXPECT_EQ(budget.live(), 0u);
  const Buffer works(budget, 100, "kv");
  EXPECT_EQ(budget.live(), 100u);
}

TEST(FaultAllocator, FailsTheCallItWasArmedForAndNoOther) {
  HostAllocator host;
  FaultAllocator fault(host, 2);
  const Buffer a(fault, 1, "t"), b(fault, 1, "t");
  EXPECT_THROW(fault.allocate(1, "t"), OutOfMemory);
  const Buffer c(fault, 1, "t");
  EXPECT_EQ(fault.calls(), 4u);
  fault.arm(0);
  EXPECT_EQ(fault.calls(), 0u);
  EXPECT_THROW(fault.allocate(1, "t"), OutOfMemory);
}

TEST(Buffer, MovesWithoutCopyOrDoubleRelease) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  {
    Buffer a(tracking, 10, "a");
    std::byte* data = a.data();
    Buffer b(std::move(a));
    EXPECT_EQ(b.data(), data);
    EXPECT_EQ(b.size(), 10u);
    Buffer c;
    c = std::move(b);
    EXPECT_EQ(c.data(), data);
    c = Buffer(tracking, 20, "b");
    EXPECT_EQ(tracking.of("a").live, 0u);
    EXPECT_EQ(tracking.of("b").live, 20u);
  }
  EXPECT_EQ(tracking.total().live, 0u);
}

TEST(Allocators, MayBeUsedFromSeveralThreads) {
  HostAllocator host;
  TrackingAllocator tracking(host);
  BudgetAllocator budget(tracking, 1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const std::string tag(1, static_cast<char>('a' + t));
      for (int i = 0; i < 2000; ++i)
        const Buffer buffer(budget, 1 + static_cast<size_t>(i % 97), tag);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget.live(), 0u);
  EXPECT_EQ(tracking.total().live, 0u);
  EXPECT_EQ(tracking.total().calls, 8000u);
}

}  // namespace
}  // namespace larder
