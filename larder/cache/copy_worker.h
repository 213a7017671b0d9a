// One thread that moves bytes between memory and a BlockFile, in the order in which it was asked.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "larder/cache/block_file.h"

namespace larder {

// One thread asks and waits. Numbers ("tickets") count the copies asked for, from 1.
class CopyWorker {
 public:
  explicit CopyWorker(BlockFile& file);
  ~CopyWorker();  // after all copies asked for are done
  CopyWorker(const CopyWorker&) = delete;
  CopyWorker& operator=(const CopyWorker&) = delete;

  struct Copy {
    bool write = false;  // memory to file; else file to memory
    int64_t offset = 0;
    std::byte* memory = nullptr;
    size_t bytes = 0;
    int* error = nullptr;  // gets 0, or the errno; to be read after wait() only
  };
  // Room for `copies` that are not done yet. May throw; start() cannot.
  void reserve(size_t copies);
  uint64_t start(const Copy& copy) noexcept;
  bool is_done(uint64_t ticket) noexcept;
  void wait(uint64_t ticket) noexcept;
  // The first error since the last call, with its direction; 0 = none.
  int take_error(bool& write) noexcept;

 private:
  void run() noexcept;

  BlockFile& file_;
  std::mutex mutex_;
  std::condition_variable asked_, finished_;
  std::vector<Copy> ring_;  // copy number t lies at t % size
  uint64_t started_ = 0, done_ = 0;
  int first_error_ = 0;
  bool first_write_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace larder
