// What LarderQuantizedLayer does to whole rows: reordering, cropping, files, conversion.
#include <algorithm>
#include <cstring>

#include "larder/base/error.h"
#include "larder/cache/image.h"
#include "larder/cache/larder_quantized_layer.h"
#include "larder/cache/rows.h"
#include "larder/cache/stored_float.h"
#include "larder/cache/window.h"
#include "larder/tensor/hadamard.h"

namespace larder {
namespace {

constexpr int64_t kBlock = kCodedBlock;

}  // namespace

std::unique_ptr<Change> LarderQuantizedLayer::select_rows(std::span<const int32_t> source) {
  return move_rows(
      rows_, source, [](Row&) noexcept {},
      [this]() noexcept {
        for (Row& row : rows_) row.cut.reset();
      });
}

std::unique_ptr<Change> LarderQuantizedLayer::crop(std::span<const int64_t> len) {
  struct Cut {
    int64_t len;
    BlockPtr thawed;
  };
  std::vector<Cut> cuts;
  for (size_t r = 0; r < std::min(len.size(), rows_.size()); ++r) {
    Row& row = rows_[r];
    Cut cut{std::clamp<int64_t>(len[r], 0, row.len), {}};
    check_window_crop(spec_.window, {static_cast<int64_t>(r), row.first, row.len}, cut.len);
    if (cut.len < kBlock * row.coded_end() && cut.len % kBlock != 0) {
      cut.thawed = make_exact();
      thaw(*row.coded[static_cast<size_t>(cut.len / kBlock - row.first_block)], *cut.thawed);
      row.exact.reserve(1);
    }
    cuts.push_back(std::move(cut));
  }
  return prepared([this, cuts = std::move(cuts)]() mutable noexcept {
    for (size_t r = 0; r < cuts.size(); ++r) {
      Row& row = rows_[r];
      if (cuts[r].len < row.first || cuts[r].len == 0) {  // a window of 1 may lack them
        row = Row{};
        row.first = row.len = cuts[r].len;
        row.first_block = row.len / kBlock;
        continue;
      }
      row.cut = std::move(cuts[r].thawed);
      step_back(row, cuts[r].len);
    }
  });
}

std::unique_ptr<CacheLayer> LarderQuantizedLayer::fork() const {
  auto forked = std::make_unique<LarderQuantizedLayer>(spec_, options_, source_);
  forked->rows_ = rows_;
  for (Row& row : forked->rows_) row.cut.reset();
  return forked;
}

void LarderQuantizedLayer::for_each_block(FunctionRef<void(CacheBlock&)> body) const {
  for (const Row& row : rows_) {
    for (const auto* list : {&row.coded, &row.exact, &row.prepared})
      for (const BlockPtr& block : *list) body(*block);
    if (row.cut) body(*row.cut);
  }
}

void LarderQuantizedLayer::for_each_block_of(int32_t index,
                                             FunctionRef<void(const RowBlock&)> body) const {
  if (index >= batch()) return;
  const Row& row = rows_[static_cast<size_t>(index)];
  int64_t begin = row.first_block * kBlock;
  for (const auto* list : {&row.coded, &row.exact}) {
    for (const BlockPtr& block : *list) {
      const int64_t end = begin + kBlock;
      const int64_t used = std::min(end, row.len) - std::max(begin, row.first);
      body({*block, kBlock, std::max<int64_t>(used, 0)});
      begin = end;
    }
  }
  for (const BlockPtr& block : row.prepared) body({*block, kBlock, 0});
  if (row.cut) body({*row.cut, kBlock, 0});
}

std::string LarderQuantizedLayer::format() const {
  const auto side = [&](const CodeRecipe& recipe) {
    if (recipe.bits == CodeRecipe::kExact) return std::string("exact");
    return str(recipe.bits, " bit ", recipe.per_channel ? "by channel " : "by token ", recipe.group,
               recipe.symmetric ? " symmetric " : " ", dtype_name(recipe.scale_dtype));
  };
  return str("larder k ", side(options_.key), ", v ", side(options_.value), ", residual ",
             options_.residual_length, " ", dtype_name(options_.dtype),
             options_.hadamard ? ", hadamard" : "");
}

RowImage LarderQuantizedLayer::save(int32_t row_index, Allocator& allocator) const {
  check_row(row_index, batch());
  const Row& row = rows_[static_cast<size_t>(row_index)];
  const int64_t seam = std::max(row.first, kBlock * row.coded_end()), count = row.len - seam;
  const Shape exact{spec_.num_kv_heads, count, spec_.head_dim};
  const auto coded = static_cast<int64_t>(row.coded.size());
  RowImage image{row.len, {}};
  image.tensors.push_back({"first_position", Tensor(allocator, {1}, DType::kI64, "export")});
  image.tensors.push_back(
      {"codes", Tensor(allocator, {coded, coded_.bytes()}, DType::kU8, "export")});
  image.tensors.push_back({"k", Tensor(allocator, exact, options_.dtype, "export")});
  image.tensors.push_back({"v", Tensor(allocator, exact, options_.dtype, "export")});
  image.tensors[0].tensor.as<int64_t>()[0] = row.first;
  for (int64_t i = 0; i < coded; ++i)
    std::memcpy(image.tensors[1].tensor.view().bytes() + i * coded_.bytes(),
                row.coded[static_cast<size_t>(i)]->data(), static_cast<size_t>(coded_.bytes()));
  for (const Part part : {Part::kKey, Part::kValue}) {
    std::byte* to = image.tensors[part == Part::kKey ? 2 : 3].tensor.view().bytes();
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
      for (int64_t i = 0; i < count; ++i, to += token_bytes_) {
        const int64_t position = seam + i;
        std::memcpy(to,
                    slot(*row.exact[static_cast<size_t>(position / kBlock - row.coded_end())], part,
                         head, position % kBlock),
                    static_cast<size_t>(token_bytes_));
      }
    }
  }
  return image;
}

