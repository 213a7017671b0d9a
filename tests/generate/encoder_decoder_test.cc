// Generation and beam search with a model that has an encoder.
#include <gtest/gtest.h>

#include <algorithm>

#include "larder/generate/beam_search.h"
#include "tests/support/logits_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

constexpr int64_t kVocab = 151;

class EncoderDecoders : public ::testing::Test {
 protected:
  static std::string folder(const std::string& name) {
    return source_path("tests/data/conformance/models/" + name);
  }
  std::shared_ptr<const Model> model() {
    if (!model_) model_ = Model::load(folder("t5-micro"), DType::kF32, host_);
    return model_;
  }
  std::unique_ptr<Session> session(const std::string& cache = "dynamic") {
    const SessionOptions options{cache, std::nullopt, 64, AttentionKind::kFused, 1};
    return std::make_unique<Session>(model(), options, host_);
  }
  static Request ask(Ids source, int64_t n = 12) { return {std::move(source), n, {}, {}, {}}; }

  // Ids of every row.
  static std::vector<Ids> greedy(Session& session, const std::vector<Request>& requests,
                                 GenerationOptions options = {}) {
    session.reset();
    Generation generation(session, requests, std::move(options));
    generation.run();
    std::vector<Ids> found;
    for (size_t r = 0; r < requests.size(); ++r) found.push_back(generation.result(r).output_ids);
    return found;
  }
  // Of every row its sequences.
  static std::vector<std::vector<Ids>> beams(Session& session,
                                             const std::vector<Request>& requests) {
    session.reset();
    BeamParams params{3, 1.0, EarlyStopping::kFalse, 3};
    BeamSearch search(session, requests, params);
    search.run();
    std::vector<std::vector<Ids>> found;
    for (size_t r = 0; r < requests.size(); ++r) {
      found.emplace_back();
      for (const BeamResult& result : search.results(r)) found.back().push_back(result.output_ids);
    }
    return found;
  }

  HostAllocator host_;
  std::shared_ptr<const Model> model_;
  const Ids a_ = some_ids(6, kVocab, 1), b_ = some_ids(3, kVocab, 2), c_ = some_ids(70, kVocab, 3);
};

class Case17 : public EncoderDecoders {};

TEST_F(Case17, ARowReadsItsOwnSourceWhateverTheCacheAndTheCompany) {
  const std::vector<Request> requests = {ask(a_, 3), ask(b_), ask(c_, 0), ask(c_)};
  std::vector<Ids> alone;
  for (const Request& request : requests) alone.push_back(greedy(*session(), {request})[0]);
  ASSERT_NE(alone[1], alone[3]);
  for (const std::string& cache : CacheRegistry().names()) {
    if (cache.starts_with("quantized")) continue;  // rounds
    const auto shared = session(cache);
    for (const int32_t chunk : {1, 7, 512}) {
      GenerationOptions options;
      options.prefill_chunk = chunk;
      EXPECT_EQ(greedy(*shared, requests, std::move(options)), alone) << cache << ", " << chunk;
    }
  }
}

TEST_F(Case17, BeamsReadTheSourceOfTheirRowAndARowMayEndFirst) {
  std::vector<Request> requests = {ask(a_, 3), ask(b_, 9), ask(c_)};
  for (int32_t id = 40; id < 60; ++id) requests[1].eos_token_ids.push_back(id);
  for (const std::string cache : {"dynamic", "static", "encoder_decoder", "offloaded"}) {
    const auto shared = session(cache);
    const auto together = beams(*shared, requests);
    for (size_t r = 0; r < requests.size(); ++r) {
      EXPECT_EQ(together[r].size(), 3u);
      EXPECT_EQ(beams(*session(), {requests[r]})[0], together[r]) << cache << ", row " << r;
    }
  }
}

TEST_F(Case17, AnotherSourceNeedsAReset) {
  const auto reused = session();
  Generation first(*reused, {ask(a_)});
  first.step();
  EXPECT_EQ(first.prompt_tokens_fed(), 6);
  EXPECT_EQ(first.new_tokens(), 0);
  // Nothing but a source is in the cache.
  EXPECT_NE(error_text([&] { Generation(*reused, {ask(b_)}); }).find("reset"), std::string::npos);
  EXPECT_EQ(greedy(*reused, {ask(b_)}), greedy(*session(), {ask(b_)}));
}

