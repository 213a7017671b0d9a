// Fused attention over a KVView for any instruction set: finds the keys, cuts the work for threads,
// and folds blocks, spans and sinks in the one order that larder/tensor/kernels.h promises. The
// arithmetic comes from `ops`.
#pragma once

#include "larder/cpu/attend_tile.h"
#include "larder/tensor/kernels.h"

namespace larder::cpu {

void attend_with(const AttendOps& ops, const Exec& exec, const AttendArgs& args);
// Bytes of the arena that attend_with takes: a function of shapes, batch, window, max_len and the
// number of threads; no array that `args` points to is read.
size_t attend_with_scratch(const AttendArgs& args, int num_threads);

}  // namespace larder::cpu
