#include "larder/cache/image.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {

const TensorView& image_tensor(const RowImageView& row, std::string_view name) {
  const auto found = std::ranges::find(row.tensors, name, &RowImageView::Named::name);
  if (found == row.tensors.end()) fail("the saved row has no tensor ", in_quotes(name));
  return found->tensor;
}

const TensorView& image_tensor(const RowImageView& row, std::string_view name, DType dtype,
                               const Shape& shape) {
  const TensorView& tensor = image_tensor(row, name);
  if (tensor.dtype != dtype || !(tensor.shape == shape) || !tensor.is_contiguous()) {
    fail("the saved tensor ", in_quotes(name), " is ", dtype_name(tensor.dtype), " ",
         tensor.shape.text(), ", but this cache keeps ", dtype_name(dtype), " ", shape.text());
  }
  return tensor;
}

void check_image(const RowImageView& row, std::initializer_list<std::string_view> names,
                 int64_t max_len) {
  if (row.seq_len < 0 || row.seq_len > INT32_MAX) fail("a saved row of ", row.seq_len, " tokens");
  if (max_len >= 0 && row.seq_len > max_len) {
    fail_as(ErrorKind::kNoRoom, "the saved row has ", row.seq_len, " tokens, but max_cache_len is ",
            max_len);
  }
  for (const RowImageView::Named& named : row.tensors) {
    if (std::ranges::find(names, named.name) == names.end())
      fail("the saved row has a tensor ", in_quotes(named.name), " that this cache does not keep");
    if (std::ranges::count(row.tensors, named.name, &RowImageView::Named::name) > 1)
      fail("the saved row has the tensor ", in_quotes(named.name), " twice");
  }
}

std::vector<RowTokens> image_tokens(std::span<const RowImageView> rows, const LayerSpec& spec,
                                    DType dtype, int64_t max_len) {
  std::vector<RowTokens> tokens;
  for (const RowImageView& row : rows) {
    check_image(row, {"k", "v"}, max_len);
    const bool shaped = !row.tensors.empty() && row.tensors[0].tensor.shape.rank() == 3;
    const int64_t kept = shaped ? row.tensors[0].tensor.shape[1] : 0;
    const Shape shape{spec.num_kv_heads, kept, spec.head_dim};
    const TensorView& k = image_tensor(row, "k", dtype, shape);
    const TensorView& v = image_tensor(row, "v", dtype, shape);
    if (kept > row.seq_len) fail("a saved row of ", row.seq_len, " tokens keeps ", kept);
    tokens.push_back({row.seq_len - kept, k, v});
  }
  return tokens;
}

RowImageView view_of(const RowImage& image) {
  RowImageView view{image.seq_len, {}};
  for (const SavedTensor& saved : image.tensors) view.tensors.push_back({saved.name, saved.tensor});
  return view;
}

}  // namespace larder
