// Who takes part in a step. No model and no cache: a pool that counts, and requests of which only
// the lengths are known.
#include "larder/generate/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/support/error_of.h"

namespace larder::test {
namespace {

// Blocks of 4 tokens, one layer, whose rows are those of a scheduler.
class CountedPool final : public PoolView {
 public:
  explicit CountedPool(int64_t blocks) : blocks_(blocks) {}
  void watch(const Scheduler& scheduler) { scheduler_ = &scheduler; }
  int64_t num_blocks() const override { return blocks_; }
  int64_t blocks_for(int64_t len) const override { return (len + 3) / 4; }
  int64_t num_free() const override {
    int64_t used = 0;
    for (const Scheduler::Entry& entry : scheduler_->running()) used += blocks_for(entry.held);
    return blocks_ - used;
  }

 private:
  int64_t blocks_;
  const Scheduler* scheduler_ = nullptr;
};

constexpr auto no_limit = [](int64_t /*id*/) -> int64_t { return INT64_MAX; };

// Feeds what the scheduler plans, as an engine does, with requests that want so many new tokens.
class Simulation {
 public:
  explicit Simulation(const SchedulerOptions& options, int64_t blocks = PoolView::kUnbounded)
      : counted_(blocks),
        scheduler_(options,
                   blocks == PoolView::kUnbounded ? static_cast<PoolView&>(unbounded_) : counted_) {
    counted_.watch(scheduler_);
  }
  int64_t add(int64_t prompt, int64_t new_tokens, int32_t priority = 0) {
    scheduler_.add({next_, scheduler_.order_of(priority), prompt, 1});
    left_[next_] = new_tokens;
    return next_++;
  }
  // One step; gives the plan.
  std::vector<Scheduler::Share> step() {
    while (true) {
      const auto planned = scheduler_.plan(no_limit);
      std::vector<Scheduler::Share> shares(planned.begin(), planned.end());
      if (fits(shares)) {
        for (const Scheduler::Share& share : shares) feed(share);
        ++steps_;
        return shares;
      }
      EXPECT_NE(scheduler_.give_way(), std::nullopt);
      ++refused_;
    }
  }
  void run() {
    while (!left_.empty()) {
      ASSERT_FALSE(step().empty());
      ASSERT_LT(steps_, 100000);
    }
  }
  Scheduler& scheduler() { return scheduler_; }
  const CountedPool& pool() const { return counted_; }
  bool ended(int64_t id) const { return !left_.contains(id); }
  const std::vector<int64_t>& order_of_ends() const { return ends_; }
  int64_t steps() const { return steps_; }
  int64_t refused() const { return refused_; }

 private:
  bool fits(const std::vector<Scheduler::Share>& shares) const {
    if (counted_.num_blocks() == PoolView::kUnbounded) return true;
    int64_t need = 0;
    for (const Scheduler::Share& share : shares) {
      const auto entry = *std::ranges::find(scheduler_.running(), share.id, &Scheduler::Entry::id);
      need += counted_.blocks_for(entry.held + share.count) - counted_.blocks_for(entry.held);
    }
    return need <= counted_.num_free();
  }
  void feed(const Scheduler::Share& share) {
    scheduler_.fed(share.id, share.count);
    if (!share.last) return;
    if (--left_.at(share.id) > 0) return scheduler_.grew(share.id);
    scheduler_.remove(share.id);
    left_.erase(share.id);
    ends_.push_back(share.id);
  }

