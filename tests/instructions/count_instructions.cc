// What scripts/check-instructions counts under callgrind: one piece of work in measured(), of the
// avx2 set (valgrind runs no wider one) and on one thread, so that two runs of one binary execute
// the same instructions.
//   count_instructions NAME   or no name: lists them
#include <cstdlib>
#include <iostream>
#include <map>

#include "larder/generate/generation.h"
#include "tests/support/attend_problem.h"
#include "tests/support/logits_run.h"
#include "tests/support/machine.h"
#include "tests/support/random_floats.h"
#include "tests/support/source_dir.h"

namespace larder::test {

// Not in an unnamed namespace: callgrind is told its name.
__attribute__((noinline)) void measured(const std::function<void()>& work) { work(); }

namespace {

const Kernels& set() { return choose_kernels("avx2"); }

// One row of activations with a matrix of SmolLM2's shape in bf16.
void matmul() {
  constexpr int64_t kRows = 1536, kDepth = 576;
  Machine machine(1, set());
  std::vector<float> x = random_floats(kDepth, 1), out(kRows);
  const std::vector<float> exact = random_floats(kRows * kDepth, 2);
  std::vector<uint16_t> w(exact.size());
  set().store(w.data(), DType::kBF16, exact.data(), kRows * kDepth);
  const MatmulArgs args{TensorView::contiguous(out.data(), DType::kF32, Shape{1, kRows}),
                        TensorView::contiguous(x.data(), DType::kF32, Shape{1, kDepth}),
                        TensorView::contiguous(w.data(), DType::kBF16, Shape{kRows, kDepth})};
  measured([&] { set().matmul(machine.exec, {&args, 1}); });
}

void attend() {
  AttendProblem problem;
  problem.rows = {{64, 512, 448}};
  problem.heads = 9;
  problem.kv_heads = 3;
  problem.head_dim = 64;
  const AttendData data(problem);
  measured([&] { attend_with_set(set(), data, all_at_once(data)); });
}

void rms_norm() {
  constexpr int64_t kRows = 64, kWidth = 576;
  Machine machine(1, set());
  std::vector<float> x = random_floats(kRows * kWidth, 1), out(x.size());
  const std::vector<float> weight = random_floats(kWidth, 2);
  const auto view = [](std::vector<float>& data) {
    return TensorView::contiguous(data.data(), DType::kF32, Shape{kRows, kWidth});
  };
  measured([&] { set().rms_norm(machine.exec, view(out), view(x), weight.data(), 0, 1e-5f); });
}

// Eight tokens of toy-llama, one by one, after a prompt of 64.
void decode_steps() {
  HostAllocator host;
  SessionOptions options;
  options.threads = 1;
  options.kernels = "avx2";
  Session session(Model::load(toy_folder("toy-llama"), std::nullopt, host), options, host);
  std::vector<Request> requests{{some_ids(64, 2048, 1), 10, {}, {}, {}}};
  Generation generation(session, requests);
  generation.step();
  measured([&] {
    for (int i = 0; i < 8; ++i) generation.step();
  });
}

}  // namespace
}  // namespace larder::test

int main(int argc, char** argv) {
  using namespace larder::test;
  const std::map<std::string, void (*)()> work{{"attend", attend},
                                               {"decode_steps", decode_steps},
                                               {"matmul", matmul},
                                               {"rms_norm", rms_norm}};
  if (argc == 1) {
    for (const auto& [name, run] : work) std::cout << name << '\n';
    return 0;
  }
  const auto found = work.find(argv[1]);
  if (argc != 2 || found == work.end()) {
    std::cerr << "count_instructions: give one of the names that it lists without an argument\n";
    return 2;
  }
  found->second();
  return 0;
}
