#include "tests/support/kv_fixture.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace larder::test {
namespace {

void put(std::byte* at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(at, &bits, 2);
}

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
  const auto size = static_cast<int64_t>(dtype_size(side.dtype));
  side.head_stride = (inside ? 1 : block_size) * head_dim * size;
  side.token_stride = (inside ? heads : 1) * head_dim * size;
}

// Writes token `token` of row `row` to its slot.
void put_token(const KVSegment& segment, const KVSide& side, const KVFixture::Source& from,
               int64_t row, int64_t token, int64_t slot) {
  const auto size = static_cast<int64_t>(dtype_size(side.dtype));
  std::byte* page = reinterpret_cast<std::byte*>(side.data) +
                    segment.block_table[row * segment.table_stride + slot / segment.block_size] +
                    slot % segment.block_size * side.token_stride;
  for (int64_t head = 0; head < from.shape[1]; ++head) {
    const float* values =
        from.values.data() + ((row * from.shape[1] + head) * from.shape[2] + token) * from.shape[3];
    for (int64_t d = 0; d < from.shape[3]; ++d)
      put(page + head * side.head_stride + d * size, side.dtype, values[d]);
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
    : segments_(static_cast<size_t>(layout.segments)) {
  const auto batch = static_cast<size_t>(k.shape[0]);
  std::vector<int64_t> len = content.len, first = content.first;
  if (len.empty()) len.assign(batch, k.shape[2]);
  if (first.empty()) first.assign(batch, 0);
  view_.num_segments = layout.segments;
  view_.num_kv_heads = static_cast<int32_t>(k.shape[1]);
  view_.head_dim = static_cast<int32_t>(k.shape[3]);
  const Source keys{plain(k), k.shape}, values{plain(v), v.shape};
  const auto seams = draw_seams(layout, len);
  for (size_t s = 0; s < segments_.size(); ++s) {
    std::mt19937 random(layout.seed * 7 + static_cast<uint32_t>(s));
    lay_out(segments_[s], view_.segment[s], layout, seams[s], seams[s + 1], random);
    for (size_t b = 0; b < batch; ++b) segments_[s].first[b] = first[b] + seams[s][b];
    copy_tokens(view_.segment[s], keys, values, seams[s]);
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
  const int64_t slots = max_len + 1 + upto(9);
  const int64_t block_size = layout.block_size > 0 ? layout.block_size : slots;
  const int64_t pages = (slots + block_size - 1) / block_size;
  // One table serves both sides, so both have pages of the same number of bytes.
  const auto element =
      static_cast<int64_t>(std::max(dtype_size(layout.k_dtype), dtype_size(layout.v_dtype)));
  const int64_t page_bytes = block_size * heads * head_dim * element;

  store.k = filled(batch * pages * page_bytes, layout.k_dtype, layout.filler);
  store.v = filled(batch * pages * page_bytes, layout.v_dtype, layout.filler);
  segment.k.data = reinterpret_cast<uintptr_t>(store.k.data());
  segment.v.data = reinterpret_cast<uintptr_t>(store.v.data());
  segment.k.dtype = layout.k_dtype, segment.v.dtype = layout.v_dtype;
  for (KVSide* side : {&segment.k, &segment.v})
    set_strides(*side, heads, block_size, head_dim, layout.heads_inside);
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
  segment.block_size = static_cast<int32_t>(block_size);
  segment.wrap = layout.ring ? static_cast<int32_t>(slots) : 0;
  segment.first_position = store.first.data();
  segment.begin = store.begin.data();
  segment.len = store.len.data();
  segment.max_len = static_cast<int32_t>(max_len);
}

void KVFixture::copy_tokens(const KVSegment& segment, const Source& k, const Source& v,
                            const std::vector<int64_t>& from) {
  for (size_t row = 0; row < from.size(); ++row) {
    for (int64_t i = 0; i < segment.len[row]; ++i) {
      int64_t slot = segment.begin[row] + i;
      if (segment.wrap > 0) slot %= segment.wrap;
      const auto b = static_cast<int64_t>(row);
      put_token(segment, segment.k, k, b, from[row] + i, slot);
      put_token(segment, segment.v, v, b, from[row] + i, slot);
    }
  }
}

}  // namespace larder::test
