#include "larder/cache/block_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "larder/base/error.h"

namespace larder {
namespace {

std::filesystem::path usable(std::filesystem::path folder) {
  std::error_code error;
  if (folder.empty()) folder = std::filesystem::temp_directory_path(error);
  if (error) fail_as(ErrorKind::kIo, "the system has no temporary folder: ", error.message());
  return folder;
}

// Not every file system makes files without a name; there the name goes at once.
int open_unnamed(const std::filesystem::path& folder) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  std::string name = (folder / "larder-offload-XXXXXX").string();
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

// Calls step(done bytes) until all is done.
template <class Step>
int in_pieces(size_t bytes, const Step& step) noexcept {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = step(done);
    if (n > 0)
      done += static_cast<size_t>(n);
    else if (n == 0)
      return EIO;  // the file is shorter than what was allocated
    else if (errno != EINTR)
      return errno;
  }
  return 0;
}

}  // namespace

TemporaryBlockFile::TemporaryBlockFile(std::filesystem::path folder)
    : folder_(usable(std::move(folder))), fd_(open_unnamed(folder_)) {
  if (fd_ < 0) {
    fail_as(ErrorKind::kIo, name(), " cannot be made: ", std::strerror(errno),
            "; name a writable folder, as --cache-config '{\"folder\": \"DIR\"}'");
  }
}

TemporaryBlockFile::~TemporaryBlockFile() { close(fd_); }

std::string TemporaryBlockFile::name() const {
  return str("the offload file in ", in_quotes(folder_.string()));
}

void TemporaryBlockFile::allocate(int64_t offset, size_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd_, offset, static_cast<off_t>(bytes));
  if (error != 0) {
    fail_as(ErrorKind::kIo, name(), " cannot grow from ", offset, " bytes by ", bytes, ": ",
            std::strerror(error), "; free some room, or name another folder");
  }
}

int TemporaryBlockFile::read(int64_t offset, std::byte* to, size_t bytes) noexcept {
  return in_pieces(bytes, [&](size_t done) {
    return pread(fd_, to + done, bytes - done, offset + static_cast<off_t>(done));
  });
}

int TemporaryBlockFile::write(int64_t offset, const std::byte* from, size_t bytes) noexcept {
  return in_pieces(bytes, [&](size_t done) {
    return pwrite(fd_, from + done, bytes - done, offset + static_cast<off_t>(done));
  });
}

// Failing costs room, nothing else.
void TemporaryBlockFile::clear() noexcept {
  [[maybe_unused]] const int ignored = ftruncate(fd_, 0);
}

}  // namespace larder