namespace {

// The length of an axis of a tensor that may be missing or of another rank: 0 then.
int64_t tokens_of(const RowImageView& image, std::string_view name, int axis) {
  for (const auto& named : image.tensors)
    if (named.name == name && named.tensor.shape.rank() > axis) return named.tensor.shape[axis];
  return 0;
}

}  // namespace

LarderQuantizedLayer::Row LarderQuantizedLayer::row_of(const RowImageView& image) const {
  check_image(image, {"first_position", "codes", "k", "v"}, -1);
  const int64_t coded = tokens_of(image, "codes", 0), exact = tokens_of(image, "k", 1);
  const Shape dense{spec_.num_kv_heads, exact, spec_.head_dim};
  const TensorView& first = image_tensor(image, "first_position", DType::kI64, {1});
  const TensorView& codes = image_tensor(image, "codes", DType::kU8, {coded, coded_.bytes()});
  const TensorView& k = image_tensor(image, "k", options_.dtype, dense);
  const TensorView& v = image_tensor(image, "v", options_.dtype, dense);
  Row row;
  row.len = image.seq_len;
  std::memcpy(&row.first, first.data, sizeof row.first);
  const int64_t seam = row.len - exact;
  const bool fits = row.len <= INT32_MAX && row.first >= 0 && seam >= row.first &&
                    row.first <= window_start(spec_.window, row.len) &&
                    coded <= ceil_div(seam, kBlock);
  row.first_block = row.first / kBlock;
  const int64_t begin = coded == 0 ? row.first : kBlock * row.first_block;
  if (!fits || seam != begin + kBlock * coded)
    fail("a saved row of ", row.len, " tokens from position ", row.first, " with ", coded,
         " coded blocks and ", exact, " exact tokens");
  for (int64_t i = 0; i < coded; ++i) {
    row.coded.push_back(make_coded());
    std::memcpy(row.coded.back()->data(), codes.bytes() + i * coded_.bytes(),
                static_cast<size_t>(coded_.bytes()));
  }
  while (row.coded_end() + static_cast<int64_t>(row.exact.size()) < ceil_div(row.len, kBlock)) {
    row.exact.push_back(make_exact());
    std::memset(row.exact.back()->data(), 0, row.exact.back()->size());
  }
  for (const Part part : {Part::kKey, Part::kValue}) {
    const std::byte* from = (part == Part::kKey ? k : v).bytes();
    for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
      for (int64_t p = seam; p < row.len; ++p, from += token_bytes_)
        std::memcpy(slot(*row.exact[static_cast<size_t>(p / kBlock - row.coded_end())], part, head,
                         p % kBlock),
                    from, static_cast<size_t>(token_bytes_));
    }
  }
  return row;
}

