// Attention over keys and values in codes, in every kernel set. What codes stand for is defined in
// f32 with each operation rounded, so attending to them gives the bytes of attending to f32 tensors
// that hold those numbers, whatever the order, the layout, the company and the threads; but where
// the vector sets multiply the codes themselves, which is as near as it is in a sum of products.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/support/attend_problem.h"
#include "tests/support/sanitized.h"

namespace larder::test {
namespace {

// Codes stand for numbers of up to 2.5 here, twice those of the other tests, which hold 2e-5.
constexpr double kTolerance = 5e-5;
// And where q is rounded to 2^-15 of its row's largest before codes of up to 255 are added up.
constexpr double kRoundedTolerance = 2e-4;

std::string name_of(const KVQuant& quant) {
  return str(quant.bits, " bits, form ", static_cast<int>(quant.form), ", order ",
             static_cast<int>(quant.order), ", ", dtype_name(quant.dtype), ", groups of ",
             quant.token_group, " x ", quant.channel_group, ", ", quant.group_size);
}

// docs/numerics.md, "Attention over codes".
bool is_multiplied(const KVQuant& quant, bool keys, int64_t head_dim) {
  if (quant.bits != 4 && quant.bits != 8) return false;
  if (keys) return quant.order == KVOrder::kAligned && quant.token_group >= 64;
  return (quant.order == KVOrder::kAligned && quant.channel_group == head_dim) ||
         (quant.order == KVOrder::kFlatRows && quant.group_size == head_dim);
}

bool is_multiplied(const KVLayout& layout, int64_t head_dim) {
  return is_multiplied(layout.k_quant, true, head_dim) ||
         is_multiplied(layout.v_quant, false, head_dim);
}

// The fused result over codes is, byte for byte, that over what they stand for; eager attention
// over either agrees with it.
void expect_as_widened(const AttendData& data, const Calls& calls, AttendRun run) {
  AttendRun plain = run;
  plain.widened = true, plain.threads = 1;
  AttendRun eager = plain;
  eager.kind = AttentionKind::kEager;
  const AttendResult want = attend_with_set(reference_kernels(), data, calls, eager);
  eager.widened = false;
  EXPECT_EQ(first_difference(want, attend_with_set(reference_kernels(), data, calls, eager)), "")
      << "eager";
  for (const Kernels* set : available_kernel_sets()) {
    const AttendResult got = attend_with_set(*set, data, calls, run);
    const bool multiplied = is_multiplied(run.layout, data.problem.head_dim);
    if (set == &reference_kernels() || !multiplied) {
      EXPECT_EQ(first_difference(got, attend_with_set(*set, data, calls, plain)), "") << set->name;
    }
    EXPECT_LE(worst_difference(got, want), multiplied ? kRoundedTolerance : kTolerance)
        << set->name;
  }
}

AttendProblem problem_of(int64_t head_dim) {
  return {.rows = {{.q_len = 9, .k_len = 100, .q_first = 91},
                   {.q_len = 1, .k_len = 65, .q_first = 64},
                   {.q_len = 2, .k_len = 2}},
          .heads = 4,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
}

constexpr KVForm kForms[] = {KVForm::kScaleShift, KVForm::kZeroScale, KVForm::kSymmetric};
constexpr DType kParameterTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// Every width, form, type of parameters and order, some with groups that cross tokens and heads.
std::vector<KVQuant> all_quants(int32_t head_dim) {
  const KVQuant orders[] = {
      {.channel_group = head_dim},
      {.channel_group = 16},
      {.channel_group = 5},
      {.token_group = 32},
      {.token_group = 64},
      {.token_group = 4, .channel_group = 8},
      {.order = KVOrder::kFlatRows, .group_size = head_dim},
      {.order = KVOrder::kFlatRows, .group_size = 48},
      {.order = KVOrder::kFlatColumns, .group_size = 16},
      {.order = KVOrder::kFlatChannels, .group_size = 24},
  };
  std::vector<KVQuant> all;
  size_t turn = 0;
  for (const KVQuant& order : orders) {
    for (const int32_t bits : {1, 2, 3, 4, 8}) {
      all.push_back(order);
      all.back().bits = bits;
      all.back().form = kForms[turn % 3];
      all.back().dtype = kParameterTypes[turn / 3 % 3];
      ++turn;
    }
  }
  return all;
}

TEST(AttendCodes, EveryOrderAndWidthIsAttendedToAsWhatItStandsFor) {
  for (const int32_t head_dim : {16, 20, 64}) {
    const AttendData data(problem_of(head_dim));
    uint32_t seed = 0;
    for (const KVQuant& quant : all_quants(head_dim)) {
      if (++seed % (kSanitized ? 7 : 2) != 0) continue;
      SCOPED_TRACE(str("head_dim ", head_dim, ": ", name_of(quant)));
      expect_as_widened(data, all_at_once(data),
                        {.layout = {.seed = seed, .k_quant = quant, .v_quant = quant}});
    }
  }
}

// What larder's own caches have: 8 and 4 bits, K by channel or by token, V by token, exact tokens
// behind.
std::vector<KVQuant> fast_quants(int32_t head_dim) {
  std::vector<KVQuant> all;
  for (const int32_t bits : {8, 4, 2}) {
    for (const KVForm form : kForms) {
      for (const DType dtype : kParameterTypes) {
        all.push_back({.bits = bits, .form = form, .dtype = dtype, .channel_group = head_dim});
        all.push_back({.bits = bits, .form = form, .dtype = dtype, .channel_group = 16});
        all.push_back({.bits = bits, .form = form, .dtype = dtype, .token_group = 64});
        all.push_back({.bits = bits, .form = form, .dtype = dtype, .token_group = 32});
      }
    }
  }
  return all;
}

TEST(AttendCodes, SeamsPagesAndRingsShowInNoBit) {
  uint32_t turn = 0;
  for (const int32_t head_dim : {16, 32, 64, 80, 128}) {
    const std::vector<KVQuant> quants = fast_quants(head_dim);
    const AttendData data(problem_of(head_dim));
    for (const KVQuant& k : quants) {
      if (++turn % (kSanitized ? 19 : 7) != 0) continue;
      const KVQuant& v = quants[size_t{turn} * 5 % quants.size()];
      const KVLayout layout{.k_dtype = DType::kBF16,
                            .v_dtype = turn % 2 == 0 ? DType::kBF16 : DType::kF32,
                            .block_size = static_cast<int32_t>(turn % 3 * 64),
                            .ring = turn % 5 == 0,
                            .segments = static_cast<int32_t>(1 + turn % 3),
                            .heads_inside = turn % 4 == 1,
                            .seed = turn,
                            .k_quant = k,
                            .v_quant = v,
                            .coded_segments = static_cast<int32_t>(1 + turn % 2)};
      SCOPED_TRACE(
          str("head_dim ", head_dim, ", seed ", turn, ": k ", name_of(k), "; v ", name_of(v)));
      expect_as_widened(data, all_at_once(data), {.layout = layout, .threads = 2});
    }
  }
}

TEST(AttendCodes, OneSideAloneMayBeInCodes) {
  const AttendData data(problem_of(64));
  for (const KVQuant& quant : fast_quants(64)) {
    if (quant.dtype != DType::kBF16 || quant.channel_group == 16) continue;
    SCOPED_TRACE(name_of(quant));
    expect_as_widened(data, all_at_once(data), {.layout = {.segments = 2, .k_quant = quant}});
    expect_as_widened(data, all_at_once(data),
                      {.layout = {.v_dtype = DType::kF16, .segments = 2, .v_quant = quant}});
  }
}

// Codes that are multiplied themselves: pieces of a row, and threads, show in no bit. (Codes are
// random anew for every set of rows; what other rows change the tests of the engine say.)
TEST(AttendCodes, PiecesShowInNoBit) {
  for (const int64_t head_dim : {32, 64, 80}) {
    const AttendData data(
        {.rows = {{.q_len = 9, .k_len = 300, .q_first = 291}}, .heads = 4, .head_dim = head_dim});
    for (const int32_t bits : {8, 4}) {
      AttendRun run;
      run.layout.k_quant = {.bits = bits,
                            .form = bits == 8 ? KVForm::kScaleShift : KVForm::kZeroScale,
                            .token_group = 64};
      run.layout.v_quant = {.bits = bits,
                            .form = KVForm::kSymmetric,
                            .channel_group = static_cast<int32_t>(head_dim)};
      run.layout.segments = 2, run.layout.block_size = 64;
      AttendRun threaded = run;
      threaded.threads = 3;
      for (const Kernels* set : available_kernel_sets()) {
        SCOPED_TRACE(str(set->name, ", ", bits, " bits, head_dim ", head_dim));
        const AttendResult want = attend_with_set(*set, data, all_at_once(data), run);
        for (const int64_t queries : {1, 2, 5})
          EXPECT_EQ(first_difference(want, attend_with_set(*set, data, chunks(data, queries), run)),
                    "");
        EXPECT_EQ(first_difference(want, attend_with_set(*set, data, all_at_once(data), threaded)),
                  "");
      }
    }
  }
}

// Decode reads V where it lies, prefill makes a tile of it: the same bytes as over what the codes
// stand for, where prefill and decode are the same (attend_bits_test.cc).
TEST(AttendCodes, DecodeReadsWhatPrefillReads) {
  uint32_t turn = 0;
  for (const auto& [window, chunk] : {std::pair{0, 0}, {90, 0}, {0, 100}}) {
    const AttendData data({.rows = {{.q_len = 8, .k_len = 200, .q_first = 192}},
                           .heads = 3,
                           .kv_heads = 1,
                           .head_dim = 64,
                           .window = window,
                           .chunk = chunk});
    for (const KVQuant& quant : fast_quants(64)) {
      if (++turn % 11 != 0) continue;
      SCOPED_TRACE(name_of(quant));
      const KVLayout layout{
          .block_size = 64, .segments = 2, .seed = turn, .k_quant = quant, .v_quant = quant};
      for (const int64_t queries : {1, 2, 3})
        expect_as_widened(data, chunks(data, queries), {.layout = layout, .growing = true});
    }
  }
}

}  // namespace
}  // namespace larder::test
