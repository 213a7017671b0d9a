// How fast this machine reads memory: the limit of decoding one row, measured beside it.
#pragma once

#include <filesystem>
#include <vector>

#include "larder/base/file.h"
#include "larder/tensor/thread_pool.h"

namespace larder::tools {

// Reads the safetensors files of a model folder as they lie mapped in memory: the pages that the
// model's weights are in, so that it costs no memory of its own.
class ReadSpeed {
 public:
  explicit ReadSpeed(const std::filesystem::path& folder);  // throws Error(kIo)

  // Reads all of it once, each thread a contiguous share; bytes a second. 0 without a file.
  double measure(ThreadPool& threads);

 private:
  std::vector<MappedFile> files_;
};

}  // namespace larder::tools
