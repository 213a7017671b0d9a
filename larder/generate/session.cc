#include "larder/generate/session.h"

#include "larder/tensor/kernels.h"

namespace larder {

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options,
                 Allocator& allocator, const CacheRegistry& registry)
    : model_(std::move(model)),
      allocator_(allocator),
      attention_(options.attention),
      rollback_(options.rollback),
      cache_(registry.make(options.cache_implementation, model_->cache_layers(),
                           {options.cache_dtype.value_or(model_->dtype()), options.max_cache_len,
                            options.rollback, options.cache_config},
                           allocator)),
      scratch_(allocator),
      threads_(choose_threads(options.threads)),
      exec_{choose_kernels(options.kernels), threads_, scratch_} {}

}  // namespace larder
