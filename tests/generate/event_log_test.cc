// The events of an engine: what they say of its pool is what the pool itself says.
#include "larder/generate/event_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>

#include "larder/base/error.h"
#include "larder/base/file.h"
#include "larder/cache/pool_state.h"
#include "tests/support/allocation_counter.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

// Keeps the events as a log would have them, and the state that they tell of.
class Told final : public PoolEvents {
 public:
  void on_event(const PoolEvent& event) noexcept override {
    const std::string error = error_text([&] { state.apply(event); });
    EXPECT_EQ(error, "");
    append_event(lines, event);
  }
  PoolState state;
  std::string lines;
};

PagedBlocks& pool_of(const Engine& engine) {
  return *engine.session().cache().layer(0).block_source()->as_paged();
}

void expect_same(const PoolState& state, const Engine& engine) {
  const EngineStats stats = engine.stats();
  const PagedBlocks& pool = pool_of(engine);
  const PoolState::Counts counts = state.counts();
  ASSERT_EQ(state.num_blocks(), pool.num_blocks());
  if (pool.num_sizes() == 1) {
    EXPECT_EQ(counts.free + counts.cached, stats.free_blocks);
    EXPECT_EQ(counts.used, stats.used_blocks);
    EXPECT_EQ(counts.cached, stats.cached_blocks);
  }
  size_t number = 0;
  for (size_t size = 0; size < pool.num_sizes(); ++size) {
    for (int32_t id = 0; id < pool.pool(size).num_blocks(); ++id, ++number) {
      ASSERT_EQ(state.blocks()[number].holders(), pool.holders(size, id)) << "block " << number;
      ASSERT_EQ(state.blocks()[number].taken, pool.holders(size, id) > 0) << "block " << number;
    }
  }
  EXPECT_EQ(state.step(), stats.steps);
  EXPECT_EQ(state.totals().begun, stats.submitted);
  EXPECT_EQ(state.totals().preemptions, stats.preemptions);
  EXPECT_EQ(state.totals().swapped_out, stats.swapped_out);
  EXPECT_EQ(state.totals().swapped_in, stats.swapped_in);
  EXPECT_EQ(state.totals().hit_tokens, stats.prefixes.hit_tokens);
  EXPECT_EQ(state.totals().evictions, stats.prefixes.evicted_blocks);
  EXPECT_EQ(state.totals().tokens_fed, stats.tokens_fed);
}

struct Engines {
  const char* name;
  const char* model;
  bool prefixes;
  int64_t block_size, num_blocks;
  const char* quantized = "";
  uint64_t longest = 23;  // prompt
  bool swaps = false;
};
// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest asks for this name
void PrintTo(const Engines& engines, std::ostream* out) { *out << engines.name; }
class EventsOf : public ::testing::TestWithParam<Engines> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, EventsOf,
    ::testing::Values(
        Engines{"Full", "llama-micro", false, 4, 16},
        Engines{"FullPrefixes", "llama-micro", true, 4, 16},
        Engines{"Sliding", "mistral-micro", false, 1, 60},
        Engines{.name = "Swapping",
                .model = "llama-micro",
                .prefixes = true,
                .block_size = 4,
                .num_blocks = 16,
                .swaps = true},
        Engines{"SlidingPrefixes", "mistral-micro", true, 4, 16},
        Engines{"HybridPrefixes", "gemma2-micro", true, 2, 30},
        Engines{"Quantized", "llama-micro", false, 64, 6,
                R"({"num_blocks":6,"num_exact_blocks":6,"quantized":{"residual_length":0}})", 150}),
    [](const auto& setup) { return std::string(setup.param.name); });

