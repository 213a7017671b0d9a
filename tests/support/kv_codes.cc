#include "tests/support/kv_codes.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace larder::test {
namespace {

int64_t bytes_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

// Parameters of one kind that a head has within a page; none in flat orders.
int64_t page_parameters(const KVQuant& quant, int64_t block_size, int64_t head_dim) {
  if (quant.bits == 0 || quant.order != KVOrder::kAligned) return 0;
  return block_size / quant.token_group *
         ((head_dim + quant.channel_group - 1) / quant.channel_group);
}

// A scale and a zero, where kv_view.h says that they lie.
struct Parameters {
  uintptr_t scale, zero;
};

Parameters parameters_of(const KVSegment& segment, const KVQuant& quant, const CodedElement& e) {
  const int64_t size = bytes_of(quant.dtype);
  if (quant.order == KVOrder::kAligned) {
    const int64_t page =
        segment.block_table[e.row * segment.table_stride + e.slot / segment.block_size];
    const auto offset = static_cast<uintptr_t>(page + e.head * quant.head_stride +
                                               e.slot % segment.block_size / quant.token_group *
                                                   quant.token_stride +
                                               e.channel / quant.channel_group * size);
    return {quant.scale + offset, quant.zero + offset};
  }
  const int64_t tokens = quant.flat_tokens[e.row], elements = e.heads * tokens * e.head_dim;
  const int64_t number = (e.head * tokens + e.slot) * e.head_dim + e.channel;
  int64_t group = number / quant.group_size;
  if (quant.order == KVOrder::kFlatColumns) group = number % (elements / quant.group_size);
  if (quant.order == KVOrder::kFlatChannels)
    group =
        e.channel * (e.heads * tokens / quant.group_size) + number / e.head_dim / quant.group_size;
  const int64_t zeros = quant.zero_table == nullptr ? 0 : quant.zero_table[e.row];
  return {static_cast<uintptr_t>(quant.scale_table[e.row] + group * size),
          static_cast<uintptr_t>(zeros + group * size)};
}

std::vector<std::byte> all_nan(int64_t bytes, DType dtype) {
  std::vector<std::byte> filled(static_cast<size_t>(bytes));
  for (int64_t at = 0; at < bytes; at += bytes_of(dtype))
    put(filled.data() + at, dtype, std::numeric_limits<float>::quiet_NaN());
  return filled;
}

// Tables of one run of parameters a row. Rows hold as many tokens as divide into groups.
void lay_out_flat(KVSideStore& store, KVQuant& quant, const CodesLayout& layout,
                  std::mt19937& random) {
  const int64_t unit =
      quant.order == KVOrder::kFlatChannels ? layout.heads : layout.heads * layout.head_dim;
  int64_t most = 0;
  for (int64_t row = 0; row < layout.batch; ++row) {
    int64_t tokens = layout.slots + static_cast<int64_t>(random() % 3);
    while (tokens * unit % quant.group_size != 0) ++tokens;
    store.flat_tokens.push_back(static_cast<int32_t>(tokens));
    most = std::max(most, layout.heads * tokens * layout.head_dim / quant.group_size);
  }
  const int64_t row_bytes = most * bytes_of(quant.dtype);
  store.scales = all_nan(layout.batch * row_bytes, quant.dtype);
  store.zeros = all_nan(layout.batch * row_bytes, quant.dtype);
  for (int64_t row = 0; row < layout.batch; ++row) {
    store.scale_table.push_back(
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(store.scales.data())) + row * row_bytes);
    store.zero_table.push_back(
        static_cast<int64_t>(reinterpret_cast<uintptr_t>(store.zeros.data())) + row * row_bytes);
  }
  quant.scale_table = store.scale_table.data();
  if (quant.form != KVForm::kSymmetric) quant.zero_table = store.zero_table.data();
  quant.flat_tokens = store.flat_tokens.data();
}

}  // namespace

void put(std::byte* at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  std::memcpy(at, &bits, 2);
}

float get(uintptr_t at, DType dtype) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, reinterpret_cast<const void*>(at), 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, reinterpret_cast<const void*>(at), 2);
  return dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

