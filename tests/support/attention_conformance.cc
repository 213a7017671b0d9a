#include "tests/support/attention_conformance.h"

#include <cmath>
#include <limits>

#include "larder/base/file.h"
#include "larder/base/json.h"
#include "larder/tensor/safetensors.h"
#include "tests/support/kv_fixture.h"

namespace larder::test {
namespace {

constexpr size_t kMaxFindings = 5;

// [B, H, S, D] as [B * S, H, D] in f32, or back.
Tensor tokens_first(Allocator& host, const TensorView& x) {
  return clone(host, x.transpose(1, 2), DType::kF32, "test");
}

class AttentionCase {
 public:
  explicit AttentionCase(const std::filesystem::path& folder);
  std::vector<std::string> check(const Kernels& set, AttentionKind kind);

 private:
  // The tensor in a role, or null where the case has none.
  const StoredTensor* find(std::string_view role) const;
  TensorView view(std::string_view role) const;
  std::vector<float> floats(std::string_view role);
  AttendArgs args();
  void compare(const TensorView& got, std::string_view role, std::vector<std::string>& found) const;

  HostAllocator host_;
  Json json_;
  JsonFields fields_;
  SafetensorsFile file_;
  int64_t batch_, heads_, q_len_, head_dim_;
  Tensor q_, out_, lse_;
  KVFixture kv_;
  std::vector<float> bias_, sinks_;
  std::vector<uint8_t> key_mask_;
  std::vector<int32_t> q_start_;
  std::vector<int64_t> position_;
};

Json read_case(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "case.json";
  return parse_json(read_file(path), path.string());
}

const StoredTensor* find_role(const JsonFields& fields, const SafetensorsFile& file,
                              std::string_view role) {
  const Json* names = fields.object("tensors");
  if (names == nullptr || !names->contains(role)) return nullptr;
  return file.find(names->at(std::string(role)).get<std::string>());
}

TensorView view_of(const JsonFields& fields, const SafetensorsFile& file, std::string_view role) {
  const StoredTensor* tensor = find_role(fields, file, role);
  if (tensor == nullptr) fail(file.path().string(), " has no tensor in the role ", role);
  return tensor->view();
}

KVLayout layout_of(const TensorView& k, const TensorView& v) {
  return {.k_dtype = k.dtype, .v_dtype = v.dtype, .block_size = 16, .segments = 2};
}

AttentionCase::AttentionCase(const std::filesystem::path& folder)
    : json_(read_case(folder)),
      fields_(json_, (folder / "case.json").string()),
      file_(folder / "tensors.safetensors"),
      batch_(view("q").shape[0]),
      heads_(view("q").shape[1]),
      q_len_(view("q").shape[2]),
      head_dim_(view("q").shape[3]),
      q_(tokens_first(host_, view("q"))),
      out_(host_, Shape({batch_ * q_len_, heads_, head_dim_}), DType::kF32, "test"),
      lse_(host_, Shape({batch_ * q_len_, heads_}), DType::kF32, "test"),
      kv_(view("k"), view("v"), layout_of(view("k"), view("v"))),
      bias_(floats("bias")),
      sinks_(floats("sinks")) {
  if (const StoredTensor* mask = find("key_mask"))
    for (size_t i = 0; i < mask->bytes; ++i)
      key_mask_.push_back(static_cast<uint8_t>(mask->data[i]));
  const int64_t offset = fields_.integer("query_offset").value_or(0);
  for (int64_t b = 0; b <= batch_; ++b) q_start_.push_back(static_cast<int32_t>(b * q_len_));
  for (int64_t i = 0; i < batch_ * q_len_; ++i) position_.push_back(offset + i % q_len_);
}

const StoredTensor* AttentionCase::find(std::string_view role) const {
  return find_role(fields_, file_, role);
}

TensorView AttentionCase::view(std::string_view role) const {
  return view_of(fields_, file_, role);
}

std::vector<float> AttentionCase::floats(std::string_view role) {
  if (find(role) == nullptr) return {};
  const Tensor values = clone(host_, view(role), DType::kF32, "test");
  return {values.as<float>(), values.as<float>() + values.view().count()};
}

AttendArgs AttentionCase::args() {
  AttendArgs args;
  args.out = out_;
  args.q = q_.view().reshape({batch_ * q_len_, heads_, head_dim_});
  args.batch = static_cast<int32_t>(batch_);
  args.q_start = q_start_.data();
  args.q_position = position_.data();
  args.kv = kv_.view();
  args.scale = static_cast<float>(fields_.number("scale").value());
  args.softcap = static_cast<float>(fields_.number("softcap").value_or(0));
  args.window = fields_.integer("window").value_or(0);
  args.causal = fields_.boolean("causal").value();
  args.sinks = sinks_.empty() ? nullptr : sinks_.data();
  args.lse = lse_.as<float>();
  const int64_t k_len = view("k").shape[2];
  if (!key_mask_.empty()) args.key_mask = key_mask_.data(), args.key_mask_row = k_len;
  if (!bias_.empty()) {
    args.bias = bias_.data();
    args.bias_query = k_len, args.bias_head = q_len_ * k_len;
    args.bias_row = view("bias").shape[0] == 1 ? 0 : heads_ * args.bias_head;
  }
  return args;
}

void AttentionCase::compare(const TensorView& got, std::string_view role,
                            std::vector<std::string>& found) const {
  const auto atol = static_cast<float>(fields_.number("atol").value());
  const auto rtol = static_cast<float>(fields_.number("rtol").value());
  std::vector<float> want(static_cast<size_t>(got.count()));
  const TensorView expected = view(role);
  // out [B, H, S, D] and lse [B, H, S] against tokens first.
  copy_into(TensorView::contiguous(want.data(), DType::kF32, expected.transpose(1, 2).shape),
            expected.transpose(1, 2));
  const float* values = got.as<float>();
  for (size_t i = 0; i < want.size() && found.size() < kMaxFindings; ++i) {
    if (values[i] == want[i]) continue;
    if (std::abs(values[i] - want[i]) <= atol + rtol * std::abs(want[i])) continue;
    found.push_back(str(role, " at ", i, " (tokens first): ", values[i], ", expected ", want[i]));
  }
}

std::vector<std::string> AttentionCase::check(const Kernels& set, AttentionKind kind) {
  ThreadPool threads(2);
  Arena arena(host_);
  const AttendArgs call = args();
  const Exec exec{set, threads, arena};
  arena.reserve(attend_scratch_bytes(exec, kind, call));
  attend(exec, kind, call);
  std::vector<std::string> found;
  compare(out_, "out", found);
  if (find("lse") != nullptr) compare(lse_, "lse", found);
  return found;
}

}  // namespace

std::vector<std::string> check_attention_case(const std::filesystem::path& case_folder,
                                              const Kernels& set, AttentionKind kind) {
  return AttentionCase(case_folder).check(set, kind);
}

}  // namespace larder::test
