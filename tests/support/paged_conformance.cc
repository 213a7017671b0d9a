#include "tests/support/paged_conformance.h"

#include <algorithm>

#include "larder/tensor/thread_pool.h"

namespace larder::test {
namespace {

class PagedCase {
 public:
  explicit PagedCase(const ConformanceCase& test)
      : test_(test),
        fields_(test.json(), test.folder().string()),
        k_(role("k_pool")),
        v_(role("v_pool")),
        q_(clone(host_, role("q"), DType::kF32, "test")) {
    read_rows();
    read_table();
  }

  AttendArgs args() {
    AttendArgs args;
    args.q = q_;
    args.batch = static_cast<int32_t>(begin_.size());
    args.q_start = q_start_.data();
    args.q_position = position_.data();
    args.kv = view();
    args.scale = static_cast<float>(fields_.number("scale").value());
    args.softcap = static_cast<float>(fields_.number("softcap").value_or(0));
    args.window = fields_.integer("window").value_or(0);
    args.causal = fields_.boolean("causal").value_or(true);
    if (test_.json().at("tensors").contains("sinks")) {
      sinks_ = clone(host_, role("sinks"), DType::kF32, "test");
      args.sinks = sinks_.as<float>();
    }
    return args;
  }

  void check(const Kernels& set, AttentionKind kind, Comparison& result) {
    ThreadPool threads(2);
    Arena arena(host_);
    const Exec exec{set, threads, arena};
    AttendArgs call = args();
    const Tensor out(host_, q_.view().shape, DType::kF32, "test");
    call.out = out;
    arena.reserve(attend_scratch_bytes(exec, kind, call));
    attend(exec, kind, call);
    const Tensor expected = clone(host_, role("out"), DType::kF32, "test");
    for (int64_t i = 0; i < expected.view().count(); ++i)
      result.check(str("out at ", i), out.as<float>()[i], expected.as<float>()[i]);
  }

 private:
  TensorView role(const char* name) const {
    return test_.tensor(test_.json().at("tensors").at(name).get<std::string>());
  }
  std::vector<int32_t> integers(const char* name) const {
    const TensorView x = role(name);
    return {x.as<int32_t>(), x.as<int32_t>() + x.count()};
  }

  // The queries of a sequence are its last tokens.
  void read_rows() {
    q_start_ = integers("cu_seqlens_q");
    const std::vector<int32_t> k_start = integers("cu_seqlens_k");
    for (size_t s = 0; s + 1 < q_start_.size(); ++s) {
      const int32_t k_len = k_start[s + 1] - k_start[s], q_len = q_start_[s + 1] - q_start_[s];
      for (int32_t i = 0; i < q_len; ++i) position_.push_back(k_len - q_len + i);
      len_.push_back(k_len);
    }
    first_position_.assign(len_.size(), 0);
    begin_.assign(len_.size(), 0);
  }

  // Block ids become addresses; -1 beyond the end is never read.
  void read_table() {
    const int64_t block_bytes = k_.stride[0] * static_cast<int64_t>(dtype_size(k_.dtype));
    for (const int32_t id : integers("block_table"))
      table_.push_back(id < 0 ? 0 : id * block_bytes);
  }

  KVView view() const {
    const auto element = static_cast<int64_t>(dtype_size(k_.dtype));
    const auto side = [&](const TensorView& pool) {
      return KVSide{reinterpret_cast<uintptr_t>(pool.bytes()),
                    pool.dtype,
                    pool.stride[2] * element,
                    pool.stride[1] * element,
                    {}};
    };
    KVView view{1, static_cast<int32_t>(k_.shape[2]), static_cast<int32_t>(k_.shape[3]), {}};
    KVSegment& segment = view.segment[0];
    segment.k = side(k_);
    segment.v = side(v_);
    segment.block_table = table_.data();
    segment.table_stride = static_cast<int32_t>(table_.size() / len_.size());
    segment.block_size = static_cast<int32_t>(k_.shape[1]);
    segment.first_position = first_position_.data();
    segment.begin = begin_.data();
    segment.len = len_.data();
    segment.max_len = *std::ranges::max_element(len_);
    return view;
  }

  const ConformanceCase& test_;
  JsonFields fields_;
  HostAllocator host_;
  TensorView k_, v_;
  Tensor q_, sinks_;
  std::vector<int32_t> q_start_, begin_, len_;
  std::vector<int64_t> position_, first_position_, table_;
};

}  // namespace

void check_paged_case(const ConformanceCase& test, const Kernels& set, AttentionKind kind,
                      Comparison& result) {
  PagedCase(test).check(set, kind, result);
}

}  // namespace larder::test
