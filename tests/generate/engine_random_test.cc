// Random lives of an engine: whatever comes, goes and fails, every request's tokens are those it
// has alone, it ends once, and everything is free in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "tests/support/engine_fixture.h"

namespace larder::test {
namespace {

class Chance {
 public:
  explicit Chance(uint64_t seed) : engine_(seed) {}
  int64_t of(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return of(1, n) == 1; }

 private:
  std::mt19937_64 engine_;
};

// A few requests of a model, some of which begin alike, and what they give alone.
struct Known {
  Request request;
  Result result;
};
std::vector<Known> known_requests(const EngineFixture& fixture) {
  Chance chance(11);
  std::vector<Known> list;
  for (const int64_t length : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23}) {
    Request request =
        fixture.ask(fixture.prompt(length, static_cast<uint64_t>(length % 3)), chance.of(1, 12));
    request.sampling.do_sample = chance.one_in(2);
    request.sampling.seed = static_cast<uint64_t>(chance.of(0, 1000));
    if (chance.one_in(3)) {
      const Ids output = fixture.alone(request).output_ids;
      request.eos_token_ids = {output[output.size() / 2]};
    }
    list.push_back({request, fixture.alone(request)});
  }
  return list;
}

// One engine with some of the requests; what happens is drawn from the seed.
class Life {
 public:
  Life(const EngineFixture& fixture, const std::vector<Known>& known, Chance& chance,
       bool guesses = false)
      : known_(known), chance_(chance), guesses_(guesses), engine_(fixture.engine()) {}

  void run(int64_t events) {
    for (int64_t left = events; left > 0 || engine_->stats().submitted > ended();) {
      if (left > 0 && chance_.one_in(2)) {
        event();
        --left;
      }
      engine_->step();
      engine_->check_invariants();
    }
    expect_all_free(*engine_);
    for (const auto& [id, what] : submitted_) check(id, what);
  }
  const Engine& engine() const { return *engine_; }

 private:
  struct Submitted {
    size_t known;
    bool may_end_early;  // cancelled, or its callback throws
  };

  void event() {
    const int64_t what = chance_.of(0, 9);
    if (what < 6 || submitted_.empty()) return submit();
    // One of the last few: those before have ended.
    auto any = std::prev(submitted_.end());
    const int64_t few = std::min<int64_t>(static_cast<int64_t>(submitted_.size()), 6);
    for (int64_t back = chance_.of(1, few); back > 1; --back) --any;
    if (what < 8) {
      engine_->preempt(any->first);
    } else if (engine_->cancel(any->first)) {
      any->second.may_end_early = true;
    }
    engine_->check_invariants();
  }
  void submit() {
    const auto index = static_cast<size_t>(chance_.of(0, static_cast<int64_t>(known_.size()) - 1));
    EngineRequest request = log_.watch(known_[index].request);
    request.priority = static_cast<int32_t>(chance_.of(-1, 1));
    if (guesses_ && chance_.one_in(2)) request.prompt_lookup = PromptLookupParams{5, 1};
    const bool throws = chance_.one_in(8);
    if (throws) {
      request.on_token = [this, inner = request.on_token,
                          at = chance_.of(1, 5)](const EngineToken& event) {
        const bool more = inner(event);
        if (static_cast<int64_t>(log_.of(event.request).tokens.size()) == at)
          throw std::runtime_error("gone");
        return more;
      };
    }
    submitted_[engine_->submit(request)] = {index, throws};
  }
  int64_t ended() const {
    int64_t count = 0;
    for (const int64_t of_reason : engine_->stats().finished) count += of_reason;
    return count;
  }
  void check(int64_t id, const Submitted& what) {
    const EngineLog::Sample& got = log_.of(id);
    const Result& expected = known_[what.known].result;
    if (!what.may_end_early) return expect_result(got, expected, "");
    EXPECT_EQ(got.ends, 1);
    ASSERT_LE(got.tokens.size(), expected.output_ids.size());
    EXPECT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), expected.output_ids.begin()));
  }

  const std::vector<Known>& known_;
  Chance& chance_;
  const bool guesses_;
  EngineLog log_;
  std::map<int64_t, Submitted> submitted_;
  std::unique_ptr<Engine> engine_;
};

