#include "larder/cache/copy_worker.h"

#include <system_error>

#include "larder/base/error.h"

namespace larder {

CopyWorker::CopyWorker(BlockFile& file) : file_(file) {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail_as(ErrorKind::kIo, "no thread for ", file.name(), ": ", error.what());
  }
}

CopyWorker::~CopyWorker() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_.notify_one();
  thread_.join();
}

void CopyWorker::reserve(size_t copies) {
  if (copies <= ring_.size()) return;
  std::vector<Copy> wider(2 * copies);
  const std::lock_guard lock(mutex_);
  for (uint64_t t = done_ + 1; t <= started_; ++t)
    wider[t % wider.size()] = ring_[t % ring_.size()];
  ring_.swap(wider);
}

uint64_t CopyWorker::start(const Copy& copy) noexcept {
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    LARDER_ASSERT(started_ - done_ < ring_.size());
    ticket = ++started_;
    ring_[ticket % ring_.size()] = copy;
  }
  asked_.notify_one();
  return ticket;
}

bool CopyWorker::is_done(uint64_t ticket) noexcept {
  const std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

void CopyWorker::wait(uint64_t ticket) noexcept {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return done_ >= ticket; });
}

int CopyWorker::take_error(bool& write) noexcept {
  const std::lock_guard lock(mutex_);
  write = first_write_;
  return std::exchange(first_error_, 0);
}

void CopyWorker::run() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    asked_.wait(lock, [&] { return stop_ || done_ < started_; });
    if (done_ == started_) return;
    const Copy copy = ring_[(done_ + 1) % ring_.size()];
    lock.unlock();
    const int error = copy.write ? file_.write(copy.offset, copy.memory, copy.bytes)
                                 : file_.read(copy.offset, copy.memory, copy.bytes);
    *copy.error = error;
    lock.lock();
    if (error != 0 && first_error_ == 0) {
      first_error_ = error;
      first_write_ = copy.write;
    }
    ++done_;
    finished_.notify_all();
  }
}

}  // namespace larder