// Requests come, share, fork, are cancelled and preempted; after everything that happens the events
// must say what the pool says.
TEST_P(EventsOf, ARandomRunGivesThePoolsOwnCountsAtEveryStep) {
  const Engines& setup = GetParam();
  EngineFixture fixture(setup.model);
  Told told;
  fixture.options.events = &told;
  fixture.options.prefix_cache = setup.prefixes;
  if (setup.swaps) fixture.options.swap_folder.emplace();
  fixture.options.scheduler.max_tokens_per_step = 12;
  fixture.use_pool(setup.block_size, setup.num_blocks);
  if (*setup.quantized != 0) fixture.options.session.cache_config = setup.quantized;
  std::mt19937 random(5);
  std::string lines;
  {
    const auto engine = fixture.engine();
    std::vector<int64_t> ids;
    for (int i = 0; i < 400 && !HasFailure(); ++i) {
      if (i < 300 && random() % 3 == 0) {
        EngineRequest request;
        request.request = fixture.ask(
            fixture.prompt(static_cast<int64_t>(1 + random() % setup.longest), random() % 3), 8);
        request.num_samples = random() % 4 == 0 ? 3 : 1;
        ids.push_back(engine->submit(request));
      } else if (!ids.empty() && random() % 8 == 0) {
        const int64_t id = ids[ids.size() - 1 - random() % std::min<size_t>(ids.size(), 5)];
        random() % 2 == 0 ? engine->cancel(id) : engine->preempt(id);
      } else {
        engine->step();
      }
      expect_same(told.state, *engine);
    }
    run_checked(*engine);
    expect_same(told.state, *engine);
    EXPECT_TRUE(told.state.owners().empty());
    EXPECT_GT(told.state.totals().preemptions, 0);
    EXPECT_EQ(told.state.totals().hits > 0, setup.prefixes);
    EXPECT_EQ(told.state.totals().swapped_in > 0, setup.swaps);
    EXPECT_TRUE(told.state.aside().empty());
    lines = told.lines;
  }
  // What was written down says the same again.
  const TempFolder folder;
  PoolState replayed;
  read_event_log(folder.write("log", lines),
                 [&](const PoolEvent& event) { replayed.apply(event); });
  EXPECT_EQ(replayed.counts().free, told.state.counts().free);
  EXPECT_EQ(replayed.totals().tokens_fed, told.state.totals().tokens_fed);
  EXPECT_EQ(replayed.step(), told.state.step());
}

TEST(Events, NameTheRequestThatHasABlockAndTheCopyBeforeAWrite) {
  EngineFixture fixture("llama-micro");
  Told told;
  fixture.options.events = &told;
  fixture.use_pool(4, 30);
  const auto engine = fixture.engine();
  EngineRequest request;
  request.request = fixture.ask(fixture.prompt(6, 1), 5);
  request.num_samples = 2;
  const int64_t id = engine->submit(request);
  engine->step();
  const auto blocks = told.state.owners().find({id, 0});
  ASSERT_NE(blocks, told.state.owners().end());
  const auto layers = static_cast<size_t>(engine->session().cache().num_layers());
  EXPECT_EQ(blocks->second.size(), 2 * layers);
  EXPECT_EQ(told.state.owners().at({id, 1}), blocks->second) << "shared";
  EXPECT_EQ(told.lines.find(R"("event":"own","request":0,"sample":1)"), std::string::npos)
      << "what was said once is not said again";
  EXPECT_EQ(told.state.totals().copies, 0);
  engine->step();
  EXPECT_EQ(told.state.totals().copies, static_cast<int64_t>(layers)) << "the last, partial block";
  run_checked(*engine);
}

// That a step without a sink allocates nothing is SteadyDecode's; with one that keeps nothing, all
// that is needed has been taken in the first steps.
class Nobody final : public PoolEvents {
 public:
  void on_event(const PoolEvent& /*event*/) noexcept override { ++events; }
  int64_t events = 0;
};

TEST(Events, OfASteadyStepTakeNoMemoryOfTheirOwn) {
  Nobody nobody;
  EngineOptions options;
  use_pool(options, 64, 4);
  options.session.threads = 1;
  options.events = &nobody;
  HostAllocator host;
  Engine engine(Model::load(small_model_folder("llama-micro"), DType::kF32, host), options, host);
  EngineRequest request;
  request.request = {some_ids(6, 30, 1), 40, {}, {}, {}};
  engine.submit(request);
  for (int i = 0; i < 4; ++i) engine.step();
  const size_t before = allocations_so_far();
  const int64_t events = nobody.events;
  for (int i = 0; i < 20; ++i) engine.step();
  EXPECT_EQ(allocations_so_far(), before);
  EXPECT_EQ(nobody.events, events + 20);
}

TEST(EngineStats, TellUsedCachedAndUnusedSlots) {
  EngineFixture fixture("llama-micro");
  fixture.use_pool(4, 30);
  fixture.options.prefix_cache = true;
  const auto engine = fixture.engine();
  EXPECT_EQ(engine->stats().used_blocks, 0);
  engine->submit({fixture.ask(fixture.prompt(6, 1), 3)});
  engine->step();
  const auto layers = int64_t{engine->session().cache().num_layers()};
  EngineStats stats = engine->stats();
  EXPECT_EQ(stats.used_blocks, 2 * layers);
  EXPECT_EQ(stats.slots, 8 * layers);
  EXPECT_EQ(stats.unused_slots, 2 * layers);
  EXPECT_EQ(stats.cached_blocks, 0);
  run_checked(*engine);
  stats = engine->stats();
  EXPECT_EQ(stats.used_blocks, 0);
  EXPECT_EQ(stats.cached_blocks, 2 * layers);
  EXPECT_EQ(stats.slots, 0);
}

