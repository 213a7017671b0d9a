#include "larder/tensor/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "larder/base/error.h"
#include "larder/tensor/cpu_limit.h"

namespace larder {
namespace {

namespace fs = std::filesystem;

TEST(ThreadPool, CoversEveryIndexOnceInOrderedRangesAsEqualAsCanBe) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int64_t count : {0, 1, 2, 3, 6, 7, 8, 63, 1000}) {
      std::vector<int> hits(static_cast<size_t>(count));
      std::vector<int64_t> sizes(static_cast<size_t>(threads));
      pool.parallel_for(count, [&](int64_t begin, int64_t end, int thread) {
        sizes[static_cast<size_t>(thread)] = end - begin;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      for (const int hit : hits) EXPECT_EQ(hit, 1);
      for (const int64_t size : sizes)
        EXPECT_TRUE(size == count / threads || size == count / threads + 1) << size;
    }
  }
}

TEST(ThreadPool, DoesNotCallTheBodyForEmptyRanges) {
  ThreadPool pool(7);
  std::atomic<int> calls{0};
  pool.parallel_for(3, [&](int64_t begin, int64_t end, int thread) {
    EXPECT_EQ(end, begin + 1);
    EXPECT_EQ(begin, thread);
    ++calls;
  });
  EXPECT_EQ(calls.load(), 3);
  pool.parallel_for(0, [&](int64_t, int64_t, int) { ++calls; });
  EXPECT_EQ(calls.load(), 3);
}

TEST(ThreadPool, RunsManySmallJobsInTurn) {
  // 7 threads sleep between jobs when there are fewer cores: fewer jobs, each several switches.
  for (const auto& [threads, jobs] : {std::pair{1, 100000}, {2, 100000}, {7, 5000}}) {
    ThreadPool pool(threads);
    std::vector<int64_t> sums(static_cast<size_t>(threads));
    for (int job = 0; job < jobs; ++job) {
      pool.parallel_for(threads, [&](int64_t begin, int64_t, int thread) {
        sums[static_cast<size_t>(thread)] += begin + job;
      });
    }
    for (int t = 0; t < threads; ++t)
      EXPECT_EQ(sums[static_cast<size_t>(t)], int64_t{t} * jobs + int64_t{jobs} * (jobs - 1) / 2);
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(2);
  for (int job = 0; job < 20; ++job) {
    std::atomic<int64_t> total{0};
    pool.parallel_for(2, [&](int64_t begin, int64_t end, int) { total += end - begin; });
    EXPECT_EQ(total.load(), 2);
    // Longer than the spin: the worker parks.
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < until) {
    }
  }
}

TEST(ThreadPool, EndsWhileIdleOrUnusedAndPoolsNest) {
  for (int i = 0; i < 50; ++i) ThreadPool unused(3);
  ThreadPool outer(2);
  std::atomic<int64_t> total{0};
  outer.parallel_for(2, [&](int64_t, int64_t, int) {
    for (int i = 0; i < 20; ++i) {
      auto inner = std::make_unique<ThreadPool>(3);
      inner->parallel_for(5, [&](int64_t begin, int64_t end, int) { total += end - begin; });
    }
  });
  EXPECT_EQ(total.load(), 2 * 20 * 5);
}

int cores_of_this_thread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  return CPU_COUNT(&set);
}

TEST(ThreadPool, PinsThreadsOnlyWhenAskedEachToACoreAndSetsItsMakerFree) {
  const int all = cores_of_this_thread(), threads = all > 1 ? 2 : 1;
  for (const bool pin : {false, true}) {
    {
      ThreadPool pool(threads, pin);
      std::vector<int> cores(static_cast<size_t>(threads)), at(cores.size());
      for (int job = 0; job < 100; ++job) {
        pool.parallel_for(threads, [&](int64_t, int64_t, int thread) {
          cores[static_cast<size_t>(thread)] = cores_of_this_thread();
          at[static_cast<size_t>(thread)] = sched_getcpu();
        });
        for (const int count : cores) EXPECT_EQ(count, pin ? 1 : all);
        if (pin && threads == 2) {
          EXPECT_NE(at[0], at[1]);
        }
      }
    }
    EXPECT_EQ(cores_of_this_thread(), all);
  }
}

TEST(ThreadPool, RefusesToPinMoreThreadsThanCores) {
  const int all = cores_of_this_thread();
  EXPECT_THROW(ThreadPool(all + 1, true), Error);
  EXPECT_EQ(cores_of_this_thread(), all);
}

TEST(ThreadPool, RefusesCountsThatCannotBeRun) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1025), Error);
  EXPECT_THROW(choose_threads(-1), Error);
  EXPECT_THROW(choose_threads(1025), Error);
}

TEST(ChooseThreads, TakesACountAsItIsAndZeroAsTheCoresAllowed) {
  EXPECT_EQ(choose_threads(1), 1);
  EXPECT_EQ(choose_threads(1024), 1024);
  const int chosen = choose_threads(0);
  EXPECT_GE(chosen, 1);
  EXPECT_LE(chosen, 16);
}

// A folder that looks as a control group file system does.
class CgroupLimit : public testing::Test {
 protected:
  CgroupLimit() : root_(fs::temp_directory_path() / ("larder_cgroup_" + name())) {
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~CgroupLimit() override { fs::remove_all(root_); }
  static std::string name() {
    return testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text << "\n";
  }
  int limit() const { return cgroup_cpu_limit(root_, root_ / "self"); }
  fs::path root_;
};

TEST_F(CgroupLimit, IsNoneWithoutFilesAndWhereVersionTwoSaysMax) {
  EXPECT_EQ(limit(), 0);
  write("self", "0::/job");
  EXPECT_EQ(limit(), 0);
  write("job/cpu.max", "max 100000");
  EXPECT_EQ(limit(), 0);
}

TEST_F(CgroupLimit, RoundsAPartOfACoreUp) {
  write("self", "0::/job");
  write("job/cpu.max", "250000 100000");
  EXPECT_EQ(limit(), 3);
  write("job/cpu.max", "50000 100000");
  EXPECT_EQ(limit(), 1);
}

TEST_F(CgroupLimit, TakesTheTightestOfAGroupAndThoseAboveIt) {
  write("self", "0::/slice/job");
  write("slice/job/cpu.max", "800000 100000");
  write("slice/cpu.max", "200000 100000");
  EXPECT_EQ(limit(), 2);
  write("cpu.max", "100000 100000");
  EXPECT_EQ(limit(), 1);
}

TEST_F(CgroupLimit, ReadsVersionOneWhereTheCpuControllerIsMounted) {
  write("self", "5:memory:/m\n4:cpu,cpuacct:/docker/x\n1:cpuset:/c");
  write("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1");
  write("cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000");
  EXPECT_EQ(limit(), 0);
  write("cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000");
  EXPECT_EQ(limit(), 4);
}

TEST_F(CgroupLimit, IgnoresWhatIsNotANumber) {
  write("self", "0::/job\nnonsense\n:");
  write("job/cpu.max", "lots of");
  EXPECT_EQ(limit(), 0);
  write("job/cpu.max", "100000 0");
  EXPECT_EQ(limit(), 0);
}

}  // namespace
}  // namespace larder
