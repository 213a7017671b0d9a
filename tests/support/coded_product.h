// Matrices and rows in codes for tests, with what they stand for.
#pragma once

#include <vector>

#include "larder/tensor/encode_matrix.h"
#include "larder/tensor/kernels.h"
#include "tests/support/kernel_exec.h"

namespace larder::test {

// `values` [rows, k] in codes.
class EncodedMatrix {
 public:
  EncodedMatrix(std::vector<float> values, int64_t rows, int64_t k, WeightFormat format,
                int threads = 1)
      : values_(std::move(values)),
        codes_(host_, static_cast<size_t>(coded_bytes(format, rows, k)), "test"),
        view_{codes_.data(), format, rows, k} {
    ThreadPool pool(threads);
    encode_matrix(TensorView::contiguous(values_.data(), DType::kF32, {rows, k}), format,
                  codes_.data(), pool);
  }
  const CodedMatrix& view() const { return view_; }
  const Buffer& bytes() const { return codes_; }
  const std::vector<float>& values() const { return values_; }
  // What the codes stand for, [rows, k].
  std::vector<float> widened() const {
    std::vector<float> out(values_.size());
    for (int64_t r = 0; r < view_.rows; ++r) widen_row(view_, r, out.data() + r * view_.k);
    return out;
  }

 private:
  HostAllocator host_;
  std::vector<float> values_;
  Buffer codes_;
  CodedMatrix view_;
};

// Rows of activations in codes, made by a set.
class EncodedRows {
 public:
  EncodedRows(const Kernels& set, const float* x, int64_t stride, int64_t rows, int64_t k,
              int threads = 1)
      : bytes_(static_cast<size_t>(coded_rows_bytes(rows, k))),
        view_{reinterpret_cast<CodedRowGroup*>(bytes_.data()), rows, k} {
    KernelExec machine(set, threads);
    TensorView view = TensorView::contiguous(const_cast<float*>(x), DType::kF32, {rows, k});
    view.stride[0] = stride;
    set.code_rows(machine.exec(), view_, view);
  }
  const CodedRows& view() const { return view_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  CodedRows view_;
};

}  // namespace larder::test
