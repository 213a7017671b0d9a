#include "larder/generate/kv_quality.h"

#include <gtest/gtest.h>

#include "larder/base/error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

class KVQualityOfATinyModel : public ::testing::Test {
 protected:
  KVQualityOfATinyModel() {
    Json config = TinyModel::default_config();
    config["hidden_size"] = 64;  // heads of 16 channels
    TinyModel model(config);
    model.write(folder_.path());
    model_ = Model::load(folder_.path(), DType::kF32, host_);
    for (int32_t i = 0; i < 200; ++i) ids_.push_back(4 + (i * 7 + i / 5) % 28);
  }
  KVQuality measure(const std::vector<CacheFormat>& formats, const KVQualityOptions& quality = {}) {
    SessionOptions options;
    options.kernels = "reference";
    options.threads = 1;
    return measure_kv_quality(model_, options, ids_, formats, quality, host_);
  }

  HostAllocator host_;
  TempFolder folder_;
  std::shared_ptr<const Model> model_;
  std::vector<int32_t> ids_;
};

TEST_F(KVQualityOfATinyModel, AnExactCacheHasNoDivergence) {
  const KVQuality result = measure({{"dynamic", ""}, {"static", ""}});
  EXPECT_EQ(result.tokens, 200);
  for (const FormatQuality& format : result.formats) {
    EXPECT_EQ(format.max_kl, 0);
    EXPECT_EQ(format.same_top, 1);
    EXPECT_EQ(format.perplexity, result.exact.perplexity);
  }
  EXPECT_EQ(result.formats[1].bytes_per_token, 2.0 * 2 * 2 * 16 * sizeof(float));
}

TEST_F(KVQualityOfATinyModel, FewerBitsDivergeMore) {
  const auto larder = [](int bits) {
    return CacheFormat{"quantized",
                       str(R"({"backend": "larder", "residual_length": 16, "nbits": )", bits, "}")};
  };
  KVQualityOptions quality;
  quality.per_head = true;
  const KVQuality result = measure({larder(8), larder(4), larder(2)}, quality);
  for (size_t i = 0; i < 3; ++i) {
    const FormatQuality& format = result.formats[i];
    EXPECT_GT(format.mean_kl, i == 0 ? 0 : result.formats[i - 1].mean_kl);
    EXPECT_GE(format.max_kl, format.mean_kl);
    EXPECT_LT(format.bytes_per_token, result.exact.bytes_per_token);
    ASSERT_EQ(format.heads.size(), 4u) << "two layers of two heads";
    for (size_t h = 0; h < 4; ++h)
      EXPECT_GT(format.heads[h].output, i == 0 ? 0 : result.formats[i - 1].heads[h].output);
    for (const HeadError& head : format.heads) {
      EXPECT_GT(head.key, 0);
      EXPECT_GT(head.value, 0);
      EXPECT_LT(head.key, i == 2 ? 0.6 : 0.2);
      EXPECT_LT(head.output, 1);
    }
  }
}

// Values alone are rounded: the weights of attention are exact, so its output errs as its values
// do, or less. An exact format has no error at all, and a turned one none but rounding.
TEST_F(KVQualityOfATinyModel, TheOutputOfAttentionErrsAsWhatItReads) {
  KVQualityOptions quality;
  quality.per_head = true;
  const auto larder = [](const char* settings) {
    return CacheFormat{"quantized",
                       str(R"({"backend": "larder", "residual_length": 0, )", settings, "}")};
  };
  const KVQuality result = measure({{"static", ""},
                                    larder(R"("nbits_key": 16, "nbits_value": 4)"),
                                    larder(R"("nbits_key": 4, "nbits_value": 16)"),
                                    larder(R"("nbits": 8, "hadamard": true)")},
                                   quality);
  for (size_t i = 0; i < 4; ++i) {
    for (const HeadError& head : result.formats[i].heads) {
      if (i == 0) {
        EXPECT_EQ(head.output, 0);
      } else {
        EXPECT_GT(head.output, 0) << i;
        EXPECT_LT(head.output, i == 3 ? 0.02 : 0.3) << i;
      }
      if (i == 1) {
        EXPECT_LT(head.output, 1.5 * head.value);
      }
    }
  }
}

TEST_F(KVQualityOfATinyModel, AStepIsLookedAtBeforeItRuns) {
  KVQualityOptions quality;
  quality.steps.interrupted = [] { return true; };
  EXPECT_EQ(measure({{"dynamic", ""}}, quality).tokens, 0);
  quality.steps.interrupted = nullptr;
  quality.steps.chunk = 0;
  EXPECT_THROW(measure({{"dynamic", ""}}, quality), Error);
  ids_.resize(1);
  EXPECT_THROW(measure({{"dynamic", ""}}), Error);
}

}  // namespace
}  // namespace larder::test
