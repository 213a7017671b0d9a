#include "tests/support/attend_problem.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/random_floats.h"

namespace larder::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

float rounded(float value, DType dtype) {
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(value));
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(value));
  return value;
}

size_t at(int64_t index) { return static_cast<size_t>(index); }

double score_in_double(const AttendData& data, size_t row, int64_t query, int64_t head, int64_t key,
                       DType dtype) {
  const AttendProblem& p = data.problem;
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const float* q = &data.q[row][at((query * p.heads + head) * p.head_dim)];
  const float* k = &data.k[row][at((kv_head * p.rows[row].k_len + key) * p.head_dim)];
  double s = 0;
  for (int64_t d = 0; d < p.head_dim; ++d)
    s += static_cast<double>(q[d]) * static_cast<double>(rounded(k[d], dtype));
  s *= static_cast<double>(p.scale);
  if (p.softcap > 0)
    s = static_cast<double>(p.softcap) * std::tanh(s / static_cast<double>(p.softcap));
  return s + static_cast<double>(data.bias_at(row, head, query, p.rows[row].k_first + key));
}

// One query and head: out [head_dim] and the log of the denominator.
void attend_one(const AttendData& data, size_t row, int64_t query, int64_t head, DType k_dtype,
                DType v_dtype, float* out, float* lse) {
  const AttendProblem& p = data.problem;
  const int64_t k_len = p.rows[row].k_len, kv_head = head / (p.heads / p.kv_heads);
  std::vector<double> s(at(k_len), -kInfinity), o(at(p.head_dim), 0);
  double largest = p.sinks ? static_cast<double>(data.sinks[at(head)]) : -kInfinity;
  for (int64_t key = 0; key < k_len; ++key) {
    if (!data.sees(row, query, p.rows[row].k_first + key)) continue;
    s[at(key)] = score_in_double(data, row, query, head, key, k_dtype);
    largest = std::max(largest, s[at(key)]);
  }
  double sum = p.sinks ? std::exp(static_cast<double>(data.sinks[at(head)]) - largest) : 0;
  for (int64_t key = 0; key < k_len; ++key) {
    if (s[at(key)] == -kInfinity) continue;
    const double weight = std::exp(s[at(key)] - largest);
    sum += weight;
    const float* v = &data.v[row][at((kv_head * k_len + key) * p.head_dim)];
    for (int64_t d = 0; d < p.head_dim; ++d)
      o[at(d)] += weight * static_cast<double>(rounded(v[d], v_dtype));
  }
  for (int64_t d = 0; d < p.head_dim; ++d)
    out[d] = sum == 0 ? 0.0f : static_cast<float>(o[at(d)] / sum);
  *lse = static_cast<float>(sum == 0 ? -kInfinity : largest + std::log(sum));
}

AttendResult empty_result(const AttendData& data) {
  AttendResult result;
  const AttendProblem& p = data.problem;
  for (const AttendRow& row : p.rows) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    result.out.emplace_back(at(row.q_len * p.heads * p.head_dim), nan);
    result.lse.emplace_back(at(row.q_len * p.heads), nan);
  }
  return result;
}

// What one call needs, gathered from the rows of its pieces.
struct Gathered {
  Gathered(const AttendData& data, const std::vector<Piece>& pieces, const AttendRun& run);
  AttendArgs args(const AttendData& data);

  std::vector<float> q, out, lse, k, v, bias;
  std::vector<uint8_t> key_mask;
  std::vector<int32_t> q_start{0};
  std::vector<int64_t> position;
  KVContent content;
  Shape kv_shape;
  int64_t max_q = 0;
  std::vector<KVFixture> fixture;  // one
};

