// Models whose matrices are codes: what they take, keep and promise.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "larder/base/file.h"
#include "tests/support/logits_run.h"
#include "tests/support/source_dir.h"
#include "tests/support/temp_folder.h"

namespace larder::test {
namespace {

namespace fs = std::filesystem;

LoadOptions codes(WeightFormat format) {
  LoadOptions options;
  options.weights = format;
  options.threads = 2;
  return options;
}

// A folder with a copy of a small model, whose files may be changed.
class CodedWeights : public ::testing::TestWithParam<WeightFormat> {
 protected:
  CodedWeights() { copy(toy_folder("toy-llama")); }
  void copy(const fs::path& from) {
    for (const auto& entry : fs::directory_iterator(from))
      fs::copy_file(entry.path(), folder_.path() / entry.path().filename(),
                    fs::copy_options::overwrite_existing);
  }
  std::shared_ptr<const Model> load(bool keep = false) {
    LoadOptions options = codes(GetParam());
    options.keep_codes = keep;
    options.note = [this](const std::string& text) { notes_.push_back(text); };
    return Model::load(folder_.path(), options, tracking_);
  }
  std::vector<float> logits(const std::shared_ptr<const Model>& model) {
    Session session(model, {"dynamic", DType::kF32, 0, AttentionKind::kFused, 1, {}}, host_);
    return all_logits(session, {some_ids(40, model->info().vocab_size, 3)}, 16)[0];
  }
  fs::path kept() const {
    return folder_ / str("larder-weights-", weight_format_name(GetParam()), ".safetensors");
  }

  TempFolder folder_;
  HostAllocator host_;
  TrackingAllocator tracking_{host_};
  std::vector<std::string> notes_;
};

TEST_P(CodedWeights, TakeWhatIsPlannedToTheByteAndNoMoreOnTheWay) {
  for (const char* name : {"toy-llama", "toy-mistral", "toy-gemma2"}) {
    TrackingAllocator tracking(host_);
    const auto model = Model::load(toy_folder(name), codes(GetParam()), tracking);
    const WeightBytes planned = Model::weight_bytes(toy_folder(name), codes(GetParam()));
    EXPECT_EQ(planned.mapped, 0u);
    EXPECT_EQ(tracking.of("weights").live, planned.converted) << name;
    EXPECT_EQ(tracking.of("weights").peak, planned.converted) << name;
    EXPECT_EQ(model->info().converted_weight_bytes, planned.converted);
    EXPECT_EQ(model->info().mapped_weight_bytes, 0u);
  }
}

TEST_P(CodedWeights, OfEveryArchitectureAreWhatIsPlanned) {
  for (const char* name : {"mamba-micro", "recurrentgemma-micro", "t5-micro", "llama-tied"}) {
    const fs::path folder = source_path(std::string("tests/data/conformance/models/") + name);
    if (!fs::exists(folder)) continue;
    TrackingAllocator tracking(host_);
    const auto model = Model::load(folder, codes(GetParam()), tracking);
    EXPECT_EQ(tracking.of("weights").live, Model::weight_bytes(folder, codes(GetParam())).converted)
        << name;
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      LoadOptions stored;
      stored.dtype = dtype;
      TrackingAllocator own(host_);
      const auto plain = Model::load(folder, stored, own);
      const WeightBytes planned = Model::weight_bytes(folder, stored);
      EXPECT_EQ(own.of("weights").live, planned.converted) << name;
      EXPECT_EQ(plain->info().mapped_weight_bytes, planned.mapped) << name;
    }
  }
}

TEST_P(CodedWeights, AreNearTheStoredOnes) {
  const std::vector<float> got = logits(load());
  const std::vector<float> want = logits(Model::load(folder_.path(), std::nullopt, host_));
  ASSERT_EQ(got.size(), want.size());
  double error = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  EXPECT_LT(std::sqrt(error / size), GetParam() == WeightFormat::kInt8 ? 0.02 : 0.15);
}

TEST_P(CodedWeights, GiveTheSameBitsInEverySetButForWhatIsNotAProduct) {
  const auto model = load();
  for (const Kernels* set : available_kernel_sets()) {
    Session session(model, {"dynamic", DType::kF32, 0, AttentionKind::kFused, 1, set->name}, host_);
    const Ids ids = some_ids(20, model->info().vocab_size, 3);
    const std::vector<float> got = all_logits(session, {ids}, 1000)[0];
    Session plain(model, {"dynamic", DType::kF32, 0, AttentionKind::kFused, 1, "reference"}, host_);
    const std::vector<float> want = all_logits(plain, {ids}, 1000)[0];
    // Norms, exp and attention differ by rounding, which may move an activation to the next code.
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.05f) << set->name;
  }
}

TEST_P(CodedWeights, AreKeptInAFileAndMappedTheNextTime) {
  const std::vector<float> want = logits(load());
  EXPECT_FALSE(fs::exists(kept()));
  const auto made = load(true);
  EXPECT_EQ(logits(made), want);
  ASSERT_TRUE(fs::exists(kept()));
  const auto written = fs::last_write_time(kept());
  const size_t before = tracking_.of("weights").live;
  const auto mapped = load(true);
  EXPECT_EQ(logits(mapped), want);
  EXPECT_EQ(mapped->info().mapped_weight_bytes + mapped->info().converted_weight_bytes,
            made->info().converted_weight_bytes);
  EXPECT_EQ(tracking_.of("weights").live - before, mapped->info().converted_weight_bytes);
  EXPECT_EQ(fs::last_write_time(kept()), written);
  EXPECT_EQ(notes_, std::vector<std::string>{});
}

TEST_P(CodedWeights, AFileOfOtherWeightsIsMadeAnewWithANote) {
  load(true);
  copy(toy_folder("toy-mistral"));
  const std::vector<float> got = logits(load(true));
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("is made anew: it was made from other weights"), std::string::npos)
      << notes_[0];
  EXPECT_EQ(got, logits(load()));
  EXPECT_EQ(got, logits(load(true)));
  EXPECT_EQ(notes_.size(), 1u);
}

TEST_P(CodedWeights, ADamagedFileIsMadeAnewWithANote) {
  const std::vector<float> want = logits(load(true));
  std::string bytes = read_file(kept());
  bytes[bytes.size() - 100] ^= 1;
  std::ofstream(kept(), std::ios::binary) << bytes;
  EXPECT_EQ(logits(load(true)), want);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("damaged"), std::string::npos) << notes_[0];
  std::ofstream(kept(), std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  EXPECT_EQ(logits(load(true)), want);
  EXPECT_EQ(notes_.size(), 2u);
  EXPECT_EQ(logits(load(true)), want);
  EXPECT_EQ(notes_.size(), 2u);
}

TEST_P(CodedWeights, AFolderThatCannotBeWrittenGivesANoteAndTheModel) {
  fs::create_directory(kept());  // no file takes a folder's name
  const std::vector<float> want = logits(load());
  EXPECT_EQ(logits(load(true)), want);
  ASSERT_EQ(notes_.size(), 2u);
  EXPECT_NE(notes_[1].find("the codes are not kept"), std::string::npos) << notes_[1];
}

INSTANTIATE_TEST_SUITE_P(Formats, CodedWeights,
                         ::testing::Values(WeightFormat::kInt8, WeightFormat::kInt4),
                         [](const auto& of) { return std::string(weight_format_name(of.param)); });

}  // namespace
}  // namespace larder::test
