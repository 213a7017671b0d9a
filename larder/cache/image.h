// Checking a row's image before any of it is taken: what load() of every kind begins with.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "larder/cache/layer.h"

namespace larder {

// The image's tensor of this name, whatever it is; refuses one that is missing.
const TensorView& image_tensor(const RowImageView& row, std::string_view name);
// The same, and refuses one of another dtype or shape, or not
// contiguous, naming what is there and what the layer keeps.
const TensorView& image_tensor(const RowImageView& row, std::string_view name, DType dtype,
                               const Shape& shape);

// Refuses an image that has tensors beside the named ones, a name twice, or a length outside
// 0..max_len (-1 = unbounded).
void check_image(const RowImageView& row, std::initializer_list<std::string_view> names,
                 int64_t max_len);

// The images of rows that are their tokens and nothing more (save_tokens() in rows.h), as assign()
// takes them. Refuses as the above do. Borrows the images.
std::vector<RowTokens> image_tokens(std::span<const RowImageView> rows, const LayerSpec& spec,
                                    DType dtype, int64_t max_len);

// A saved image as load() takes it. Borrows `image`.
RowImageView view_of(const RowImage& image);

}  // namespace larder