void draw_options(EngineFixture& fixture, Chance& chance) {
  SchedulerOptions& scheduler = fixture.options.scheduler;
  scheduler.kind = chance.one_in(2) ? SchedulerKind::kFifo : SchedulerKind::kPrefillFirst;
  const std::vector<int64_t> budgets{1, 5, 64, 4096};
  scheduler.max_tokens_per_step = budgets[static_cast<size_t>(chance.of(0, 3))];
  scheduler.max_running = static_cast<int32_t>(chance.of(1, 8));
  scheduler.safety_margin = static_cast<double>(chance.of(0, 3)) / 10;
  scheduler.steps_per_priority = chance.of(0, 30);
}

class EngineSchedules : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, EngineSchedules,
                         ::testing::Values("llama-micro", "mistral-micro", "gemma2-micro",
                                           "recurrentgemma-micro"),
                         model_test_name);

// 100 for each of the models, half of them over a pool that is often full, half of those with
// cached prefixes, and half with rows that stand aside in a file; in a third of all, half of the
// requests guess their next tokens.
TEST_P(EngineSchedules, Case26_OfAHundredRandomOnesEveryTokenIsThatOfTheRequestAlone) {
  EngineFixture fixture(GetParam());
  const std::vector<Known> known = known_requests(fixture);
  const bool recurrent = std::string(GetParam()).starts_with("recurrent");
  Chance chance(26);
  int64_t preemptions = 0, hits = 0, swapped = 0, guessed = 0, accepted = 0;
  for (int schedule = 0; schedule < 100 && !::testing::Test::HasFailure(); ++schedule) {
    SCOPED_TRACE(str("schedule ", schedule));
    EngineFixture drawn = fixture;
    draw_options(drawn, chance);
    const std::vector<int64_t> block_sizes{1, 4, 16};
    const int64_t block_size = block_sizes[static_cast<size_t>(chance.of(0, 2))];
    if (!recurrent && chance.one_in(2)) {
      drawn.use_pool(block_size, (48 + block_size) / block_size);
      drawn.options.prefix_cache = chance.one_in(2);
      if (chance.one_in(2)) drawn.options.swap_folder.emplace();
    }
    Life life(drawn, known, chance, !recurrent && chance.one_in(3));
    life.run(chance.of(1, 12));
    preemptions += life.engine().stats().preemptions;
    hits += life.engine().stats().prefixes.hit_tokens;
    swapped += life.engine().stats().swapped_in;
    guessed += life.engine().stats().guessed;
    accepted += life.engine().stats().accepted;
  }
  EXPECT_GT(preemptions, 20);
  EXPECT_TRUE(recurrent || (hits > 100 && swapped > 5)) << hits << " " << swapped;
  EXPECT_TRUE(recurrent || (accepted > 0 && guessed > 50)) << accepted << " of " << guessed;
  EXPECT_EQ(fixture.spy->different(), 0);
  EXPECT_GT(fixture.spy->compared(), 1000);
}

class EngineEvents : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(CachedPrefixes, EngineEvents, ::testing::Bool());

TEST_P(EngineEvents, Case28_AfterTwoThousandOfThemEverythingIsFree) {
  EngineFixture fixture("llama-micro");
  fixture.options.prefix_cache = GetParam();
  const std::vector<Known> known = known_requests(fixture);
  fixture.options.scheduler.max_tokens_per_step = 12;
  fixture.use_pool(4, 16);
  Chance chance(28);
  Life life(fixture, known, chance);
  life.run(2000);
  const EngineStats stats = life.engine().stats();
  for (const FinishReason reason :
       {FinishReason::kLength, FinishReason::kStop, FinishReason::kCancelled, FinishReason::kError})
    EXPECT_GT(stats.finished[static_cast<size_t>(reason)], 10) << finish_reason_name(reason);
  EXPECT_GT(stats.preemptions, 100);
}

}  // namespace
}  // namespace larder::test
