#include "tests/support/kv_fixture.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "larder/tensor/hadamard.h"

namespace larder::test {
namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

std::vector<std::byte> filled(int64_t bytes, DType dtype, float value) {
  const auto size = static_cast<int64_t>(dtype_size(dtype));
  std::vector<std::byte> slots(static_cast<size_t>(bytes));
  for (int64_t at = 0; at + size <= bytes; at += size) put(slots.data() + at, dtype, value);
  return slots;
}

// [batch, kv_heads, kv_len, head_dim] in f32, contiguous.
std::vector<float> plain(const TensorView& from) {
  std::vector<float> to(static_cast<size_t>(from.count()));
  copy_into(TensorView::contiguous(to.data(), DType::kF32, from.shape), from);
  return to;
}

void set_strides(KVSide& side, int64_t heads, int64_t block_size, int64_t head_dim, bool inside) {
  side.head_stride = (inside ? 1 : block_size) * token_bytes(side, head_dim);
  side.token_stride = (inside ? heads : 1) * token_bytes(side, head_dim);
}

// Writes token `token` of row `row` to its slot, and rounds the tensor to what is there then.
void put_token(const KVSegment& segment, const KVSide& side, std::vector<float>& tensor,
               const Shape& shape, int64_t row, int64_t token, int64_t slot) {
  auto* page = reinterpret_cast<std::byte*>(slot_address(segment, side, row, slot));
  for (int64_t head = 0; head < shape[1]; ++head) {
    float* values = tensor.data() + ((row * shape[1] + head) * shape[2] + token) * shape[3];
    for (int64_t d = 0; d < shape[3]; ++d) {
      std::byte* at = page + head * side.head_stride + d * bytes_of(side.dtype);
      put(at, side.dtype, values[d]);
      values[d] = get(reinterpret_cast<uintptr_t>(at), side.dtype);
    }
  }
}

// The first token of each segment in each row, and where the last one ends.
std::vector<std::vector<int64_t>> draw_seams(const KVLayout& layout,
                                             const std::vector<int64_t>& len) {
  std::mt19937 random(layout.seed + 17);
  std::vector<std::vector<int64_t>> seams(static_cast<size_t>(layout.segments) + 1,
                                          std::vector<int64_t>(len.size(), 0));
  seams.back() = len;
  for (size_t b = 0; b < len.size(); ++b) {
    for (int s = 1; s < layout.segments; ++s)
      seams[static_cast<size_t>(s)][b] = std::uniform_int_distribution<int64_t>(0, len[b])(random);
    if (layout.segments == 3 && seams[1][b] > seams[2][b]) std::swap(seams[1][b], seams[2][b]);
  }
  return seams;
}

}  // namespace

KVFixture::KVFixture(const TensorView& k, const TensorView& v, const KVLayout& layout,
                     const KVContent& content)
    : segments_(static_cast<size_t>(layout.segments)),
      k_{plain(k), k.shape},
      v_{plain(v), v.shape} {
  const auto batch = static_cast<size_t>(k.shape[0]);
  std::vector<int64_t> len = content.len, first = content.first;
  if (len.empty()) len.assign(batch, k.shape[2]);
  if (first.empty()) first.assign(batch, 0);
  view_.num_segments = layout.segments;
  view_.num_kv_heads = static_cast<int32_t>(k.shape[1]);
  view_.head_dim = static_cast<int32_t>(k.shape[3]);
  view_.hadamard = layout.hadamard;
  if (layout.hadamard) hadamard(k_.values.data(), k.count() / k.shape[3], k.shape[3]);
  const auto seams = draw_seams(layout, len);
  for (size_t s = 0; s < segments_.size(); ++s) {
    std::mt19937 random(layout.seed * 7 + static_cast<uint32_t>(s));
    KVSegment& segment = view_.segment[s];
    segment.k.dtype = layout.k_dtype, segment.v.dtype = layout.v_dtype;
    if (static_cast<int32_t>(s) < layout.coded_segments)
      segment.k.quant = layout.k_quant, segment.v.quant = layout.v_quant;
    lay_out(segments_[s], segment, layout, seams[s], seams[s + 1], random);
    for (size_t b = 0; b < batch; ++b) segments_[s].first[b] = first[b] + seams[s][b];
    copy_tokens(segment, segment.k, k_, seams[s], random);
    copy_tokens(segment, segment.v, v_, seams[s], random);
  }
}