TEST_F(EncoderDecoders, ThePromptIsTheSourceAndTheDecoderBeginsWithTheStartToken) {
  const auto one = session();
  Request request = ask(a_, 1);
  const Ids by_default = greedy(*one, {request})[0];
  EXPECT_EQ(one->cache().seq_len(0), 1);
  EXPECT_EQ(one->cache().cross(0).seq_len(0), 6);
  request.decoder_start_token_id = 0;
  EXPECT_EQ(greedy(*one, {request})[0], by_default);

  // Another start is another first token of the decoder.
  request.decoder_start_token_id = 9;
  one->reset();
  Generation generation(*one, {request});
  generation.run();
  EXPECT_EQ(generation.prompt_ids(0), a_);
  EXPECT_EQ(generation.prompt_tokens(), 6);
  one->reset();
  StepPlan plan;
  plan.add(0, a_, 0, LogitsOf::kNone);
  one->encode(plan.step(), plan.ids());
  plan.clear();
  plan.add(0, Ids{9}, 0, LogitsOf::kLast);
  const TensorView logits = one->forward(plan.step(), plan.ids(), plan.logit_rows());
  const auto* best = std::max_element(logits.as<float>(), logits.as<float>() + kVocab);
  EXPECT_EQ(generation.result(0).output_ids[0], best - logits.as<float>());
}

TEST_F(EncoderDecoders, WithoutMemoryAStepLeavesAllAsItWasAndMayBeTakenAgain) {
  const std::vector<Request> requests = {ask(a_, 4), ask(b_, 4)};
  const std::vector<Ids> expected = greedy(*session(), requests);
  const auto expected_beams = beams(*session(), requests);
  for (size_t fail_at = 0; fail_at < 40; ++fail_at) {
    FaultAllocator faults(host_);
    Session faulty(model(), {}, faults);
    GenerationOptions options;
    options.prefill_chunk = 4;
    Generation generation(faulty, requests, std::move(options));
    faults.arm(fail_at);
    while (true) {
      try {
        generation.run();
        break;
      } catch (const OutOfMemory&) {
      }
    }
    for (size_t r = 0; r < requests.size(); ++r)
      EXPECT_EQ(generation.result(r).output_ids, expected[r]) << fail_at;

    faulty.reset();
    BeamSearch search(faulty, requests, {3, 1.0, EarlyStopping::kFalse, 3});
    faults.arm(fail_at);
    while (true) {
      try {
        search.run();
        break;
      } catch (const OutOfMemory&) {
      }
    }
    for (size_t r = 0; r < requests.size(); ++r)
      EXPECT_EQ(search.results(r)[0].output_ids, expected_beams[r][0]) << fail_at;
  }
}

TEST_F(EncoderDecoders, WhatCannotBeIsRefusedInOneLine) {
  const auto one = session();
  const auto refusal = [&](const Request& request, GenerationOptions options = {}) {
    return error_text([&] { Generation(*one, {request}, std::move(options)); });
  };
  GenerationOptions guessing;
  guessing.drafter = std::make_shared<PromptLookup>();
  EXPECT_NE(refusal(ask(a_), guessing).find("T5ForConditionalGeneration has an encoder"),
            std::string::npos);
  EXPECT_NE(refusal(ask({3, 151})).find("prompt id 151"), std::string::npos);
  EXPECT_NE(refusal(ask({})).find("prompt is empty"), std::string::npos);
  Request start = ask(a_);
  start.decoder_start_token_id = 151;
  EXPECT_NE(refusal(start).find("decoder_start_token_id 151"), std::string::npos);
  EXPECT_NE(error_text([&] { AssistantModel assistant(*one); }).find("must be a decoder"),
            std::string::npos);

  start.decoder_start_token_id = 0;
  Session decoder(Model::load(folder("llama-micro"), DType::kF32, host_), {}, host_);
  EXPECT_NE(error_text([&] { Generation(decoder, {start}); }).find("has no encoder"),
            std::string::npos);
}

TEST_F(EncoderDecoders, ASourceTakesNoPlacesOfAFixedCache) {
  const SessionOptions options{"static", std::nullopt, 12, AttentionKind::kFused, 1};
  Session fixed(model(), options, host_);
  EXPECT_EQ(greedy(fixed, {ask(c_, 12)}), greedy(*session(), {ask(c_, 12)}));
  fixed.reset();
  EXPECT_NE(error_text([&] { Generation(fixed, {ask(c_, 13)}); }).find("max_cache_len is 12"),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
