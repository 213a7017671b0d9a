// Attention by name, and the checks that kernels leave to their callers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "larder/tensor/kernels.h"

namespace larder {

enum class AttentionKind : uint8_t {
  kFused,  // online softmax in blocks, the kernel set's own; never builds the score matrix
  kEager,  // plain: all scores of a query, one softmax in f32, then times V. The reference that
           // tests use
};

// "fused" or "eager"; throws Error that lists them.
AttentionKind attention_kind(std::string_view name);

// Everything that is wrong with `args`, empty when nothing is: shapes, head counts, a cap below
// zero, ...
std::vector<std::string> attend_problems(const AttendArgs& args);

// Runs attention on `exec`, taking attend_scratch_bytes() from its scratch. Where the view's keys
// are turned (KVView::hadamard), turns q alike, in place. Throws Error listing attend_problems().
void attend(const Exec& exec, AttentionKind kind, const AttendArgs& args);

// What attend() will take from the scratch arena at most, for reserving it ahead of the step. Of
// `args`, the shapes, q_start and the view's lengths count; without those (len null) the sum of
// max_len bounds the longest row. Pointers to data may be null.
size_t attend_scratch_bytes(const Exec& exec, AttentionKind kind, const AttendArgs& args);

// The plain form, see eager.cc. Needs: attend_problems(args) is empty.
void eager_attend(const Exec& exec, const AttendArgs& args);
size_t eager_attend_scratch(const AttendArgs& args, int num_threads);

}  // namespace larder
