#include "larder/cpu/reference/reference.h"
#include "larder/cpu/tables.h"

namespace larder {
namespace cpu {

constinit const Kernels kReferenceKernels = {
    .name = "reference",
    .matmul_input = reference::matmul_input,
    .matmul_room = reference::matmul_room,
    .matmul = reference::matmul,
    .code_rows = reference::code_rows,
    .matmul_codes = reference::matmul_codes,
    .round_rows = reference::round_rows,
    .rms_norm = reference::rms_norm,
    .rope = reference::rope,
    .gate_mul = reference::gate_mul,
    .softcap = reference::softcap,
    .store = reference::store,
    .load = reference::load,
    .attend = reference::attend,
    .attend_scratch = reference::attend_scratch,
};

}  // namespace cpu

const Kernels& reference_kernels() { return cpu::kReferenceKernels; }

}  // namespace larder
