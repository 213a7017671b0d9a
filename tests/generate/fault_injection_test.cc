// Every call of the allocator fails once, in a run of every cache kind: an error of its type,
// nothing lost, nothing leaked.
#include <gtest/gtest.h>

#include <cctype>
#include <map>

#include "larder/base/error.h"
#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"
#include "tests/support/source_dir.h"

namespace larder::test {
namespace {

struct Kind {
  std::string cache, config, model = "llama-micro";
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const std::string& name : CacheRegistry().names())
    for (const char* model : {"llama-micro", "gemma2-micro"}) all.push_back({name, "", model});
  for (const char* config : {R"({"residual_length": 8, "q_group_size": 16})",
                             R"({"residual_length": 8, "backend": "hqq", "nbits": 8})",
                             R"({"residual_length": 8, "axis_key": -1, "q_group_size": 8})"})
    all.push_back({"quantized", config});
  for (const char* config : {R"({"backend": "larder", "nbits": 8, "residual_length": 8})",
                             R"({"backend": "larder", "nbits": 4, "residual_length": 8})"})
    for (const char* model : {"llama-micro", "gemma2-micro"})
      all.push_back({"quantized", config, model});
  all.push_back({"mamba", "", "mamba-micro"});
  all.push_back({"recurrent", "", "recurrentgemma-micro"});
  all.push_back({"offloaded", R"({"cache": "quantized", "cache_config": {"residual_length": 8}})"});
  return all;
}

std::string test_name(const ::testing::TestParamInfo<Kind>& tested) {
  std::string name = tested.param.cache + tested.param.config + tested.param.model;
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
}

class FaultInjection : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(EveryKind, FaultInjection, ::testing::ValuesIn(kinds()), test_name);

const std::shared_ptr<const Model>& model(const std::string& name) {
  static HostAllocator host;
  static std::map<std::string, std::shared_ptr<const Model>> loaded;
  std::shared_ptr<const Model>& entry = loaded[name];
  if (!entry)
    entry = Model::load(source_path("tests/data/conformance/models/" + name), DType::kF32, host);
  return entry;
}

// Two rows over a session of its own, through an allocator whose calls are counted.
class TwoRows {
 public:
  explicit TwoRows(const Kind& kind) : kind_(kind) {}
  ~TwoRows() {
    generation_.reset();
    session_.reset();
    EXPECT_EQ(tracking_.total().live, 0u);
  }
  TwoRows(const TwoRows&) = delete;
  TwoRows& operator=(const TwoRows&) = delete;

  // All that is left to do; may throw. Called again, it goes on.
  void go() {
    if (!session_) {
      session_ = std::make_unique<Session>(
          model(kind_.model),
          SessionOptions{kind_.cache, DType::kF32, 120, AttentionKind::kFused, 1, "", kind_.config},
          faults_);
    }
    if (!generation_) {
      generation_ = std::make_unique<Generation>(
          *session_, std::vector<Request>{{some_ids(70, 100, 1), 16, {}, {}, {}},
                                          {some_ids(5, 100, 2), 16, {}, {}, {}}});
    }
    generation_->run();
  }
  void start_over() {
    generation_.reset();
    if (session_) session_->reset();
  }
  Ids ids() const {
    Ids all = generation_->result(0).output_ids;
    all.insert(all.end(), generation_->result(1).output_ids.begin(),
               generation_->result(1).output_ids.end());
    return all;
  }
  FaultAllocator& faults() { return faults_; }

 private:
  const Kind kind_;
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  FaultAllocator faults_{tracking_};
  std::unique_ptr<Session> session_;
  std::unique_ptr<Generation> generation_;
};

TEST_P(FaultInjection, EveryCallMayFailAndTheRunGoesOn) {
  Ids expected;
  size_t calls = 0;
  {
    TwoRows run(GetParam());
    run.go();
    expected = run.ids();
    calls = run.faults().calls();
  }
  ASSERT_EQ(expected.size(), 32u);
  // A pool takes its memory before; what is left is scratch.
  ASSERT_GT(calls, CacheRegistry().find(GetParam().cache).has_own_pool ? 0u : 4u);
  for (size_t k = 0; k < calls; ++k) {
    for (const bool goes_on : {true, false}) {
      TwoRows run(GetParam());
      run.faults().arm(k);
      EXPECT_THROW(run.go(), OutOfMemory) << k;
      if (!goes_on) run.start_over();
      EXPECT_NO_THROW(run.go()) << k;
      EXPECT_EQ(run.ids(), expected) << k;
    }
  }
}

}  // namespace
}  // namespace larder::test
