// Where a command keeps cached prefixes from one run to the next.
#pragma once

#include <filesystem>
#include <string>

#include "larder/cache/sealed_file.h"
#include "larder/generate/engine.h"

namespace larder::tools {

// Engines must have a prefix cache.
class PrefixFolder {
 public:
  // Makes the folder where it is not there. Throws, naming the flag, when it cannot be written to.
  PrefixFolder(const std::string& path, const std::string& model_folder);

  // Gives the engine what an earlier run with this model and layout left; says on stderr how much.
  // A file that cannot be used is named there, and the run begins without: its place is taken at
  // the end.
  void load(Engine& engine) const;
  // Throws when it cannot be written; the old file is whole then.
  void save(Engine& engine) const;

 private:
  CacheOrigin origin_of(const Engine& engine) const;

  std::filesystem::path path_, model_folder_;
};

}  // namespace larder::tools
