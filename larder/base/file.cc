#include "larder/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "larder/base/error.h"

namespace larder {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

// Opens a regular file for reading; the size comes from the open descriptor. O_NONBLOCK: a pipe is
// refused below and must not block before that.
int open_regular(const std::filesystem::path& path, size_t& size) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_as(ErrorKind::kIo, "cannot open ", path.string(), ": ", reason(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail_as(ErrorKind::kIo, "cannot read ", path.string(), ": not a regular file");
  }
  size = static_cast<size_t>(info.st_size);
  return fd;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int fd = open_regular(path, size_);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (address == MAP_FAILED)
      fail_as(ErrorKind::kIo, "cannot map ", path.string(), ": ", reason(error));
    data_ = static_cast<const std::byte*>(address);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void forget_pages(std::span<const std::byte> bytes) noexcept {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto from = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (from + page - 1) / page * page,
                  end = (from + bytes.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, size_t limit) {
  size_t size = 0;
  const int fd = open_regular(path, size);
  if (size > limit) {
    ::close(fd);
    fail("file ", path.string(), " has ", size, " bytes, more than the limit of ", limit);
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(fd, text.data() + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  ::close(fd);
  if (done != size)
    fail_as(ErrorKind::kIo, "cannot read ", path.string(), ": it ended after ", done, " bytes");
  return text;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  std::string name = path_.string() + ".XXXXXX";
  fd_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (fd_ < 0) fail_as(ErrorKind::kIo, "cannot write ", path_.string(), ": ", reason(errno));
  temporary_ = name;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t wrote = ::write(fd_, at, bytes);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_as(ErrorKind::kIo, "cannot write ", path_.string(), ": ", reason(errno));
    at += wrote;
    bytes -= static_cast<size_t>(wrote);
  }
}

void AtomicFile::commit() {
  ::fchmod(fd_, 0644);
  if (::fsync(fd_) != 0)
    fail_as(ErrorKind::kIo, "cannot write ", path_.string(), ": ", reason(errno));
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_as(ErrorKind::kIo, "cannot replace ", path_.string(), ": ", reason(errno));
  }
  ::close(std::exchange(fd_, -1));
  const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  if (const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); dir >= 0) {
    ::fsync(dir);  // the new name itself reaches the disk; a failure here loses nothing
    ::close(dir);
  }
}

}  // namespace larder
