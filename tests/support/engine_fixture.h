// Engines over small models, and what their requests give alone.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "larder/generate/engine.h"
#include "larder/generate/generation.h"
#include "tests/support/engine_log.h"
#include "tests/support/logits_run.h"
#include "tests/support/logits_spy.h"
#include "tests/support/paged_engine.h"
#include "tests/support/source_dir.h"

namespace larder::test {

// Of tests/data/conformance/models ("...-micro"), or one that is shipped ("toy-...").
inline std::string small_model_folder(const std::string& name) {
  const bool toy = name.starts_with("toy-");
  return toy ? toy_folder(name) : source_path("tests/data/conformance/models/" + name);
}

// How a test that runs over such models is named after one.
inline std::string model_test_name(const ::testing::TestParamInfo<const char*>& model) {
  std::string name = model.param;
  std::erase(name, '-');
  return name;
}

class EngineFixture {
 public:
  explicit EngineFixture(const std::string& model, DType dtype = DType::kF32)
      : EngineFixture(Model::load(small_model_folder(model), dtype, host())) {}
  explicit EngineFixture(std::shared_ptr<const Model> model)
      : spy(std::make_shared<LogitsSpy>(std::move(model))) {
    options.session.threads = 1;
  }

  static Allocator& host() {
    static HostAllocator allocator;
    return allocator;
  }
  // A pool of that many blocks for each layer, full attention in all of them.
  void use_pool(int64_t block_size, int64_t num_blocks) {
    test::use_pool(options, block_size, num_blocks);
  }
  std::unique_ptr<Engine> engine() const { return std::make_unique<Engine>(spy, options, host()); }
  Request ask(Ids prompt, int64_t max_new_tokens) const {
    return {std::move(prompt), max_new_tokens, {}, {}, {}};
  }
  Ids prompt(int64_t length, uint64_t seed) const {
    return some_ids(length, spy->info().vocab_size, seed);
  }
  // What the request gives alone, over a cache that grows.
  Result alone(const Request& request) const {
    SessionOptions session_options = options.session;
    if (session_options.cache_implementation == "paged") {
      session_options.cache_implementation = "dynamic";
      session_options.cache_config = "";
    }
    Session session(spy, session_options, host());
    GenerationOptions generation_options;
    generation_options.make_text = options.make_text;
    return generate(session, request, generation_options);
  }

  std::shared_ptr<LogitsSpy> spy;
  EngineOptions options;
};

// Steps to the end; the engine's books are looked at after every step.
inline void run_checked(Engine& engine) {
  bool more = true;
  while (more) {
    more = engine.step();
    engine.check_invariants();
  }
}

inline void expect_all_free(const Engine& engine) {
  engine.check_invariants();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.waiting + stats.preempted + stats.in_prompt + stats.decoding, 0);
  EXPECT_EQ(stats.free_blocks, stats.num_blocks);
  int64_t ended = 0;
  for (const int64_t count : stats.finished) ended += count;
  EXPECT_EQ(ended, stats.submitted);
}

inline void expect_result(const EngineLog::Sample& got, const Result& expected,
                          const std::string& how) {
  EXPECT_EQ(got.ends, 1) << how;
  EXPECT_EQ(got.tokens, expected.output_ids) << how;
  EXPECT_EQ(got.result.output_ids, expected.output_ids) << how;
  EXPECT_EQ(got.text, expected.text) << how;
  EXPECT_EQ(got.result.text, expected.text) << how;
  EXPECT_EQ(finish_reason_name(got.result.finish_reason),
            finish_reason_name(expected.finish_reason))
      << how << " " << got.error;
}

}  // namespace larder::test
