// Whole models with sliding and chunked layers, over the kinds that keep only what a window needs.
#include <gtest/gtest.h>

#include <cmath>

#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"
#include "tests/support/sanitized.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_model.h"

namespace larder::test {
namespace {

const std::vector<std::string> kLossless = {"dynamic", "static", "sliding_window", "hybrid",
                                            "hybrid_chunked"};
constexpr int64_t kCapacity = 700;

std::shared_ptr<const Model> load(const Json& changes, Allocator& allocator) {
  Json config = TinyModel::default_config();
  config.update(changes);
  const TempFolder folder;
  TinyModel(config).write(folder.path());
  return Model::load(folder.path(), DType::kF32, allocator);
}

SessionOptions options(const std::string& cache, DType dtype = DType::kF32,
                       AttentionKind attention = AttentionKind::kFused) {
  return {cache, dtype, kCapacity, attention, 2, {}};
}

class Windows : public ::testing::Test {
 protected:
  std::vector<float> logits(const std::shared_ptr<const Model>& model, const std::string& cache,
                            const Ids& ids, int64_t chunk,
                            AttentionKind attention = AttentionKind::kFused) {
    Session session(model, options(cache, DType::kF32, attention), host_);
    return all_logits(session, {ids}, chunk)[0];
  }
  HostAllocator host_;
};

const Json kStackOfTwo = {
    {"architectures", {"MistralForCausalLM"}}, {"model_type", "mistral"}, {"sliding_window", 4}};
const Json kChunked = {{"layer_types", {"chunked_attention", "chunked_attention"}},
                       {"attention_chunk_size", 6}};
const Json kChunkedAndFull = {{"layer_types", {"chunked_attention", "full_attention"}},
                              {"attention_chunk_size", 6}};
const Json kHybrid = {{"layer_types", {"sliding_attention", "full_attention"}},
                      {"sliding_window", 4}};

// Which of `ids` change the logits of the last one.
std::vector<int64_t> influences(const std::function<std::vector<float>(const Ids&)>& last,
                                const Ids& ids) {
  const std::vector<float> before = last(ids);
  std::vector<int64_t> result;
  for (size_t i = 0; i < ids.size(); ++i) {
    Ids other = ids;
    other[i] = (ids[i] + 5) % 32;
    if (last(other) != before) result.push_back(static_cast<int64_t>(i));
  }
  return result;
}

TEST_F(Windows, Case01_TwoStackedWindowsReachTwiceTheWindowLessOne) {
  const auto model = load(kStackOfTwo, host_);
  for (const std::string& cache : kLossless) {
    for (const int64_t chunk : {1, 3, 10}) {
      const auto last = [&](const Ids& ids) {
        const auto all = logits(model, cache, ids, chunk);
        return std::vector<float>(all.end() - 32, all.end());
      };
      EXPECT_EQ(influences(last, some_ids(10, 32, 3)), (std::vector<int64_t>{3, 4, 5, 6, 7, 8, 9}))
          << cache << ", chunk " << chunk;
    }
  }
}

TEST_F(Windows, Case02_EverySplitOfAPromptGivesTheSameLogits) {
  const Ids ids = some_ids(40, 32, 4);
  for (const Json& changes : {kStackOfTwo, kHybrid, kChunked, kChunkedAndFull}) {
    const auto model = load(changes, host_);
    for (const AttentionKind attention : {AttentionKind::kFused, AttentionKind::kEager}) {
      const auto whole = logits(model, "dynamic_full", ids, 40, attention);
      for (const std::string& cache : kLossless) {
        for (const int64_t chunk : {1, 3, 4, 5, 6, 7, 40}) {
          std::string where;
          EXPECT_TRUE(same_bits(logits(model, cache, ids, chunk, attention), whole, where))
              << changes << " " << cache << ", chunk " << chunk << ": " << where;
        }
      }
    }
  }
}

// Where all layers are chunked, a chunk knows nothing of what came before: its logits are those of
// its tokens alone in the same model without chunks (rope turns by differences).
TEST_F(Windows, ChunkedLayersAreEachChunkAlone) {
  const Ids ids = some_ids(33, 32, 5);
  const auto chunked = load(kChunked, host_), full = load(Json::object(), host_);
  for (const std::string& cache : kLossless) {
    for (const int64_t step : {1, 4, 33}) {
      const auto got = logits(chunked, cache, ids, step);
      std::vector<float> expected;
      for (size_t at = 0; at < ids.size(); at += 6) {
        const Ids alone(ids.begin() + static_cast<std::ptrdiff_t>(at),
                        ids.begin() + static_cast<std::ptrdiff_t>(std::min(at + 6, ids.size())));
        const auto part = logits(full, "dynamic_full", alone, 99);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 1e-4f) << cache << ", step " << step << ", logit " << i;
    }
  }
}

TEST_F(Windows, AChunksFirstTokenSeesNothingBeforeIt) {
  const auto model = load(kChunked, host_);
  const auto last = [&](const Ids& ids) {
    const auto all = logits(model, "hybrid_chunked", ids, 5);
    return std::vector<float>(all.end() - 32, all.end());
  };
  EXPECT_EQ(influences(last, some_ids(13, 32, 6)), (std::vector<int64_t>{12}));
  EXPECT_EQ(influences(last, some_ids(18, 32, 6)), (std::vector<int64_t>{12, 13, 14, 15, 16, 17}));
}

// Prompts several windows long (the toy models' window is 64), fed whole and in chunks.
TEST_F(Windows, EveryLosslessKindGivesTheBitsAndIdsOfTheOneThatKeepsAll) {
  for (const char* name : {"toy-mistral", "toy-gemma2"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto model = Model::load(toy_folder(name), dtype, host_);
      const std::vector<Ids> prompts = {some_ids(300, 2048, 1), some_ids(5, 2048, 2),
                                        some_ids(129, 2048, 3)};
      const auto run = [&](const std::string& cache, int64_t chunk) {
        Session session(model, options(cache, dtype), host_);
        return all_logits(session, prompts, chunk);
      };
      const auto generate_ids = [&](const std::string& cache, int32_t chunk) {
        Session session(model, options(cache, dtype), host_);
        std::vector<Request> requests;
        for (const Ids& prompt : prompts) requests.push_back({prompt, 80, {}, {}, {}});
        GenerationOptions how;
        how.prefill_chunk = chunk;
        Generation generation(session, requests, how);
        generation.run();
        std::vector<Ids> ids;
        for (size_t r = 0; r < prompts.size(); ++r) ids.push_back(generation.result(r).output_ids);
        return ids;
      };
      const auto kept_all = run("dynamic_full", 512);
      const auto ids = generate_ids("dynamic_full", 512);
      for (const std::string& cache : kLossless) {
        for (const int64_t chunk : {512, 50}) {
          if (kSanitized && (chunk == 512 || cache != "dynamic")) continue;
          const auto got = run(cache, chunk);
          for (size_t r = 0; r < prompts.size(); ++r) {
            std::string where;
            EXPECT_TRUE(same_bits(got[r], kept_all[r], where)) << name << " " << cache << where;
          }
          EXPECT_EQ(generate_ids(cache, static_cast<int32_t>(chunk)), ids) << name << " " << cache;
        }
      }
    }
  }
}

// A reused session continues or starts anew, and never mixes.
TEST_F(Windows, Case12_AResetSessionIsAFreshOne) {
  const auto model = load(kHybrid, host_);
  for (const std::string& cache : kLossless) {
    Session session(model, options(cache), host_);
    const Ids first = some_ids(14, 32, 7), second = some_ids(9, 32, 8);
    all_logits(session, {first}, 3);
    const auto again = all_logits(session, {second, first}, 4);  // resets
    EXPECT_EQ(again[0], logits(model, cache, second, 4));
    EXPECT_EQ(again[1], logits(model, cache, first, 4));
  }
}

TEST_F(Windows, Case13_GenerationNeedsPromptAndNewTokensLessOne) {
  const auto model = load(kStackOfTwo, host_);
  for (const char* cache : {"static", "sliding_window", "hybrid", "hybrid_chunked"}) {
    const auto run = [&](int64_t prompt, int64_t more) {
      Session session(model, {cache, DType::kF32, 8, AttentionKind::kFused, 1, {}}, host_);
      return generate(session, {some_ids(prompt, 32, 9), more, {}, {}, {}}).output_ids.size();
    };
    EXPECT_EQ(run(8, 1), 1u);
    EXPECT_EQ(run(6, 3), 3u);
    for (const auto& lengths : {std::pair{9, 1}, {6, 4}}) {
      const std::string text = error_text([&] { run(lengths.first, lengths.second); });
      EXPECT_NE(text.find('9'), std::string::npos) << text;
      EXPECT_NE(text.find("max_cache_len is 8"), std::string::npos) << text;
    }
  }
}

TEST_F(Windows, ChunkedLayersNeedAChunkSize) {
  const std::string text = error_text([&] {
    load({{"layer_types", {"chunked_attention", "full_attention"}}}, host_);
  });
  EXPECT_NE(text.find("needs attention_chunk_size"), std::string::npos) << text;
  EXPECT_NE(error_text([&] {
              load({{"attention_chunk_size", 6}}, host_);
            }).find("attention_chunk_size (6) is not supported"),
            std::string::npos);
}

}  // namespace
}  // namespace larder::test
