#include "larder/generate/session.h"

#include "larder/tensor/kernels.h"

namespace larder {

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options,
                 Allocator& allocator, const CacheRegistry& registry)
    : model_(std::move(model)),
      allocator_(allocator),
      attention_(options.attention),
      cache_options_{options.cache_dtype.value_or(model_->dtype()), options.max_cache_len,
                     options.rollback, options.cache_config},
      cache_(registry.make(options.cache_implementation, model_->cache_layers(), cache_options_,
                           allocator)),
      scratch_(allocator),
      threads_(choose_threads(options.threads), options.pin_threads),
      exec_{choose_kernels(options.kernels), threads_, scratch_} {}

template <class Action>
auto Session::with_relief(const Action& action) {
  while (true) {
    try {
      return action();
    } catch (const OutOfMemory& error) {
      if (!relief_ || !relief_(error)) throw;
    }
  }
}

TensorView Session::forward(const Step& step, std::span<const int32_t> ids,
                            std::span<const int32_t> logit_rows) {
  return with_relief(
      [&] { return model_->forward(exec_, step, ids, logit_rows, cache_, attention_); });
}

void Session::shift(int32_t row, std::span<const ContextShift> shifts) {
  with_relief([&] { cache_.shift(row, shifts); });
}

}  // namespace larder