std::unique_ptr<Change> LarderQuantizedLayer::load(std::span<const RowImageView> rows) {
  std::vector<Row> loaded;
  for (const RowImageView& image : rows) loaded.push_back(row_of(image));
  return replace_rows(rows_, std::move(loaded));
}

LarderQuantizedLayer::Row LarderQuantizedLayer::row_of(const RowTokens& tokens) const {
  const Shape shape{spec_.num_kv_heads, tokens.k.shape[1], spec_.head_dim};
  LARDER_ASSERT(tokens.k.shape == shape && tokens.v.shape == shape);
  Row row;
  row.first = tokens.first_position;
  row.first_block = row.first / kBlock;
  row.len = row.first + shape[1];
  std::vector<float> x(static_cast<size_t>(kBlock * spec_.head_dim));
  BlockPtr exact;
  for (int64_t block = row.first_block; block < ceil_div(row.len, kBlock); ++block) {
    if (!exact) exact = make_exact();
    std::memset(exact->data(), 0, exact->size());
    const int64_t begin = std::max(row.first, kBlock * block);
    const int64_t end = std::min(row.len, kBlock * (block + 1));
    for (const Part part : {Part::kKey, Part::kValue}) {
      for (int32_t head = 0; head < spec_.num_kv_heads; ++head) {
        copy_into(TensorView::contiguous(x.data(), DType::kF32, {1, end - begin, spec_.head_dim}),
                  (part == Part::kKey ? tokens.k : tokens.v)
                      .slice(0, head, head + 1)
                      .slice(1, begin - row.first, end - row.first));
        for (int64_t p = begin; p < end; ++p)
          store(slot(*exact, part, head, p % kBlock), part,
                x.data() + (p - begin) * spec_.head_dim);
      }
    }
    if (block < blocks_due(row.len)) {
      row.coded.push_back(make_coded());
      encode(*exact, *row.coded.back());
    } else {
      row.exact.push_back(std::move(exact));
      exact = BlockPtr();
    }
  }
  return row;
}

// Keys are turned on the way.
void LarderQuantizedLayer::store(std::byte* to, Part part, const float* x) const {
  float turned[kMostHeadDim];
  if (part == Part::kKey && options_.hadamard) {
    std::copy_n(x, spec_.head_dim, turned);
    larder::hadamard(turned, 1, spec_.head_dim);
    x = turned;
  }
  for (int64_t d = 0; d < spec_.head_dim; ++d)
    store_stored(to + d * (token_bytes_ / spec_.head_dim), options_.dtype, x[d]);
}

void LarderQuantizedLayer::check_assign(int64_t first_position, int64_t seq_len) const {
  if (seq_len > INT32_MAX) fail_as(ErrorKind::kNoRoom, "a row of ", seq_len, " tokens");
  check_window_begin(spec_.window, first_position, seq_len);
}

std::unique_ptr<Change> LarderQuantizedLayer::assign(std::span<const RowTokens> rows) {
  for (const RowTokens& row : rows)
    check_assign(row.first_position, row.first_position + row.k.shape[1]);
  std::vector<Row> assigned;
  for (const RowTokens& tokens : rows) assigned.push_back(row_of(tokens));
  return replace_rows(rows_, std::move(assigned));
}

}  // namespace larder
