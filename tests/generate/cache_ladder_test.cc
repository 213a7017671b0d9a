#include "larder/generate/cache_ladder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "larder/base/error.h"
#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

constexpr int64_t kNewTokens = 500;

class Ladder : public ::testing::Test {
 protected:
  static std::shared_ptr<const Model> toy(const std::string& name = "toy-llama") {
    static HostAllocator host;
    return Model::load(toy_folder(name), DType::kF32, host);
  }
  static SessionOptions options() {
    return {"dynamic", DType::kF32, 0, AttentionKind::kFused, 1, ""};
  }
  static std::vector<Request> requests() {
    return {{some_ids(20, 2048, 1), kNewTokens, {}, {}, {}},
            {some_ids(7, 2048, 2), kNewTokens, {}, {}, {}}};
  }

  // What the run gives with all the memory that it wants, and how much that is.
  void run_freely(const std::string& name = "toy-llama") {
    TrackingAllocator tracking(host_);
    Session session(toy(name), options(), tracking);
    Generation generation(session, requests());
    generation.run();
    for (size_t row = 0; row < 2; ++row) free_ids_.push_back(generation.result(row).output_ids);
    kv_bytes_ = tracking.of("kv").peak;
    scratch_bytes_ = tracking.of("scratch").peak;
  }

  struct Ran {
    std::vector<Ids> ids;
    std::vector<std::string> lines;
    bool out_of_memory = false;
    size_t live = 0;
  };
  // The same run with room for `share` of the cache, going down these rungs.
  Ran run_within(double share, std::vector<CacheRung> rungs,
                 const std::string& name = "toy-llama") {
    Ran ran;
    BudgetAllocator budget(
        host_, scratch_bytes_ + static_cast<size_t>(static_cast<double>(kv_bytes_) * share));
    {
      Session session(toy(name), options(), budget);
      Generation generation(session, requests());
      generation.step();  // the prompts: scratch has its size
      CacheLadder::Options with;
      with.free_bytes = budget.limit() - budget.live();
      with.rungs = std::move(rungs);
      with.say = [&](const std::string& line) { ran.lines.push_back(line); };
      CacheLadder ladder(session, with);
      EXPECT_GT(ladder.headroom(), 0u);
      try {
        generation.run();
      } catch (const OutOfMemory&) {
        ran.out_of_memory = true;
      }
      for (size_t row = 0; row < 2; ++row) ran.ids.push_back(generation.result(row).output_ids);
    }
    ran.live = budget.live();
    return ran;
  }
  // Tokens that both have from the start on.
  size_t shared(const Ids& a, const Ids& b) {
    return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  }

  HostAllocator host_;
  std::vector<Ids> free_ids_;
  size_t kv_bytes_ = 0, scratch_bytes_ = 0;
};

TEST_F(Ladder, WithoutRungsTheBudgetEndsTheRun) {
  run_freely();
  const Ran ran = run_within(0.6, {});
  EXPECT_TRUE(ran.out_of_memory);
  EXPECT_EQ(ran.live, 0u);
}

TEST_F(Ladder, ALosslessRungChangesNoToken) {
  for (const char* name : {"toy-llama", "toy-gemma2"}) {
    free_ids_.clear();
    run_freely(name);
    const Ran ran = run_within(0.62, {{"offloaded", ""}}, name);
    EXPECT_FALSE(ran.out_of_memory) << name;
    EXPECT_EQ(ran.ids, free_ids_) << name;
    ASSERT_EQ(ran.lines.size(), 1u) << name;
    EXPECT_NE(ran.lines[0].find("the cache is now offloaded"), std::string::npos) << ran.lines[0];
    EXPECT_EQ(ran.live, 0u);
  }
}

TEST_F(Ladder, EveryRungKeepsTheTokensSoFarAndGoesOn) {
  run_freely();
  const char* quanto = R"({"nbits": 4, "q_group_size": 32, "residual_length": 16})";
  const Ran ran = run_within(
      0.3, {{"quantized", quanto},
            {"offloaded", str(R"({"cache": "quantized", "cache_config": )", quanto, "}")}});
  EXPECT_FALSE(ran.out_of_memory) << join(ran.lines, "\n");
  ASSERT_EQ(ran.lines.size(), 2u) << join(ran.lines, "\n");
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_EQ(ran.ids[row].size(), static_cast<size_t>(kNewTokens));
    EXPECT_GE(shared(ran.ids[row], free_ids_[row]), 60u) << "exact until the first rung";
  }
}

TEST_F(Ladder, WhenTheLastRungIsNotEnoughTheTokensSoFarAreThere) {
  run_freely();
  const Ran ran = run_within(0.3, {{"offloaded", ""}});
  EXPECT_TRUE(ran.out_of_memory) << join(ran.lines, "\n");
  EXPECT_EQ(ran.live, 0u);
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_GE(ran.ids[row].size(), 200u) << join(ran.lines, "\n");
    EXPECT_LT(ran.ids[row].size(), static_cast<size_t>(kNewTokens));
    EXPECT_EQ(shared(ran.ids[row], free_ids_[row]), ran.ids[row].size());
  }
}

TEST_F(Ladder, ARungThatTheModelCannotHaveIsLeftOut) {
  Session session(toy(), options(), host_);
  CacheLadder ladder(session,
                     {0, {{"quantized", R"({"q_group_size": 7})"}, {"no such kind", ""}}, {}});
  EXPECT_EQ(ladder.rung(), nullptr);
  EXPECT_EQ(ladder.headroom(), 0u);
}

}  // namespace
}  // namespace larder::test
