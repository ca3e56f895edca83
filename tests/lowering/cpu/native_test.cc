// The native drivers and every instruction set's kernels without Python or XLA, for the compiler's sanitizers.
//
// Operands are heap blocks of exactly their size, so that one byte beyond is seen. Every product, FFN and attention is
// compared with a plain loop in double precision. Prints the failures; the exit status is their number, at most 1.
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cpu/attend.h"
#include "cpu/ffn_driver.h"
#include "cpu/product.h"

using namespace atbfn;

namespace {

// A pool as XLA's: Schedule(task), num_threads(). Its threads may all be busy, or late.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i)
      threads_.emplace_back([this] {
        for (;;) {
          std::function<void()> task;
          {
            std::unique_lock<std::mutex> lock(mutex_);
            ready_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
            if (tasks_.empty()) return;
            task = std::move(tasks_.front());
            tasks_.pop_front();
          }
          task();
        }
      });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    ready_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    ready_.notify_one();
  }
  int64_t num_threads() const { return static_cast<int64_t>(threads_.size()); }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> tasks_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

// Runs what it is given at once, as XLA does where it has no pool.
struct Immediate {
  void Schedule(const std::function<void()>& task) { task(); }
  int64_t num_threads() const { return 4; }
};

std::atomic<int> failures{0};

void Report(const std::string& what) {
  ++failures;
  std::printf("FAILED %s\n", what.c_str());
}

// An array of a dtype whose values are also there as doubles.
struct Array {
  Array(Dtype dtype, int64_t n, double scale, unsigned seed) : dtype(dtype), values(static_cast<size_t>(n)) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0, static_cast<float>(scale));
    std::vector<float> wide(static_cast<size_t>(n));
    for (float& x : wide) x = normal(rng);
    bytes.resize(static_cast<size_t>(n * ItemSize(dtype)));
    PortableKernels().narrow(dtype, wide.data(), bytes.data(), n);
    PortableKernels().widen(dtype, bytes.data(), wide.data(), n);
    for (size_t i = 0; i < values.size(); ++i) values[i] = wide[i];
  }
  Dtype dtype;
  std::vector<char> bytes;
  std::vector<double> values;
  const void* data() const { return bytes.data(); }
};

double Tolerance(Dtype dtype) { return dtype == Dtype::kBf16 ? 2e-2 : dtype == Dtype::kF16 ? 3e-3 : 2e-4; }

void Compare(const std::string& what, Dtype dtype, const void* actual, const std::vector<double>& expected) {
  std::vector<float> wide(expected.size());
  PortableKernels().widen(dtype, actual, wide.data(), static_cast<int64_t>(wide.size()));
  double square = 0;
  for (double x : expected) square += x * x;
  const double rms = std::sqrt(square / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    if (!(std::abs(wide[i] - expected[i]) <= Tolerance(dtype) * std::max(rms, std::abs(expected[i]))))
      return Report(what + ": entry " + std::to_string(i) + " is " + std::to_string(wide[i]) + ", not " +
                    std::to_string(expected[i]));
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

template <class PoolType>
void TestFfn(const Kernels& kernels, PoolType& pool, Dtype dtype, int64_t tokens, int64_t hidden, int64_t intermediate,
             bool gated, int64_t block, int64_t chunk) {
  const Array x(dtype, tokens * hidden, 1, 1), gate(dtype, intermediate * hidden, std::pow(hidden, -0.5), 2);
  const Array up(dtype, intermediate * hidden, std::pow(hidden, -0.5), 3);
  const Array down(dtype, hidden * intermediate, std::pow(intermediate, -0.5), 4), residual(dtype, tokens * hidden, 1, 5);
  std::vector<char> out(static_cast<size_t>(tokens * hidden * ItemSize(dtype)));
  std::vector<float> bias(static_cast<size_t>(hidden), 0.5f);
  {
    Team team(pool, kernels, 4);
    Scratch scratch;
    Machine machine{kernels, team, scratch};
    Ffn f{};
    f.dtype = dtype;
    f.tokens = tokens;
    f.hidden = hidden;
    f.intermediate = intermediate;
    f.block = block;
    f.chunk = chunk;
    f.activation = Activation::kSilu;
    f.x = x.data();
    f.gate = gated ? gate.data() : nullptr;
    f.up = up.data();
    f.down = down.data();
    f.bias_down = bias.data();
    f.residual = residual.data();
    f.out = out.data();
    RunFfn(machine, f);
  }
  std::vector<double> expected(static_cast<size_t>(tokens * hidden)), act(static_cast<size_t>(intermediate));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < intermediate; ++i) {
      double g = 0, u = 0;
      for (int64_t k = 0; k < hidden; ++k) {
        g += gate.values[static_cast<size_t>(i * hidden + k)] * x.values[static_cast<size_t>(t * hidden + k)];
        u += up.values[static_cast<size_t>(i * hidden + k)] * x.values[static_cast<size_t>(t * hidden + k)];
      }
      act[static_cast<size_t>(i)] = gated ? Silu(g) * u : Silu(u);
    }
    for (int64_t h = 0; h < hidden; ++h) {
      double sum = 0.5 + residual.values[static_cast<size_t>(t * hidden + h)];
      for (int64_t i = 0; i < intermediate; ++i)
        sum += down.values[static_cast<size_t>(h * intermediate + i)] * act[static_cast<size_t>(i)];
      expected[static_cast<size_t>(t * hidden + h)] = sum;
    }
  }
  Compare(std::string(kernels.name) + " ffn dtype " + std::to_string(static_cast<int>(dtype)) + " tokens " +
              std::to_string(tokens) + " hidden " + std::to_string(hidden),
          dtype, out.data(), expected);
}