int64_t token_bytes(const KVSide& side, int64_t head_dim) {
  return side.quant.bits > 0 ? (head_dim * side.quant.bits + 7) / 8
                             : head_dim * bytes_of(side.dtype);
}

int64_t page_size(const KVSide& side, int64_t heads, int64_t block_size, int64_t head_dim) {
  return heads *
         (block_size * token_bytes(side, head_dim) +
          2 * page_parameters(side.quant, block_size, head_dim) * bytes_of(side.quant.dtype));
}

uintptr_t slot_address(const KVSegment& segment, const KVSide& side, int64_t row, int64_t slot) {
  return side.data +
         static_cast<uintptr_t>(
             segment.block_table[row * segment.table_stride + slot / segment.block_size] +
             slot % segment.block_size * side.token_stride);
}

void lay_out_codes(KVSideStore& store, const KVSegment& segment, KVSide& side,
                   const CodesLayout& layout, std::mt19937& random) {
  KVQuant& quant = side.quant;
  if (quant.bits == 0) return;
  const int64_t code_bytes = layout.heads * segment.block_size * token_bytes(side, layout.head_dim);
  for (size_t page = 0; page < store.bytes.size(); page += static_cast<size_t>(layout.page_bytes)) {
    for (int64_t i = 0; i < layout.page_bytes; ++i)
      if (i < code_bytes)
        store.bytes[page + static_cast<size_t>(i)] = static_cast<std::byte>(random());
    for (int64_t i = code_bytes; i + bytes_of(quant.dtype) <= layout.page_bytes;
         i += bytes_of(quant.dtype))
      put(&store.bytes[page + static_cast<size_t>(i)], quant.dtype,
          std::numeric_limits<float>::quiet_NaN());
  }
  if (quant.order != KVOrder::kAligned) return lay_out_flat(store, quant, layout, random);
  const int64_t head_bytes =
      page_parameters(quant, segment.block_size, layout.head_dim) * bytes_of(quant.dtype);
  const int64_t groups = segment.block_size / quant.token_group;
  quant.scale = side.data + static_cast<uintptr_t>(code_bytes);
  quant.zero = quant.scale + static_cast<uintptr_t>(layout.heads * head_bytes);
  quant.head_stride = layout.heads_inside ? head_bytes / groups : head_bytes;
  quant.token_stride = (layout.heads_inside ? layout.heads : 1) * head_bytes / groups;
}

void draw_parameters(const KVSegment& segment, const KVQuant& quant, const CodedElement& e,
                     std::mt19937& random) {
  const Parameters at = parameters_of(segment, quant, e);
  if (!std::isnan(get(at.scale, quant.dtype))) return;
  std::uniform_real_distribution<float> around_one(0.5f, 1.5f);
  const auto codes = static_cast<float>(1 << quant.bits);
  put(reinterpret_cast<std::byte*>(at.scale), quant.dtype, around_one(random) * 2 / codes);
  if (quant.form == KVForm::kSymmetric) return;
  const float zero = around_one(random) * (quant.form == KVForm::kZeroScale ? codes / 2 : 1);
  put(reinterpret_cast<std::byte*>(at.zero), quant.dtype, zero);
}

float widened(const KVSegment& segment, const KVSide& side, const CodedElement& e) {
  const KVQuant& quant = side.quant;
  const auto* codes =
      reinterpret_cast<const uint8_t*>(slot_address(segment, side, e.row, e.slot) +
                                       static_cast<uintptr_t>(e.head * side.head_stride));
  int code = 0;
  for (int64_t i = 0; i < quant.bits; ++i) {
    const int64_t bit = e.channel * quant.bits + i;
    code |= (codes[bit / 8] >> (bit % 8) & 1) << i;
  }
  const Parameters at = parameters_of(segment, quant, e);
  const float scale = get(at.scale, quant.dtype), number = static_cast<float>(code);
  if (quant.form == KVForm::kSymmetric)
    return (number - static_cast<float>(1 << quant.bits) / 2) * scale;
  const float zero = get(at.zero, quant.dtype);
  return quant.form == KVForm::kScaleShift ? scale * number - zero : (number - zero) * scale;
}

}  // namespace larder::test
