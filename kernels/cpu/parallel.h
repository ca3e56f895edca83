// Work of one call spread over XLA's own thread pool.
//
// A handler may itself run on a thread of the pool, and every thread of the pool may be busy. So the caller never waits
// for a helper that has not started: it does all of the work that nobody has taken. Helpers stay for the whole call,
// which is made of phases (`Run`), and a helper that comes late joins the phase that is open then.
#ifndef ATBFN_KERNELS_CPU_PARALLEL_H_
#define ATBFN_KERNELS_CPU_PARALLEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "cpu/isa.h"

namespace atbfn {

class Team {
 public:
  // At most `most` threads in all, the caller included; 1 schedules nothing. `pool` is XLA's (or one like it): it has
  // Schedule(task), which may run the task at once where there are no threads, and num_threads().
  template <class Pool>
  Team(Pool& pool, const Kernels& kernels, int64_t most)
      : Team([&pool](std::function<void()> task) { pool.Schedule(std::move(task)); }, pool.num_threads(), kernels, most) {}
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // How many threads may take part.
  int64_t size() const;

  // Calls work(item, worker) once for each item in [0, items), on several threads, and returns when all are done.
  // `worker` is a number below size() that no other thread has at that time. Each worker starts on a stretch of
  // neighbouring items, and goes on with those of others when it is through.
  void Run(int64_t items, const std::function<void(int64_t item, int64_t worker)>& work);

 private:
  struct Shared;
  Team(const std::function<void(std::function<void()>)>& schedule, int64_t threads, const Kernels& kernels, int64_t most);
  std::shared_ptr<Shared> shared_;
  const Kernels& kernels_;
};

// Memory for one call, aligned for vectors; freed at its end.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  template <class T>
  T* Take(int64_t count) {
    return static_cast<T*>(TakeBytes(count * static_cast<int64_t>(sizeof(T))));
  }
  void* TakeBytes(int64_t bytes);

 private:
  struct Block {
    Block* next;
  };
  Block* blocks_ = nullptr;
};

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_PARALLEL_H_