TEST(EngineStats, CountABlockOfSeveralRowsOnce) {
  EngineFixture fixture("llama-micro");
  fixture.use_pool(4, 30);
  const auto engine = fixture.engine();
  EngineRequest request;
  request.request = fixture.ask(fixture.prompt(6, 1), 5);
  request.num_samples = 3;
  engine->submit(request);
  engine->step();
  const EngineStats stats = engine->stats();
  const auto layers = int64_t{engine->session().cache().num_layers()};
  EXPECT_EQ(stats.decoding, 3);
  EXPECT_EQ(stats.slots, 8 * layers);
  EXPECT_EQ(stats.unused_slots, 2 * layers);
  run_checked(*engine);
}

TEST(EventLog, IsWrittenAtTheEndOfEachStepAndReadBackAsItWas) {
  const TempFolder folder;
  const auto path = folder / "log";
  EventLog log(path);
  const std::vector<int32_t> blocks = {3, 70000};
  log.on_event({.kind = PoolEventKind::kPool, .count = 5, .step = 1});
  log.on_event(
      {.kind = PoolEventKind::kHit, .blocks = blocks, .count = 8, .request = 2, .sample = 1});
  EXPECT_EQ(read_file(path), "");
  log.on_event({.kind = PoolEventKind::kStep, .count = 9, .step = 1});
  EXPECT_EQ(read_file(path),
            "{\"step\":1,\"event\":\"pool\",\"num_blocks\":5}\n"
            "{\"step\":0,\"event\":\"hit\",\"request\":2,\"sample\":1,\"tokens\":8,"
            "\"blocks\":[3,70000]}\n"
            "{\"step\":1,\"event\":\"step\",\"tokens\":9}\n");
  log.on_event({.kind = PoolEventKind::kEnd, .request = 2, .text = "stop"});
  log.close();
  std::string again;
  read_event_log(path, [&](const PoolEvent& event) {
    PoolEvent read = event;
    if (read.kind == PoolEventKind::kEnd) read.text = "stop";  // for people; not read
    append_event(again, read);
  });
  EXPECT_EQ(again, read_file(path));
}

TEST(EventLog, AFailedWriteIsOneErrorWhenItIsClosed) {
  EXPECT_NE(error_text([] { EventLog("/no/such/folder/log"); }).find("/no/such/folder/log"),
            std::string::npos);
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  EventLog log("/dev/full");
  for (int i = 0; i < 3; ++i) log.on_event({.kind = PoolEventKind::kStep});
  EXPECT_NE(error_text([&] { log.close(); }).find("/dev/full: the event log is not complete"),
            std::string::npos);
}

std::string error_of_log(const std::string& text) {
  const TempFolder folder;
  const auto path = folder.write("log", text);
  PoolState state;
  std::string error = error_text(
      [&] { read_event_log(path, [&](const PoolEvent& event) { state.apply(event); }); });
  const std::string name = path.string();
  if (const size_t at = error.find(name); at != std::string::npos) error.erase(at, name.size());
  return error;
}

TEST(EventLog, WhatIsNoLogIsRefusedWithTheLine) {
  const std::string pool = "{\"step\":1,\"event\":\"pool\",\"num_blocks\":5}\n";
  EXPECT_EQ(error_of_log(pool), "");
  EXPECT_EQ(error_of_log(""), ": the event log is empty");
  EXPECT_EQ(error_of_log(pool + "{\"step\":1,\"eve"),
            ": line 2: the last line is torn: the log was not written to its end");
  EXPECT_TRUE(error_of_log(pool + "hello\n").starts_with(": line 2"));
  EXPECT_TRUE(error_of_log("[]\n").starts_with(": line 1"));
  const auto second = [&](const std::string& line) { return error_of_log(pool + line + "\n"); };
  EXPECT_EQ(second(R"({"step":1,"event":"dance"})"), ": line 2: \"dance\" is no event of a log");
  EXPECT_EQ(second(R"({"event":"step","tokens":1})"), ": line 2: an event without \"step\"");
  EXPECT_EQ(second(R"({"step":1,"event":"free","blocks":[5]})"),
            ": line 2: block 5 of a pool of 5");
  EXPECT_EQ(second(R"({"step":1,"event":"free","blocks":[-1]})"),
            ": line 2: \"blocks\" -1 is out of range");
  EXPECT_EQ(second(R"({"step":1,"event":"free","blocks":[1]})"), ": line 2: block 1 is free");
  EXPECT_EQ(second(R"({"step":1,"event":"end","request":7})"),
            ": line 2: request 7 sample 0 has not begun, or has ended");
  EXPECT_EQ(error_of_log("{\"step\":1,\"event\":\"step\",\"tokens\":1}\n"),
            ": line 1: the first event is \"step\" and not \"pool\"");
  EXPECT_TRUE(error_of_log("{\"step\":1,\"event\":\"pool\",\"num_blocks\":99999999999}\n")
                  .starts_with(": line 1: a pool of 99999999999 blocks"));
}

}  // namespace
}  // namespace larder::test
