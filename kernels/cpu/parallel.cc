#include "cpu/parallel.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

namespace atbfn {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 32;   // a phase takes workers
constexpr uint64_t kPhase = uint64_t{1} << 33;  // the number of the phase counts in these
constexpr uint64_t kWorkers = kOpen - 1;

void Pause(int64_t turn) {
  // Spinning is for the microseconds between two phases. Whoever waits longer gives its core to whom it waits for.
  if (turn > 2000) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A helper that has just been released stays on its thread for a moment: a model's next call comes within microseconds,
// and a thread that sleeps takes many times that to wake. This is the one thing that calls share, and all it holds are
// helpers that wait; each belongs to the thread it runs on.
constexpr auto kLinger = std::chrono::microseconds(60);

class Waiting {
 public:
  // Waits to be given work. False: nothing came.
  template <class Work>
  static bool Wait(std::shared_ptr<Work>* work, int64_t* worker) {
    Waiting me;
    {
      std::lock_guard<std::mutex> lock(Mutex());
      me.next_ = First();
      First() = &me;
    }
    const auto until = std::chrono::steady_clock::now() + kLinger;
    for (int64_t turn = 0; !me.given_.load(std::memory_order_acquire); ++turn) {
      Pause(0);
      if (turn % 16 == 15 && std::chrono::steady_clock::now() > until && me.Leave()) return false;
    }
    *work = std::static_pointer_cast<Work>(std::move(me.work_));
    *worker = me.worker_;
    return true;
  }

  // Gives work to a helper that waits. False: there is none.
  template <class Work>
  static bool Give(const std::shared_ptr<Work>& work, int64_t worker) {
    std::lock_guard<std::mutex> lock(Mutex());
    Waiting* to = First();
    if (!to) return false;
    First() = to->next_;
    to->work_ = work;
    to->worker_ = worker;
    to->given_.store(true, std::memory_order_release);
    return true;
  }

 private:
  static std::mutex& Mutex() {
    static auto* mutex = new std::mutex;  // never destroyed: threads of the pool may outlive static objects
    return *mutex;
  }
  static Waiting*& First() {
    static Waiting* first = nullptr;
    return first;
  }
  // False: work was given meanwhile, or is being given.
  bool Leave() {
    std::lock_guard<std::mutex> lock(Mutex());
    for (Waiting** at = &First(); *at; at = &(*at)->next_)
      if (*at == this) {
        *at = next_;
        return true;
      }
    return false;
  }

  Waiting* next_ = nullptr;
  std::shared_ptr<void> work_;
  int64_t worker_ = 0;
  std::atomic<bool> given_{false};
};

struct alignas(64) Stretch {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

}  // namespace

struct Team::Shared {
  explicit Shared(int64_t size, const Kernels& kernels) : size(size), kernels(kernels), stretches(size) {}

  void Work(int64_t worker) {
    for (int64_t i = 0; i < size; ++i) {
      Stretch& s = stretches[(worker + i) % size];
      for (;;) {
        const int64_t item = s.next.fetch_add(1, std::memory_order_relaxed);
        if (item >= s.end) break;
        (*work)(item, worker);
      }
    }
  }

  void Help(int64_t worker) {
    uint64_t seen = 0;
    bool begun = false;
    for (int64_t turn = 0; !done.load(std::memory_order_acquire);) {
      uint64_t now = state.load(std::memory_order_acquire);
      if (!(now & kOpen) || now / kPhase == seen) {
        Pause(++turn);
        continue;
      }
      if (!state.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) continue;
      if (!begun) kernels.begin();
      begun = true;
      seen = now / kPhase;
      Work(worker);
      state.fetch_sub(1, std::memory_order_acq_rel);
      turn = 0;
    }
    if (begun) kernels.end();
  }

  const int64_t size;
  const Kernels& kernels;
  std::vector<Stretch> stretches;
  const std::function<void(int64_t, int64_t)>* work = nullptr;
  std::atomic<uint64_t> state{0};  // phase, open, workers inside
  std::atomic<bool> done{false};
};

Team::Team(const std::function<void(std::function<void()>)>& schedule, int64_t threads, const Kernels& kernels,
           int64_t most)
    : kernels_(kernels) {
  const int64_t size = std::max<int64_t>(1, std::min<int64_t>(most, threads));
  shared_ = std::make_shared<Shared>(size, kernels);
  for (int64_t worker = 1; worker < size; ++worker) {
    if (Waiting::Give(shared_, worker)) continue;
    // Where there is no pool, XLA runs what it is given at once, on this thread.
    schedule([shared = shared_, worker, caller = std::this_thread::get_id()]() mutable {
      if (std::this_thread::get_id() == caller) return;
      do shared->Help(worker);
      while (Waiting::Wait(&shared, &worker));
    });
  }
  kernels.begin();
}

Team::~Team() {
  shared_->done.store(true, std::memory_order_release);
  kernels_.end();
}

int64_t Team::size() const { return shared_->size; }

void Team::Run(int64_t items, const std::function<void(int64_t, int64_t)>& work) {
  if (items <= 0) return;
  Shared& s = *shared_;
  for (int64_t i = 0; i < s.size; ++i) {
    s.stretches[i].next.store(items * i / s.size, std::memory_order_relaxed);
    s.stretches[i].end = items * (i + 1) / s.size;
  }
  s.work = &work;
  if (s.size > 1 && items > 1) s.state.fetch_add(kPhase + kOpen, std::memory_order_acq_rel);
  s.Work(0);
  if (s.size == 1 || items == 1) return;
  s.state.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int64_t turn = 0; s.state.load(std::memory_order_acquire) & kWorkers;) Pause(++turn);
}

Scratch::~Scratch() {
  while (blocks_) {
    Block* next = blocks_->next;
    std::free(blocks_);
    blocks_ = next;
  }
}

void* Scratch::TakeBytes(int64_t bytes) {
  constexpr int64_t kHeader = 64;
  void* p = std::aligned_alloc(64, static_cast<size_t>(RoundUp(std::max<int64_t>(bytes, 1), 64) + kHeader));
  if (!p) throw std::bad_alloc();
  blocks_ = new (p) Block{blocks_};
  return static_cast<char*>(p) + kHeader;
}

}  // namespace atbfn
