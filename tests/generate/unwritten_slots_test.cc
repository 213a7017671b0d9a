// Case 14: slots that were never written have no influence, whatever the allocator left in them.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "larder/generate/generation.h"
#include "tests/support/logits_run.h"

namespace larder::test {
namespace {

// Fills what it hands out with one 16-bit pattern: 0x7F80 is +inf as bf16 and in the upper half of
// an f32, 0x7C00 is +inf as f16, 0xFFFF a NaN in all of them.
class FillingAllocator final : public Allocator {
 public:
  FillingAllocator(Allocator& inner, uint16_t pattern) : inner_(inner), pattern_(pattern) {}
  void* allocate(size_t bytes, std::string_view tag) override {
    auto* p = static_cast<unsigned char*>(inner_.allocate(bytes, tag));
    for (size_t i = 0; i + 1 < bytes; i += 2) std::memcpy(p + i, &pattern_, 2);
    return p;
  }
  void release(void* p, size_t bytes, std::string_view tag) noexcept override {
    inner_.release(p, bytes, tag);
  }

 private:
  Allocator& inner_;
  uint16_t pattern_;
};

TEST(Case14, WhatWasNeverWrittenIsNeverSeen) {
  HostAllocator host;
  const auto model = Model::load(toy_folder("toy-mistral"), DType::kF32, host);
  const std::vector<Ids> prompts = {some_ids(1, 2048, 1), some_ids(3, 2048, 2),
                                    some_ids(70, 2048, 3)};
  for (const char* cache : {"dynamic", "static"}) {
    for (const AttentionKind attention : {AttentionKind::kFused, AttentionKind::kEager}) {
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        std::vector<std::vector<float>> clean;
        for (const uint16_t pattern : {0x0000, 0xFFFF, 0x7F80, 0x7C00}) {
          FillingAllocator filling(host, pattern);
          Session session(model, {cache, dtype, 100, attention, 2, {}}, filling);
          const auto logits = all_logits(session, prompts, 6);
          if (clean.empty()) clean = logits;
          for (size_t r = 0; r < prompts.size(); ++r) {
            std::string where;
            EXPECT_TRUE(same_bits(logits[r], clean[r], where))
                << cache << " " << dtype_name(dtype) << " " << pattern << " " << where;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace larder::test
