// The real model, where its folder is present (tools/get-smollm2 makes it): greedy ids and the
// likelihood of a text, both computed by transformers 4.57.3 in float32 on the same bf16 weights.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"
#include "tests/support/sanitized.h"
#ifdef LARDER_HAS_TEXT
#include "larder/text/tokenizer.h"
#include "tests/support/source_dir.h"
#endif

namespace larder::test {
namespace {

const std::string kModel = source_path("models/smollm2");
const std::string kData = source_path("tests/data/smollm2/");

class SmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "minutes under a sanitizer";
    if (!std::filesystem::exists(kModel + "/config.json"))
      GTEST_SKIP() << "no models/smollm2; tools/get-smollm2 makes it";
    model_ = Model::load(kModel, DType::kF32, host_);
  }
  Json data(const std::string& name) { return parse_json(read_file(kData + name), kData + name); }

  HostAllocator host_;
  std::shared_ptr<const Model> model_;
};

TEST_F(SmolLM2, GreedyIdsAreTheReferencesWithBothCachesAndBothAttentions) {
  int cases = 0;
  for (const Json& test : data("generate.json")) {
    if (test.at("kind") != "greedy") continue;
    ++cases;
    for (const char* cache : {"dynamic", "static"}) {
      for (const AttentionKind attention : {AttentionKind::kFused, AttentionKind::kEager}) {
        Session session(model_, {cache, DType::kF32, 300, attention, 2, {}}, host_);
        const Request request{test.at("prompt_ids").get<Ids>(),
                              test.at("max_new_tokens"),
                              {},
                              {test.at("eos_token_id").get<int32_t>()},
                              {}};
        EXPECT_EQ(generate(session, request).output_ids, test.at("output_ids").get<Ids>()) << cache;
      }
    }
  }
  EXPECT_GT(cases, 0);
}

TEST_F(SmolLM2, TheLikelihoodOfATextIsTheReferences) {
  const Json nll = data("nll.json");
  const Ids ids = nll.at("ids").get<Ids>();
  Session session(model_, {"dynamic", DType::kF32, 0, AttentionKind::kFused, 2, {}}, host_);
  const std::vector<float> logits =
      all_logits(session, {Ids(ids.begin(), ids.begin() + 512)}, 64)[0];
  const auto vocab = static_cast<size_t>(model_->info().vocab_size);
  double sum = 0, expected = 0;
  for (size_t i = 0; i + 1 < 512; ++i) {
    double total = 0;
    for (size_t j = 0; j < vocab; ++j)
      total += std::exp(static_cast<double>(logits[i * vocab + j]));
    sum += std::log(total) - logits[i * vocab + static_cast<size_t>(ids[i + 1])];
    expected += nll.at("nll").at(i).get<double>();
  }
  EXPECT_NEAR(sum / 511, expected / 511, 1e-3);
}

#ifdef LARDER_HAS_TEXT
TEST_F(SmolLM2, TheTextTokenizesToTheReferencesIds) {
  const Tokenizer tokenizer = Tokenizer::load(kModel);
  EXPECT_EQ(tokenizer.encode(read_file(kData + "text.txt"), true),
            data("nll.json").at("ids").get<Ids>());
  for (const Json& test : data("generate.json")) {
    if (test.at("kind") != "greedy") continue;
    EXPECT_EQ(tokenizer.encode(test.at("prompt").get<std::string>(), true),
              test.at("prompt_ids").get<Ids>());
  }
}
#endif

}  // namespace
}  // namespace larder::test
