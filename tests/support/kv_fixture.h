// KVViews over plain tensors, in many layouts, for tests: the same keys and values contiguous, in
// shuffled pages, in a ring, cut into segments, or some of them in codes.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "larder/tensor/kv_view.h"
#include "larder/tensor/tensor.h"
#include "tests/support/kv_codes.h"

namespace larder::test {

struct KVLayout {
  DType k_dtype = DType::kF32, v_dtype = DType::kF32;  // f32, f16, bf16
  int32_t block_size = 0;                              // tokens a page; 0: one block a row
  bool ring = false;          // slots wrap, the first token somewhere in the middle
  int32_t segments = 1;       // up to 3, cut at random places that differ from row to row
  bool heads_inside = false;  // [block, token, head, channel] instead of [block, head, token, ..]
  float filler = std::numeric_limits<float>::quiet_NaN();  // in every slot that holds no token
  uint32_t seed = 1;      // of the page order, the seams, the first slots, and the codes
  bool hadamard = false;  // K is stored turned by the normalised Hadamard matrix
  // Of the first `coded_segments` segments, the sides with bits > 0 here lie in codes. Of KVQuant
  // only bits, form, order, dtype and the groups count. Their codes and parameters are random, not
  // made from the tensors: shown_k() and shown_v() say what they stand for.
  KVQuant k_quant{}, v_quant{};
  int32_t coded_segments = 1;
};

// What a view shows of each row; empty lists mean everything, from position 0.
struct KVContent {
  std::vector<int64_t> len;    // [batch] tokens shown, the first ones of the row
  std::vector<int64_t> first;  // [batch] position of the row's first token
};

// Copies tokens into a layout and owns it. Move-only; view() is valid while this lives.
class KVFixture {
 public:
  // k, v: [batch, kv_heads, kv_len, head_dim] of any float dtype and stride.
  KVFixture(const TensorView& k, const TensorView& v, const KVLayout& layout,
            const KVContent& content = {});
  KVFixture(const KVFixture&) = delete;
  KVFixture(KVFixture&&) = default;

  const KVView& view() const { return view_; }
  // What the view holds, in f32 and in the shape of the tensors; elsewhere what was given.
  const std::vector<float>& shown_k() const { return k_.values; }
  const std::vector<float>& shown_v() const { return v_.values; }

 private:
  struct Source {  // [batch, kv_heads, kv_len, head_dim] in f32
    std::vector<float> values;
    Shape shape;
  };
  using Side = KVSideStore;
  struct Segment {
    Side k, v;
    std::vector<int64_t> table, first;
    std::vector<int32_t> begin, len;
  };
  void lay_out(Segment& store, KVSegment& segment, const KVLayout& layout,
               const std::vector<int64_t>& from, const std::vector<int64_t>& to,
               std::mt19937& random) const;
  static void copy_tokens(const KVSegment& segment, const KVSide& side, Source& tensor,
                          const std::vector<int64_t>& from, std::mt19937& random);

  std::vector<Segment> segments_;
  Source k_, v_;
  KVView view_;
};

}  // namespace larder::test
