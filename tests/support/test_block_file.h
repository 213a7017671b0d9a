// A temporary file whose copies take their time, or fail, as a test wants.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "larder/base/error.h"
#include "larder/cache/block_file.h"

namespace larder::test {

class TestBlockFile final : public BlockFile {
 public:
  // What happens to the copies of the files that share it. Calls count down to the one that fails.
  struct Faults {
    static constexpr int kNever = -1;
    std::atomic<int> max_sleep_ms{0}, fail_read{kNever}, fail_write{kNever}, fail_allocate{kNever};
    std::atomic<int> reads{0}, writes{0};
  };
  explicit TestBlockFile(Faults& faults) : faults_(faults) {}

  void allocate(int64_t offset, size_t bytes) override {
    if (fails(faults_.fail_allocate)) fail_as(ErrorKind::kIo, "no room left");
    file_.allocate(offset, bytes);
  }
  int read(int64_t offset, std::byte* to, size_t bytes) noexcept override {
    ++faults_.reads;
    nap();
    return fails(faults_.fail_read) ? EIO : file_.read(offset, to, bytes);
  }
  int write(int64_t offset, const std::byte* from, size_t bytes) noexcept override {
    ++faults_.writes;
    nap();
    return fails(faults_.fail_write) ? EIO : file_.write(offset, from, bytes);
  }
  void clear() noexcept override { file_.clear(); }
  std::string name() const override { return "the test's file"; }

 private:
  static bool fails(std::atomic<int>& countdown) { return countdown >= 0 && countdown-- == 0; }
  void nap() {
    const int most = faults_.max_sleep_ms;
    if (most == 0) return;
    const uint64_t call = calls_++ * 0x9E3779B97F4A7C15ull;
    std::this_thread::sleep_for(
        std::chrono::microseconds((call >> 33) % static_cast<uint64_t>(1000 * most + 1)));
  }

  Faults& faults_;
  std::atomic<uint64_t> calls_{1};
  TemporaryBlockFile file_{{}};
};

}  // namespace larder::test