  UnboundedPool unbounded_;
  CountedPool counted_;
  Scheduler scheduler_;
  std::map<int64_t, int64_t> left_;
  std::vector<int64_t> ends_;
  int64_t next_ = 0, steps_ = 0, refused_ = 0;
};

using Plan = std::vector<std::pair<int64_t, int32_t>>;
Plan plan_of(const std::vector<Scheduler::Share>& shares) {
  Plan plan;
  for (const Scheduler::Share& share : shares) plan.emplace_back(share.id, share.count);
  return plan;
}

TEST(Scheduler, FifoFeedsThoseThatDecodeThenBegunPromptsThenThoseThatWait) {
  Simulation sim({SchedulerKind::kFifo, 5});
  sim.add(3, 9);
  EXPECT_EQ(plan_of(sim.step()), (Plan{{0, 3}}));
  sim.add(7, 9);
  sim.add(2, 9);
  EXPECT_EQ(plan_of(sim.step()), (Plan{{0, 1}, {1, 4}}));
  EXPECT_EQ(plan_of(sim.step()), (Plan{{0, 1}, {1, 3}, {2, 1}}));
  EXPECT_EQ(plan_of(sim.step()), (Plan{{0, 1}, {1, 1}, {2, 1}}));
}

TEST(Scheduler, PrefillFirstFeedsBegunPromptsBeforeThoseThatDecode) {
  Simulation sim({SchedulerKind::kPrefillFirst, 5});
  sim.add(3, 9);
  sim.step();
  sim.add(12, 9);
  EXPECT_EQ(plan_of(sim.step()), (Plan{{0, 1}, {1, 4}}));
  EXPECT_EQ(plan_of(sim.step()), (Plan{{1, 5}}));
  EXPECT_EQ(plan_of(sim.step()), (Plan{{1, 3}, {0, 1}}));
}

TEST(Scheduler, OnlyTheLastTokenThatIsKnownAsksForTheNext) {
  Simulation sim({SchedulerKind::kFifo, 4});
  sim.add(9, 2);
  EXPECT_FALSE(sim.step()[0].last);
  EXPECT_FALSE(sim.step()[0].last);
  EXPECT_TRUE(sim.step()[0].last);
  EXPECT_TRUE(sim.step()[0].last);
}

TEST(Scheduler, AStepTakesNoMoreOfARowThanItsLimit) {
  UnboundedPool pool;
  Scheduler scheduler({}, pool);
  scheduler.add({0, 0, 100, 1});
  EXPECT_EQ(scheduler.plan([](int64_t) { return int64_t{7}; })[0].count, 7);
}

TEST(Scheduler, Case29_APromptLongerThanTheBudgetIsFedInParts) {
  Simulation sim({SchedulerKind::kFifo, 1});
  sim.add(40, 1);
  sim.add(1, 1);
  sim.run();
  EXPECT_EQ(sim.steps(), 41);
}

TEST(Scheduler, NoMoreRowsRunThanAllowed) {
  Simulation sim({SchedulerKind::kFifo, 100, 2});
  for (int i = 0; i < 5; ++i) sim.add(3, 4);
  while (!sim.ended(4)) {
    EXPECT_LE(sim.step().size(), 2u);
    EXPECT_LE(sim.scheduler().running().size(), 2u);
  }
}

TEST(Scheduler, ARequestThatWillForkWaitsForAllItsRows) {
  UnboundedPool pool;
  Scheduler scheduler({SchedulerKind::kFifo, 100, 4}, pool);
  scheduler.add({0, 0, 3, 2});
  scheduler.add({2, 0, 3, 3});
  EXPECT_EQ(scheduler.plan(no_limit).size(), 1u) << "2 of 4 rows are promised";
  scheduler.fed(0, 3);
  EXPECT_EQ(scheduler.rows_left(0), 1);
  scheduler.fork(0, 1);
  scheduler.remove(0);
  EXPECT_EQ(scheduler.plan(no_limit).size(), 1u) << "the copy has nothing to feed yet";
  EXPECT_EQ(scheduler.running().size(), 2u);
  EXPECT_EQ(scheduler.running()[0].held, 3);
}

TEST(Scheduler, AMarginOfFreeBlocksIsKeptFromThoseThatWouldBegin) {
  Simulation sim({SchedulerKind::kFifo, 100, 10, 0.25}, 8);
  sim.add(11, 1);  // 3 blocks with the token behind the prompt
  sim.add(11, 1);  // 3 more leave 2
  sim.add(1, 1);   // 1 would leave 1
  EXPECT_EQ(plan_of(sim.step()), (Plan{{0, 11}, {1, 11}}));
  Simulation alone({SchedulerKind::kFifo, 100, 10, 0.25}, 8);
  alone.add(31, 1);
  EXPECT_EQ(alone.step().size(), 1u) << "the margin is kept for those that run";
}

TEST(Scheduler, Case29_SmallRequestsDoNotPassALargeOneForEver) {
  Simulation sim({SchedulerKind::kFifo, 100, 10, 0}, 8);
  for (int i = 0; i < 4; ++i) sim.add(3, 4);
  sim.step();
  const int64_t large = sim.add(27, 4);
  for (int step = 0; !sim.ended(large); ++step) {
    ASSERT_LT(step, 20);
    sim.add(3, 4);
    sim.step();
  }
}

TEST(Scheduler, Case27_TheLastOfTheOrderGivesWayAndTheFirstNever) {
  Simulation sim({SchedulerKind::kFifo, 100, 10, 0}, 6);
  for (int i = 0; i < 3; ++i) sim.add(5, 10);
  sim.run();
  EXPECT_GT(sim.refused(), 0);
  EXPECT_EQ(sim.order_of_ends(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(sim.pool().num_free(), 6);
}

TEST(Scheduler, WhoGaveWayBeginsAgainOnlyWhenSomebodyHasEnded) {
  UnboundedPool pool;
  Scheduler scheduler({}, pool);
  for (int64_t id = 0; id < 3; ++id) scheduler.add({id, 0, 2, 1});
  scheduler.plan(no_limit);
  for (int64_t id = 0; id < 3; ++id) scheduler.fed(id, 2), scheduler.grew(id);
  scheduler.plan(no_limit);
  EXPECT_EQ(scheduler.give_way(), 2);
  EXPECT_EQ(scheduler.plan(no_limit).size(), 2u);
  EXPECT_EQ(scheduler.waiting()[0].state, Scheduler::State::kPreempted);
  scheduler.remove(0);
  const auto again = scheduler.plan(no_limit);
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[1].id, 2);
  EXPECT_EQ(again[1].count, 3) << "the prompt and the token that came";
}

TEST(Scheduler, WhoHasFedNothingGivesWayFirst) {
  UnboundedPool pool;
  Scheduler scheduler({}, pool);
  scheduler.add({0, 10, 2, 1});
  scheduler.plan(no_limit);
  scheduler.fed(0, 2), scheduler.grew(0);
  scheduler.add({1, 0, 2, 1});
  scheduler.plan(no_limit);
  EXPECT_EQ(scheduler.give_way(), 1);
  EXPECT_EQ(scheduler.give_way(), std::nullopt) << "one alone can only end";
}

TEST(Scheduler, LowerPrioritiesComeFirst) {
  Simulation sim({SchedulerKind::kFifo, 2, 1});
  sim.add(2, 2, 1);
  sim.add(2, 2, 0);
  sim.add(2, 2, -1);
  sim.add(2, 2, 0);
  sim.run();
  EXPECT_EQ(sim.order_of_ends(), (std::vector<int64_t>{2, 1, 3, 0}));
}

TEST(Scheduler, NoStreamOfUrgentRequestsStarvesAnother) {
  Simulation sim({SchedulerKind::kFifo, 4, 2, 0, 20});
  for (int i = 0; i < 2; ++i) sim.add(3, 3, 0);
  sim.step();
  const int64_t patient = sim.add(3, 5, 3);
  while (!sim.ended(patient)) {
    sim.add(3, 3, 0);
    sim.step();
    // For 60 steps one comes in each that may pass; they take less than 2 steps each.
    ASSERT_LT(sim.steps(), 200);
  }
  EXPECT_GT(sim.steps(), 60);
}

TEST(Scheduler, RandomLoadsAllEndWithinTheBudget) {
  std::mt19937_64 random(5);
  const auto any = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  };
  for (int round = 0; round < 300; ++round) {
    SchedulerOptions options;
    options.kind = any(0, 1) == 0 ? SchedulerKind::kFifo : SchedulerKind::kPrefillFirst;
    options.max_tokens_per_step = any(1, 12);
    options.max_running = static_cast<int32_t>(any(1, 6));
    options.safety_margin = static_cast<double>(any(0, 2)) / 10;
    Simulation sim(options, any(10, 20));
    for (int64_t left = any(1, 12); left > 0 || !sim.scheduler().running().empty();) {
      if (left > 0 && any(0, 2) == 0) {
        sim.add(any(1, 20), any(1, 19), static_cast<int32_t>(any(-1, 1))), --left;
      }
      int64_t tokens = 0;
      for (const Scheduler::Share& share : sim.step()) tokens += share.count;
      ASSERT_LE(tokens, options.max_tokens_per_step);
      ASSERT_GE(sim.pool().num_free(), 0);
      const auto running = sim.scheduler().running();
      if (any(0, 9) == 0 && !running.empty())
        sim.scheduler().preempt(running[random() % running.size()].id);
    }
    sim.run();
    EXPECT_EQ(sim.pool().num_free(), sim.pool().num_blocks());
  }
}

TEST(Scheduler, OptionsThatMakeNoSenseAreRefused) {
  UnboundedPool pool;
  const auto refusal = [&](const SchedulerOptions& options) {
    return error_of([&] { Scheduler(options, pool); });
  };
  EXPECT_NE(refusal({SchedulerKind::kFifo, 0}).find("max_tokens_per_step 0"), std::string::npos);
  EXPECT_NE(refusal({SchedulerKind::kFifo, 1, 0}).find("max_running 0"), std::string::npos);
  EXPECT_NE(refusal({SchedulerKind::kFifo, 1, 1, 1}).find("safety_margin 1"), std::string::npos);
  EXPECT_EQ(parse_scheduler("prefill_first"), SchedulerKind::kPrefillFirst);
  EXPECT_NE(error_of([] { parse_scheduler("lifo"); }).find("fifo, prefill_first"),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
