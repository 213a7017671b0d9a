// The promise that a row's logits are the same bits whatever keeps it company: alone or in a batch,
// at any thread count, with the prompt fed whole or in chunks, in every dtype, cache and attention.
#include <gtest/gtest.h>

#include "tests/support/logits_run.h"
#include "tests/support/sanitized.h"

namespace larder::test {
namespace {

struct Setting {
  std::string model;
  DType dtype;
  std::string cache = "dynamic";
  AttentionKind attention = AttentionKind::kFused;
  std::string kernels = {};
  WeightFormat weights = WeightFormat::kStored;
};

class SameBits : public ::testing::TestWithParam<Setting> {
 protected:
  SameBits() {
    LoadOptions options;
    options.dtype = GetParam().dtype;
    options.weights = GetParam().weights;
    model_ = Model::load(toy_folder(GetParam().model), options, host_);
  }

  std::vector<std::vector<float>> run(const std::vector<Ids>& prompts, int64_t chunk, int threads) {
    const Setting& s = GetParam();
    Session session(model_, {s.cache, s.dtype, 700, s.attention, threads, s.kernels}, host_);
    return all_logits(session, prompts, chunk);
  }
  // One model and both dtypes take every combination; the others a part of them.
  bool thorough() const {
    const Setting& s = GetParam();
    return s.model == "toy-llama" && s.cache == "dynamic" && s.dtype != DType::kF16;
  }
  // The plain loops of the reference set take seconds where the others take milliseconds, and a
  // sanitizer ten times as long: there one combination of each test is enough.
  bool slow() const { return GetParam().kernels == "reference" || kSanitized; }
  void expect_same(std::span<const float> got, const std::string& how) {
    std::string where;
    EXPECT_TRUE(same_bits(got, alone_, where)) << how << ": " << where;
  }

  HostAllocator host_;
  std::shared_ptr<const Model> model_;
  std::vector<float> alone_;
};

TEST_P(SameBits, ARequestAloneIsTheSameRequestInABatchOfEight) {
  const int64_t vocab = model_->info().vocab_size;
  const std::vector<int64_t> lengths = {90, 3, 64, 65, 1, 140, 17, 129};
  for (size_t place : {size_t{0}, size_t{5}}) {
    if (place == 0 && (!thorough() || slow())) continue;
    std::vector<Ids> prompts;
    for (size_t i = 0; i < lengths.size(); ++i) prompts.push_back(some_ids(lengths[i], vocab, i));
    const Ids mine = some_ids(140, vocab, 99);
    prompts[place] = mine;
    alone_ = run({mine}, 1000, 1)[0];
    for (const int threads : {1, 2}) {
      for (const int64_t chunk : {1000, 64, 7, 1}) {
        if (!thorough() && (chunk == 64 || chunk == 1) == (threads == 1)) continue;
        if (slow() && chunk != 7) continue;
        const auto together = run(prompts, chunk, threads);
        expect_same(together[place],
                    str("row ", place, " of 8, chunk ", chunk, ", ", threads, " threads"));
      }
    }
  }
}

TEST_P(SameBits, ALongPromptAcrossSpansIsTheSameInEveryChunking) {
  const Ids mine = some_ids(530, model_->info().vocab_size, 7);
  alone_ = run({mine}, 1000, 1)[0];
  for (const int threads : {1, 2}) {
    for (const int64_t chunk : {512, 64, 7, 1}) {
      if (!thorough() && (chunk == 64 || chunk == 1) == (threads == 1)) continue;
      if (slow() && chunk != 64) continue;
      expect_same(run({mine}, chunk, threads)[0], str("chunk ", chunk, ", ", threads, " threads"));
    }
  }
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const char* model : {"toy-llama", "toy-mistral", "toy-gemma2"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) all.push_back({model, dtype});
  }
  all.push_back({"toy-llama", DType::kF16});
  all.push_back({"toy-llama", DType::kBF16, "static"});
  all.push_back({"toy-mistral", DType::kF32, "dynamic", AttentionKind::kEager});
  for (const Kernels* set : available_kernel_sets()) {
    all.push_back({"toy-gemma2", DType::kBF16, "dynamic", AttentionKind::kFused, set->name});
  }
  for (const WeightFormat weights : {WeightFormat::kInt8, WeightFormat::kInt4})
    all.push_back({"toy-mistral", DType::kBF16, "dynamic", AttentionKind::kFused, "", weights});
  return all;
}

std::string name_of(const ::testing::TestParamInfo<Setting>& info) {
  const Setting& s = info.param;
  std::string name =
      str(s.model.substr(4), "_", dtype_name(s.dtype), "_", s.cache, "_",
          s.attention == AttentionKind::kEager ? "eager" : "fused", s.kernels.empty() ? "" : "_",
          s.kernels, s.weights == WeightFormat::kStored ? "" : "_",
          s.weights == WeightFormat::kStored ? "" : weight_format_name(s.weights));
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, SameBits, ::testing::ValuesIn(settings()), name_of);

}  // namespace
}  // namespace larder::test
