// The slow tier of offloaded caches: places in a file that nobody else sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace larder {

// Thread rule: one thread allocates and clears; any thread reads and writes places that exist.
class BlockFile {
 public:
  virtual ~BlockFile() = default;
  // Gives bytes [offset, offset + bytes) room on the medium, so that a later write of them does not
  // fail for want of it. Throws Error(kIo).
  virtual void allocate(int64_t offset, size_t bytes) = 0;
  // All bytes, or the errno that says why not; 0 = done. A place never written gives anything.
  virtual int read(int64_t offset, std::byte* to, size_t bytes) noexcept = 0;
  virtual int write(int64_t offset, const std::byte* from, size_t bytes) noexcept = 0;
  // Gives back the room of all places.
  virtual void clear() noexcept = 0;
  virtual std::string name() const = 0;  // for errors
};

// A file without a name in `folder` (empty: the system's temporary folder), readable by this
// process only; the system takes its room back when the process ends, however it ends. Throws
// Error(kIo) where the folder cannot be used.
class TemporaryBlockFile final : public BlockFile {
 public:
  explicit TemporaryBlockFile(std::filesystem::path folder);
  ~TemporaryBlockFile() override;
  TemporaryBlockFile(const TemporaryBlockFile&) = delete;
  TemporaryBlockFile& operator=(const TemporaryBlockFile&) = delete;

  void allocate(int64_t offset, size_t bytes) override;
  int read(int64_t offset, std::byte* to, size_t bytes) noexcept override;
  int write(int64_t offset, const std::byte* from, size_t bytes) noexcept override;
  void clear() noexcept override;
  std::string name() const override;

 private:
  std::filesystem::path folder_;
  int fd_ = -1;
};

}  // namespace larder