Gathered::Gathered(const AttendData& data, const std::vector<Piece>& pieces, const AttendRun& run) {
  const AttendProblem& p = data.problem;
  int64_t longest = 0;
  for (const Piece& piece : pieces) {
    longest = std::max(longest, p.rows[piece.row].k_len);
    max_q = std::max(max_q, piece.end - piece.begin);
  }
  const auto batch = static_cast<int64_t>(pieces.size());
  kv_shape = Shape({batch, p.kv_heads, longest, p.head_dim});
  k.resize(at(kv_shape.count())), v.resize(k.size());
  for (size_t b = 0; b < pieces.size(); ++b) {
    const Piece& piece = pieces[b];
    const AttendRow& row = p.rows[piece.row];
    const int64_t width = p.heads * p.head_dim;
    q.insert(q.end(), data.q[piece.row].begin() + piece.begin * width,
             data.q[piece.row].begin() + piece.end * width);
    for (int64_t i = piece.begin; i < piece.end; ++i) position.push_back(row.q_first + i);
    q_start.push_back(static_cast<int32_t>(position.size()));
    for (int64_t head = 0; head < p.kv_heads; ++head) {
      const int64_t from = head * row.k_len * p.head_dim, count = row.k_len * p.head_dim;
      const int64_t to = (static_cast<int64_t>(b) * p.kv_heads + head) * longest * p.head_dim;
      std::copy_n(data.k[piece.row].begin() + from, count, k.begin() + to);
      std::copy_n(data.v[piece.row].begin() + from, count, v.begin() + to);
    }
    const int64_t past = row.q_first + piece.end - row.k_first;
    content.len.push_back(run.growing ? std::clamp<int64_t>(past, 0, row.k_len) : row.k_len);
    content.first.push_back(row.k_first);
    if (!data.key_mask.empty())
      key_mask.insert(key_mask.end(),
                      data.key_mask.begin() + static_cast<int64_t>(piece.row) * data.max_k,
                      data.key_mask.begin() + (static_cast<int64_t>(piece.row) + 1) * data.max_k);
    if (p.bias != BiasKind::kDense) continue;
    for (int64_t head = 0; head < p.heads; ++head)
      for (int64_t i = 0; i < max_q; ++i)
        for (int64_t key = 0; key < data.max_k; ++key)
          bias.push_back(piece.begin + i < row.q_len
                             ? data.bias_at(piece.row, head, piece.begin + i, key)
                             : std::numeric_limits<float>::quiet_NaN());
  }
  out.assign(q.size(), std::numeric_limits<float>::quiet_NaN());
  lse.assign(position.size() * at(p.heads), std::numeric_limits<float>::quiet_NaN());
  const auto of = [&](std::vector<float>& values) {
    return TensorView::contiguous(values.data(), DType::kF32, kv_shape);
  };
  fixture.emplace_back(of(k), of(v), run.layout, content);
  if (!run.widened) return;
  k = fixture.front().shown_k(), v = fixture.front().shown_v();
  fixture.clear();
  fixture.emplace_back(of(k), of(v), KVLayout{}, content);
}

AttendArgs Gathered::args(const AttendData& data) {
  const AttendProblem& p = data.problem;
  const Shape shape({static_cast<int64_t>(position.size()), p.heads, p.head_dim});
  AttendArgs args;
  args.out = TensorView::contiguous(out.data(), DType::kF32, shape);
  args.q = TensorView::contiguous(q.data(), DType::kF32, shape);
  args.batch = static_cast<int32_t>(q_start.size()) - 1;
  args.q_start = q_start.data();
  args.q_position = position.data();
  args.kv = fixture.front().view();
  args.scale = p.scale, args.softcap = p.softcap, args.window = p.window, args.chunk = p.chunk;
  args.causal = p.causal;
  if (p.sinks) args.sinks = data.sinks.data();
  if (p.bias == BiasKind::kDense) {
    args.bias = bias.data();
    args.bias_query = data.max_k, args.bias_head = max_q * data.max_k;
    args.bias_row = p.heads * args.bias_head;
  } else if (p.bias == BiasKind::kByHeadAndKey) {
    args.bias = data.bias.data();
    args.bias_head = data.max_k;
  }
  if (!key_mask.empty()) args.key_mask = key_mask.data(), args.key_mask_row = data.max_k;
  args.lse = lse.data();
  return args;
}

void scatter(const Gathered& call, const AttendData& data, const std::vector<Piece>& pieces,
             AttendResult& result) {
  const int64_t heads = data.problem.heads, width = heads * data.problem.head_dim;
  for (size_t b = 0; b < pieces.size(); ++b) {
    const Piece& piece = pieces[b];
    const int64_t from = call.q_start[b], count = piece.end - piece.begin;
    std::copy_n(call.out.begin() + from * width, count * width,
                result.out[piece.row].begin() + piece.begin * width);
    std::copy_n(call.lse.begin() + from * heads, count * heads,
                result.lse[piece.row].begin() + piece.begin * heads);
  }
}

}  // namespace

AttendData::AttendData(const AttendProblem& recipe) : problem(recipe) {
  uint64_t seed = recipe.seed * 1000;
  const AttendProblem& p = problem;
  for (const AttendRow& row : p.rows) {
    max_q = std::max(max_q, row.q_len);
    max_k = std::max(max_k, row.k_first + row.k_len);
    q.push_back(random_floats(row.q_len * p.heads * p.head_dim, ++seed));
    k.push_back(random_floats(p.kv_heads * row.k_len * p.head_dim, ++seed));
    v.push_back(random_floats(p.kv_heads * row.k_len * p.head_dim, ++seed));
  }
  if (p.sinks) sinks = random_floats(p.heads, ++seed);
  const auto num_rows = static_cast<int64_t>(p.rows.size());
  if (p.bias == BiasKind::kDense) bias = random_floats(num_rows * p.heads * max_q * max_k, ++seed);
  if (p.bias == BiasKind::kByHeadAndKey) bias = random_floats(p.heads * max_k, ++seed);
  if (p.hidden_keys == 0) return;
  std::mt19937 random(static_cast<uint32_t>(++seed));
  for (int64_t i = 0; i < num_rows * max_k; ++i)
    key_mask.push_back(std::uniform_real_distribution<>(0, 1)(random) >= p.hidden_keys);
}

