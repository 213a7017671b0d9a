#include "larder/generate/context_shift.h"

#include <algorithm>

#include "larder/base/error.h"

namespace larder {
namespace {

void check_numbers(const ContextShiftParams& params, int64_t context) {
  if (params.keep < 0)
    fail("a context shift that keeps ", params.keep, " tokens; keep must be at least 0");
  if (params.discard < 1)
    fail("a context shift that discards ", params.discard, " tokens; discard must be at least 1");
  if (params.keep >= context || params.discard >= context - params.keep) {
    fail("a context shift that keeps ", params.keep, " tokens and discards ", params.discard,
         " needs a context longer than both together, but it has ", context);
  }
}

std::vector<float> angles_of(const Model& model, int64_t layer, int64_t discard) {
  auto angles = model.key_rotation(layer, discard);
  if (!angles) {
    fail_as(ErrorKind::kUnsupported, "no context shift with ", model.info().architecture,
            ": keys can be moved only where a rope's angles do not depend on the length, in every "
            "layer; generate without it");
  }
  const auto half = static_cast<std::ptrdiff_t>(angles->size() / 2);
  for (auto sin = angles->begin() + half; sin != angles->end(); ++sin) *sin = -*sin;
  return *std::move(angles);
}

}  // namespace

int64_t context_length(Session& session) {
  const int64_t limit = session.model().info().max_position_embeddings;
  const int64_t capacity = session.cache().max_len();
  return capacity < 0 ? limit : std::min(limit, capacity);
}

int64_t default_discard(int64_t keep, int64_t context) {
  return std::max<int64_t>((context - keep) / 2, 1);
}

ContextShifter::ContextShifter(Session& session, const ContextShiftParams& params)
    : session_(session), params_(params), context_(context_length(session)) {
  check_numbers(params, context_);
  const Model& model = session.model();
  if (model.info().is_encoder_decoder)
    fail_as(ErrorKind::kUnsupported, "no context shift with an encoder-decoder model");
  const Cache& cache = session.cache();
  for (int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    angles_.push_back(angles_of(model, layer, params.discard));
    const std::vector<float>& angles = angles_.back();
    const size_t half = angles.size() / 2;
    shifts_.push_back({params.keep, params.discard, std::span(angles).first(half),
                       std::span(angles).subspan(half)});
    cache.layer(layer).check_can_shift(context_, shifts_.back());
  }
}

bool ContextShifter::shift(int32_t row) {
  try {
    session_.shift(row, shifts_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kUnsupported) throw;
    return false;
  }
  return true;
}

}  // namespace larder
