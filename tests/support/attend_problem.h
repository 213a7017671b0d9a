// Attention problems for tests: random rows of any lengths, an oracle in double precision, and a
// runner that feeds them to a kernel set in any pieces, company, layout and number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "larder/attention/attention.h"
#include "tests/support/kv_fixture.h"

namespace larder::test {

enum class BiasKind { kNone, kDense, kByHeadAndKey };

struct AttendRow {
  int64_t q_len = 1, k_len = 1;
  int64_t q_first = 0;  // position of the first query; may be negative
  int64_t k_first = 0;  // position of the first key
};

// The recipe; everything random follows from `seed`.
struct AttendProblem {
  std::vector<AttendRow> rows{};
  int64_t heads = 6, kv_heads = 2, head_dim = 16;
  float scale = 0.25f, softcap = 0;
  int64_t window = 0, chunk = 0;
  bool causal = true, sinks = false;
  double hidden_keys = 0;  // share of keys that key_mask hides
  BiasKind bias = BiasKind::kNone;
  uint64_t seed = 1;
};

// The numbers. Public: tests poison and change them.
struct AttendData {
  explicit AttendData(const AttendProblem& recipe);

  AttendProblem problem;
  int64_t max_q = 0, max_k = 0;          // over rows; max_k counts positions from 0
  std::vector<std::vector<float>> q;     // by row: [q_len, heads, head_dim]
  std::vector<std::vector<float>> k, v;  // by row: [kv_heads, k_len, head_dim]
  std::vector<float> sinks;              // [heads]
  std::vector<float> bias;               // [rows, heads, max_q, max_k], or [heads, max_k]
  std::vector<uint8_t> key_mask;         // [rows, max_k]

  bool sees(size_t row, int64_t query, int64_t key_position) const;
  float bias_at(size_t row, int64_t head, int64_t query, int64_t key_position) const;
};

// By row: out [q_len, heads, head_dim], lse [q_len, heads].
struct AttendResult {
  std::vector<std::vector<float>> out, lse;
};

// Softmax over the whole score row, all in double. K and V are first rounded to the dtypes.
AttendResult attend_in_double(const AttendData& data, DType k_dtype = DType::kF32,
                              DType v_dtype = DType::kF32);

// Queries [begin, end) of a row; a call of the kernel takes one piece of each of several rows.
struct Piece {
  size_t row = 0;
  int64_t begin = 0, end = 0;
};
using Calls = std::vector<std::vector<Piece>>;

Calls all_at_once(const AttendData& data);              // every row whole, one call
Calls chunks(const AttendData& data, int64_t queries);  // one row at a time, so many queries a call
Calls rows_alone(const AttendData& data);

struct AttendRun {
  KVLayout layout{};
  int threads = 1;
  // Show only the keys up to the last query of a piece, as a cache that grows would.
  bool growing = false;
  AttentionKind kind = AttentionKind::kFused;
  DType compute = DType::kF32;  // what the model is said to compute in
  // Attend to what the layout's codes stand for, in a plain f32 layout, instead of to the codes.
  bool widened = false;
};

// Runs the calls; queries in no piece keep NaN. Also checks that the arena was sized exactly.
AttendResult attend_with_set(const Kernels& set, const AttendData& data, const Calls& calls,
                             const AttendRun& run = {});

// The largest |got - want| over out and lse; infinite where one is not finite and the other
// differs.
double worst_difference(const AttendResult& got, const AttendResult& want);
bool same_bits(const AttendResult& a, const AttendResult& b);
// Where the first difference is, for a failure's text.
std::string first_difference(const AttendResult& a, const AttendResult& b);

}  // namespace larder::test
