// A file that lies in memory: a million of them on a disk would take hours.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "larder/base/error.h"

namespace larder::test {

// Has a path like any file while this lives. Not thread-safe.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("larder_test", MFD_CLOEXEC)) { LARDER_ASSERT(fd_ >= 0); }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return str("/proc/self/fd/", fd_); }
  // Replaces the content.
  void write(std::string_view content) const {
    LARDER_ASSERT(::ftruncate(fd_, static_cast<off_t>(content.size())) == 0);
    const ssize_t wrote = ::pwrite(fd_, content.data(), content.size(), 0);
    LARDER_ASSERT(wrote == static_cast<ssize_t>(content.size()));
  }

 private:
  int fd_;
};

}  // namespace larder::test