void KVFixture::lay_out(Segment& store, KVSegment& segment, const KVLayout& layout,
                        const std::vector<int64_t>& from, const std::vector<int64_t>& to,
                        std::mt19937& random) const {
  const auto upto = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n)(random); };
  const auto batch = static_cast<int64_t>(from.size());
  const int64_t heads = view_.num_kv_heads, head_dim = view_.head_dim;
  int64_t max_len = 0;
  for (size_t b = 0; b < from.size(); ++b) max_len = std::max(max_len, to[b] - from[b]);
  int64_t slots = max_len + 1 + upto(9);
  int64_t block_size = layout.block_size > 0 ? layout.block_size : slots;
  // A page holds whole groups of tokens.
  const int64_t group = std::max<int64_t>(
      1, std::lcm(int64_t{segment.k.quant.token_group}, segment.v.quant.token_group));
  block_size = (block_size + group - 1) / group * group;
  if (layout.ring) slots = (slots + group - 1) / group * group;
  const int64_t pages = (slots + block_size - 1) / block_size;
  // One table serves both sides, so both have pages of the same number of bytes.
  const int64_t page_bytes = std::max(page_size(segment.k, heads, block_size, head_dim),
                                      page_size(segment.v, heads, block_size, head_dim));

  segment.block_size = static_cast<int32_t>(block_size);
  for (Side* side : {&store.k, &store.v}) {
    KVSide& shown = side == &store.k ? segment.k : segment.v;
    const DType dtype = shown.quant.bits > 0 ? shown.quant.dtype : shown.dtype;
    side->bytes = filled(batch * pages * page_bytes, dtype, layout.filler);
    shown.data = reinterpret_cast<uintptr_t>(side->bytes.data());
    set_strides(shown, heads, block_size, head_dim, layout.heads_inside);
  }
  store.table.resize(static_cast<size_t>(batch * pages));
  std::iota(store.table.begin(), store.table.end(), 0);
  std::shuffle(store.table.begin(), store.table.end(), random);
  for (int64_t& entry : store.table) entry *= page_bytes;
  store.first.resize(from.size());
  for (size_t b = 0; b < from.size(); ++b) {
    const int64_t len = to[b] - from[b];
    store.len.push_back(static_cast<int32_t>(len));
    store.begin.push_back(static_cast<int32_t>(upto(layout.ring ? slots - 1 : slots - len)));
  }
  segment.block_table = store.table.data();
  segment.table_stride = static_cast<int32_t>(pages);
  segment.wrap = layout.ring ? static_cast<int32_t>(slots) : 0;
  segment.first_position = store.first.data();
  segment.begin = store.begin.data();
  segment.len = store.len.data();
  segment.max_len = static_cast<int32_t>(max_len);
  const CodesLayout codes{heads, head_dim, batch, slots, page_bytes, layout.heads_inside};
  lay_out_codes(store.k, segment, segment.k, codes, random);
  lay_out_codes(store.v, segment, segment.v, codes, random);
}

// Writes the tokens where codes do not stand for them; of codes, learns what they stand for.
void KVFixture::copy_tokens(const KVSegment& segment, const KVSide& side, Source& tensor,
                            const std::vector<int64_t>& from, std::mt19937& random) {
  const auto for_each_token = [&](const auto& body) {
    for (size_t row = 0; row < from.size(); ++row) {
      for (int64_t i = 0; i < segment.len[row]; ++i) {
        const int64_t slot = segment.begin[row] + i;
        body(static_cast<int64_t>(row), from[row] + i,
             segment.wrap > 0 ? slot % segment.wrap : slot);
      }
    }
  };
  if (side.quant.bits == 0) {
    for_each_token([&](int64_t row, int64_t token, int64_t slot) {
      put_token(segment, side, tensor.values, tensor.shape, row, token, slot);
    });
    return;
  }
  const auto for_each_element = [&](int64_t row, int64_t slot, const auto& body) {
    for (int64_t head = 0; head < tensor.shape[1]; ++head)
      for (int64_t d = 0; d < tensor.shape[3]; ++d)
        body(CodedElement{row, slot, head, d, tensor.shape[1], tensor.shape[3]});
  };
  for_each_token([&](int64_t row, int64_t, int64_t slot) {
    for_each_element(
        row, slot, [&](const CodedElement& e) { draw_parameters(segment, side.quant, e, random); });
  });
  for_each_token([&](int64_t row, int64_t token, int64_t slot) {
    for_each_element(row, slot, [&](const CodedElement& e) {
      const int64_t vector = (row * e.heads + e.head) * tensor.shape[2] + token;
      tensor.values[static_cast<size_t>(vector * e.head_dim + e.channel)] =
          widened(segment, side, e);
    });
  });
}

}  // namespace larder::test
