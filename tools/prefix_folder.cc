#include "tools/prefix_folder.h"

#include <unistd.h>

#include <iostream>
#include <system_error>

#include "larder/base/error.h"
#include "larder/cache/prefix_file.h"
#include "larder/models/origin.h"

namespace larder::tools {
namespace {

constexpr const char* kFlag = "--prefix-folder ";

PrefixCache& prefixes_of(Engine& engine) {
  LARDER_ASSERT(engine.prefixes() != nullptr);
  return *engine.prefixes();
}

}  // namespace

CacheOrigin PrefixFolder::origin_of(const Engine& engine) const {
  return cache_origin(model_folder_, engine.session().model());
}

PrefixFolder::PrefixFolder(const std::string& path, const std::string& model_folder)
    : path_(path), model_folder_(model_folder) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) fail_as(ErrorKind::kIo, kFlag, in_quotes(path), ": ", error.message());
  if (access(path_.c_str(), W_OK | X_OK) != 0)
    fail_as(ErrorKind::kIo, kFlag, in_quotes(path), " cannot be written to");
}

void PrefixFolder::load(Engine& engine) const {
  PrefixCache& prefixes = prefixes_of(engine);
  const CacheOrigin origin = origin_of(engine);
  const std::filesystem::path file = path_ / prefix_file_name(prefixes, origin);
  if (!std::filesystem::exists(file)) return;
  try {
    const int64_t entries = load_prefixes(file, prefixes, origin);
    std::cerr << entries * prefixes.block_size() << " tokens of prefixes found in "
              << path_.string() << std::endl;
  } catch (const Error& error) {
    std::cerr << "note: " << error.what() << "; going on without it" << std::endl;
  }
}

void PrefixFolder::save(Engine& engine) const {
  PrefixCache& prefixes = prefixes_of(engine);
  const CacheOrigin origin = origin_of(engine);
  save_prefixes(path_ / prefix_file_name(prefixes, origin), prefixes, origin);
}

}  // namespace larder::tools
