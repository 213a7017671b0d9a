// Errors that larder raises. Bad input of any kind (file, config, request, flag, memory) is an
// Error whose text is one line: what, the value, the remedy. A programmer's mistake is
// LARDER_ASSERT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "larder/base/str.h"

namespace larder {

enum class ErrorKind {
  kInvalid,      // a file, config, request or flag that cannot be right
  kUnsupported,  // right, but not built here
  kNoRoom,       // a fixed capacity (static cache, context) is full
  kOutOfMemory,  // an allocator refused
  kIo,           // the operating system refused
};

// Thrown to the caller with nothing changed: every check comes before the first write.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

// What may be there later, or for less.
inline bool is_no_room(const Error& error) {
  return error.kind() == ErrorKind::kNoRoom || error.kind() == ErrorKind::kOutOfMemory;
}

// An allocator's refusal. The text names the tag, the request, what is live and the limit.
class OutOfMemory : public Error {
 public:
  static constexpr size_t kNoLimit = SIZE_MAX;  // the system itself refused
  OutOfMemory(std::string tag, size_t requested, size_t live, size_t limit)
      : Error(ErrorKind::kOutOfMemory,
              str("out of memory for ", tag, ": ",
                  limit == kNoLimit
                      ? str("the system refused ", requested, " bytes; use")
                      : str("asked ", requested, " bytes with ", live, " live under a limit of ",
                            limit, "; raise --memory-limit, or use"),
                  " a shorter context or a smaller batch")),
        tag_(std::move(tag)),
        requested_(requested),
        live_(live),
        limit_(limit) {}
  const std::string& tag() const noexcept { return tag_; }
  size_t requested() const noexcept { return requested_; }
  size_t live() const noexcept { return live_; }
  size_t limit() const noexcept { return limit_; }

 private:
  std::string tag_;
  size_t requested_, live_, limit_;
};

// Throws Error(kInvalid) with the pieces joined.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(ErrorKind::kInvalid, str(parts...));
}

template <class... Parts>
[[noreturn]] void fail_as(ErrorKind kind, const Parts&... parts) {
  throw Error(kind, str(parts...));
}

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace larder

// A mistake in larder itself or in how its C++ interface is called. Stays on in release builds: it
// guards indices that come from shapes, never a hot loop.
#define LARDER_ASSERT(condition) \
  ((condition) ? (void)0 : ::larder::assertion_failed(#condition, __FILE__, __LINE__))
