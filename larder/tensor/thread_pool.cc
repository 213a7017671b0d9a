#include "larder/tensor/thread_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "larder/base/error.h"
#include "larder/tensor/cpu_limit.h"

namespace larder {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxChosenThreads = 16;
// About 30 us: longer than what lies between two kernels of a decode step, short beside a
// scheduler's time slice.
constexpr int kSpins = 2000;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int affinity_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  // More cores than a cpu_set_t holds, or a kernel that refuses: the library's guess, 0 if none.
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The cores that this thread may run on, in the order of their numbers.
std::vector<int> affinity_list() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  return cpus;
}

// Binds this thread to one core, or frees it for several.
bool run_on(std::span<const int> cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof set, &set) == 0;
}

// Waits until `ready()`: spins first, then sleeps. `sleepers` tells the other side that a
// notification is due. Both sides write their own flag and then read the other's in one total order
// (seq_cst), so one of them sees the other and no wake-up is lost.
class Gate {
 public:
  template <class Ready>
  void wait(int spins, Ready ready) {
    for (int i = 0; i < spins; ++i) {
      if (ready()) return;
      pause();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, ready);
    sleepers_.fetch_sub(1);
  }
  // Called after the write that makes `ready()` true.
  void open() {
    if (sleepers_.load() == 0) return;
    { std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
};

}  // namespace

struct ThreadPool::Shared {
  using Body = FunctionRef<void(int64_t, int64_t, int)>;

  int spins = 0;
  // Where threads are pinned, else empty; and who was pinned by the constructor.
  std::vector<int> cpus;
  std::thread::id owner;
  // A job: written by the caller before `epoch` moves, read by workers after they see it move.
  // Every worker answers every job, so nobody reads one while the next is written.
  int64_t count = 0;
  const Body* body = nullptr;
  bool stop = false;
  alignas(64) std::atomic<uint32_t> epoch{0};
  alignas(64) std::atomic<int> running{0};
  Gate start, done;
  std::vector<std::thread> workers;

  void run_range(int thread, int num_threads) const {
    const int64_t each = count / num_threads, rest = count % num_threads;
    const int64_t begin = thread * each + (thread < rest ? thread : rest);
    const int64_t end = begin + each + (thread < rest ? 1 : 0);
    if (begin < end) (*body)(begin, end, thread);
  }

  void publish(int num_workers) {
    running.store(num_workers, std::memory_order_relaxed);
    epoch.fetch_add(1);
    start.open();
  }

  void work(int thread, int num_threads) {
    // The caller's binding went through, so the system allows it; a core taken away since only
    // leaves this thread where the system puts it.
    if (!cpus.empty()) run_on(std::span(cpus).subspan(static_cast<size_t>(thread), 1));
    for (uint32_t seen = 0;; ++seen) {
      start.wait(spins, [&] { return epoch.load() != seen; });
      if (stop) return;
      run_range(thread, num_threads);
      if (running.fetch_sub(1) == 1) done.open();
    }
  }

  void join() {
    stop = true;
    epoch.fetch_add(1);
    start.open();
    for (std::thread& worker : workers) worker.join();
  }
};

ThreadPool::ThreadPool(int num_threads, bool pin) : num_threads_(num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads)
    fail("a thread pool of ", num_threads, " threads; give 1 to ", kMaxThreads);
  if (num_threads == 1 && !pin) return;
  shared_ = std::make_unique<Shared>();
  // With more threads than cores a spinning thread only keeps a working one waiting.
  shared_->spins = num_threads <= affinity_cpus() ? kSpins : 0;
  if (pin) pin_caller();
  shared_->workers.reserve(static_cast<size_t>(num_threads - 1));
  try {
    for (int i = 1; i < num_threads; ++i)
      shared_->workers.emplace_back([this, i] { shared_->work(i, num_threads_); });
  } catch (const std::system_error&) {
    const size_t started = shared_->workers.size();
    shared_->join();
    if (pin) run_on(shared_->cpus);
    fail_as(ErrorKind::kIo, "the system refused to start thread ", started + 2, " of ", num_threads,
            "; use fewer threads");
  }
}

void ThreadPool::pin_caller() {
  std::vector<int> cpus = affinity_list();
  if (static_cast<size_t>(num_threads_) > cpus.size())
    fail("cannot pin ", num_threads_, " threads: this process may use ", cpus.size(),
         " cores; use fewer threads, or do not pin");
  if (!run_on(std::span(cpus).first(1)))
    fail_as(ErrorKind::kIo, "the system refused to pin a thread to core ", cpus[0],
            "; do not pin threads");
  shared_->cpus = std::move(cpus);
  shared_->owner = std::this_thread::get_id();
}

ThreadPool::~ThreadPool() {
  if (!shared_) return;
  shared_->join();
  if (shared_->owner == std::this_thread::get_id()) run_on(shared_->cpus);
}

void ThreadPool::parallel_for(int64_t count, FunctionRef<void(int64_t, int64_t, int)> body) {
  if (count <= 0) return;
  if (num_threads_ == 1 || count == 1) {
    body(0, count, 0);
    return;
  }
  Shared& shared = *shared_;
  shared.count = count;
  shared.body = &body;
  shared.publish(num_threads_ - 1);
  shared.run_range(0, num_threads_);
  shared.done.wait(shared.spins, [&] { return shared.running.load() == 0; });
}

int choose_threads(int requested) {
  if (requested < 0 || requested > kMaxThreads)
    fail("threads is ", requested, "; give 1 to ", kMaxThreads, ", or 0 for one a core");
  if (requested > 0) return requested;
  int cpus = affinity_cpus();
  const int limit = cgroup_cpu_limit("/sys/fs/cgroup", "/proc/self/cgroup");
  if (limit > 0 && limit < cpus) cpus = limit;
  if (cpus > kMaxChosenThreads) cpus = kMaxChosenThreads;
  return cpus > 0 ? cpus : 1;
}

}  // namespace larder
