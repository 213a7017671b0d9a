// Which kernel sets this machine can run, asked of the processor at every call: nothing is cached.
#include <array>
#include <vector>

#include "larder/base/error.h"
#include "larder/cpu/tables.h"

namespace larder {
namespace cpu {
namespace {

// Slowest first. Each set needs what the one before it needs and more.
constexpr std::array kTables = {
    &kReferenceKernels,
};

size_t supported_sets() { return kTables.size(); }

}  // namespace
}  // namespace cpu

std::span<const Kernels* const> available_kernel_sets() {
  return std::span<const Kernels* const>(cpu::kTables).first(cpu::supported_sets());
}

const Kernels& choose_kernels(std::string_view name) {
  const auto sets = available_kernel_sets();
  if (name.empty()) return *sets.back();
  std::vector<std::string_view> names;
  for (const Kernels* set : sets) {
    if (set->name == name) return *set;
    names.push_back(set->name);
  }
  fail("kernel set ", in_quotes(name),
       " is not available on this machine; use one of: ", join(names, ", "));
}

}  // namespace larder