template <class PoolType>
void TestAttention(const Kernels& kernels, PoolType& pool, Dtype dtype, int64_t batch, int64_t heads, int64_t kv_heads,
                   int64_t q_len, int64_t kv_len, int64_t d, int32_t pos, int64_t window) {
  const Array q(dtype, batch * heads * q_len * d, 1, 6), k(dtype, batch * kv_heads * kv_len * d, 1, 7);
  const Array v(dtype, batch * kv_heads * kv_len * d, 1, 8);
  std::vector<char> context(static_cast<size_t>(batch * heads * q_len * d * ItemSize(dtype)));
  std::vector<float> lse(static_cast<size_t>(batch * heads * q_len));
  Attention a{};
  a.dtype = dtype;
  a.batch = batch;
  a.heads = heads;
  a.kv_heads = kv_heads;
  a.q_len = q_len;
  a.kv_len = kv_len;
  a.head_dim = d;
  a.q = q.data();
  a.k = k.data();
  a.v = v.data();
  a.pos = &pos;
  a.pos_count = 1;
  a.mask.causal = true;
  a.mask.window = window;
  a.scale = static_cast<float>(std::pow(d, -0.5));
  a.columns = 96;
  a.keys = 64;
  a.context = context.data();
  a.lse = lse.data();
  {
    Team team(pool, kernels, 4);
    Scratch scratch;
    Machine machine{kernels, team, scratch};
    Attend(machine, a);
  }
  std::vector<double> expected(static_cast<size_t>(batch * heads * q_len * d), 0.0);
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < q_len; ++t) {
        const size_t row = static_cast<size_t>(((b * heads + h) * q_len + t) * d);
        const int64_t end = std::min<int64_t>({kv_len, pos + t + 1, pos + q_len});
        const int64_t begin = window ? std::max<int64_t>(0, pos + t - window + 1) : 0;
        double total = 0;
        std::vector<double> p;
        for (int64_t j = begin; j < end; ++j) {
          const size_t key = static_cast<size_t>(((b * kv_heads + h / (heads / kv_heads)) * kv_len + j) * d);
          double s = 0;
          for (size_t i = 0; i < static_cast<size_t>(d); ++i) s += q.values[row + i] * k.values[key + i];
          p.push_back(std::exp(s * std::pow(d, -0.5)));
          total += p.back();
        }
        for (int64_t j = begin; j < end; ++j) {
          const size_t key = static_cast<size_t>(((b * kv_heads + h / (heads / kv_heads)) * kv_len + j) * d);
          for (size_t i = 0; i < static_cast<size_t>(d); ++i)
            expected[row + i] += p[static_cast<size_t>(j - begin)] / total * v.values[key + i];
        }
      }
  Compare(std::string(kernels.name) + " attention dtype " + std::to_string(static_cast<int>(dtype)) + " q_len " +
              std::to_string(q_len) + " head_dim " + std::to_string(d),
          dtype, context.data(), expected);
}

template <class PoolType>
void TestAll(const Kernels& kernels, PoolType& pool) {
  for (int i = 0; i < kDtypes; ++i) {
    const Dtype dtype = static_cast<Dtype>(i);
    TestFfn(kernels, pool, dtype, 1, 67, 131, true, 16, 32);
    TestFfn(kernels, pool, dtype, 7, 33, 47, false, 16, 64);
    TestFfn(kernels, pool, dtype, 61, 83, 101, true, 32, 64);
    TestFfn(kernels, pool, dtype, 100, 40, 65, false, 64, 96);
    TestAttention(kernels, pool, dtype, 2, 4, 2, 1, 530, 41, 529, 0);
    TestAttention(kernels, pool, dtype, 1, 2, 2, 3, 70, 16, 40, 9);
    TestAttention(kernels, pool, dtype, 1, 4, 2, 37, 150, 24, 113, 0);
    TestAttention(kernels, pool, dtype, 2, 1, 1, 130, 130, 33, 0, 50);
  }
}

}  // namespace

int main() {
  std::vector<const Kernels*> tables = {&PortableKernels()};
  const std::string names = " " + AvailableIsas() + " ";
#if defined(ATBFN_HAVE_AVX2)
  if (names.find(" avx2 ") != std::string::npos) tables.push_back(&Avx2Kernels());
#endif
#if defined(ATBFN_HAVE_AVX512)
  if (names.find(" avx512 ") != std::string::npos) tables.push_back(&Avx512Kernels());
#endif
#if defined(ATBFN_HAVE_AMX)
  if (names.find(" amx ") != std::string::npos) tables.push_back(&AmxKernels());
#endif
  Pool pool(3);
  Immediate immediate;
  for (const Kernels* kernels : tables) {
    TestAll(*kernels, pool);
    TestAll(*kernels, immediate);
    std::printf("%s done\n", kernels->name);
  }
  // Several callers at once, whose helpers are each other's pool, and a pool that is busy with something else.
  std::atomic<bool> stop{false};
  pool.Schedule([&stop] {
    while (!stop) std::this_thread::yield();
  });
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&tables, &pool, i] {
      const Kernels& kernels = *tables[static_cast<size_t>(i) % tables.size()];
      for (int turn = 0; turn < 5; ++turn) TestFfn(kernels, pool, static_cast<Dtype>(turn % kDtypes), 40, 64, 96, true, 16, 32);
    });
  for (std::thread& t : callers) t.join();
  stop = true;
  std::printf("%d failures\n", failures.load());
  return failures ? 1 : 0;
}