bool AttendData::sees(size_t row, int64_t query, int64_t key) const {
  const int64_t position = problem.rows[row].q_first + query;
  if (problem.causal && key > position) return false;
  if (problem.window > 0 && position - key >= problem.window) return false;
  if (problem.chunk > 0) {
    const auto chunk_of = [&](int64_t at) {
      return std::floor(static_cast<double>(at) / static_cast<double>(problem.chunk));
    };
    if (chunk_of(key) < chunk_of(position)) return false;
  }
  return key_mask.empty() || key_mask[row * at(max_k) + at(key)] != 0;
}

float AttendData::bias_at(size_t row, int64_t head, int64_t query, int64_t key) const {
  if (problem.bias == BiasKind::kNone) return 0;
  if (problem.bias == BiasKind::kByHeadAndKey) return bias[at(head * max_k + key)];
  const int64_t index =
      ((static_cast<int64_t>(row) * problem.heads + head) * max_q + query) * max_k + key;
  return bias[at(index)];
}

AttendResult attend_in_double(const AttendData& data, DType k_dtype, DType v_dtype) {
  AttendResult result = empty_result(data);
  const AttendProblem& p = data.problem;
  for (size_t row = 0; row < p.rows.size(); ++row)
    for (int64_t query = 0; query < p.rows[row].q_len; ++query)
      for (int64_t head = 0; head < p.heads; ++head)
        attend_one(data, row, query, head, k_dtype, v_dtype,
                   &result.out[row][at((query * p.heads + head) * p.head_dim)],
                   &result.lse[row][at(query * p.heads + head)]);
  return result;
}

Calls all_at_once(const AttendData& data) {
  std::vector<Piece> pieces;
  for (size_t row = 0; row < data.problem.rows.size(); ++row)
    pieces.push_back({row, 0, data.problem.rows[row].q_len});
  return {pieces};
}

Calls chunks(const AttendData& data, int64_t queries) {
  Calls calls;
  for (size_t row = 0; row < data.problem.rows.size(); ++row)
    for (int64_t begin = 0; begin < data.problem.rows[row].q_len; begin += queries)
      calls.push_back({{row, begin, std::min(begin + queries, data.problem.rows[row].q_len)}});
  return calls;
}

Calls rows_alone(const AttendData& data) { return chunks(data, data.max_q); }

AttendResult attend_with_set(const Kernels& set, const AttendData& data, const Calls& calls,
                             const AttendRun& run) {
  AttendResult result = empty_result(data);
  ThreadPool threads(run.threads);
  HostAllocator host;
  for (const std::vector<Piece>& pieces : calls) {
    Gathered call(data, pieces, run);
    AttendArgs args = call.args(data);
    args.compute = run.compute;
    Arena arena(host);
    const Exec exec{set, threads, arena};
    arena.reserve(attend_scratch_bytes(exec, run.kind, args));
    attend(exec, run.kind, args);
    LARDER_ASSERT(arena.used() == 0 && arena.peak() == arena.capacity());
    scatter(call, data, pieces, result);
  }
  return result;
}

double worst_difference(const AttendResult& got, const AttendResult& want) {
  double worst = 0;
  const auto compare = [&worst](const std::vector<std::vector<float>>& a,
                                const std::vector<std::vector<float>>& b) {
    for (size_t row = 0; row < a.size(); ++row) {
      for (size_t i = 0; i < a[row].size(); ++i) {
        const double x = static_cast<double>(a[row][i]), y = static_cast<double>(b[row][i]);
        if (x == y) continue;
        worst = std::max(worst, std::isfinite(x) && std::isfinite(y) ? std::abs(x - y) : kInfinity);
      }
    }
  };
  compare(got.out, want.out);
  compare(got.lse, want.lse);
  return worst;
}

std::string first_difference(const AttendResult& a, const AttendResult& b) {
  for (const auto& [name, x, y] :
       {std::tuple{"out", &a.out, &b.out}, std::tuple{"lse", &a.lse, &b.lse}}) {
    for (size_t row = 0; row < x->size(); ++row)
      for (size_t i = 0; i < (*x)[row].size(); ++i)
        if (std::bit_cast<uint32_t>((*x)[row][i]) != std::bit_cast<uint32_t>((*y)[row][i]))
          return str(name, " of row ", row, " at ", i, ": ", (*x)[row][i], " and ", (*y)[row][i]);
  }
  return "";
}

bool same_bits(const AttendResult& a, const AttendResult& b) {
  return first_difference(a, b).empty();
}

}  // namespace larder::test
