// Threads that run one function over ranges. Work is split statically, so that results never depend
// on who ran what.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace larder {

// A borrowed callable (no allocation). The callable must outlive the call it is passed to.
template <class Signature>
class FunctionRef;
template <class R, class... Args>
class FunctionRef<R(Args...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
      FunctionRef(F&& f)  // NOLINT(google-explicit-constructor): made to convert
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// `num_threads` includes the caller: 1 runs everything inline and starts no thread. Workers spin
// briefly between jobs, then park. One job at a time: calls from two threads at once are a mistake
// (each generation has its own pool).
class ThreadPool {
 public:
  // `pin`: each thread stays on a core of its own among those this process may use. The
  // constructing thread is one of them; if it also destroys the pool, it may go anywhere again.
  // Throws Error when there are fewer cores than threads, or the system refuses.
  explicit ThreadPool(int num_threads, bool pin = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }
  // Calls body(begin, end, thread) on [0, count) cut into size() contiguous ranges as equal as can
  // be; empty ranges are not called. Returns when all are done. `body` must not throw.
  void parallel_for(int64_t count, FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

 private:
  struct Shared;
  void pin_caller();

  int num_threads_;
  std::unique_ptr<Shared> shared_;
};

// What `--threads 0` means: the cores this process may run on, at most 16. Throws Error for a
// negative count and for more than 1024; otherwise gives `requested`.
int choose_threads(int requested);

}  // namespace larder
