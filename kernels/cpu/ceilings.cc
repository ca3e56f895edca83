#include "cpu/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define ATBFN_CEILINGS_X86 1
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace atbfn {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Keeps a value, and so the work behind it, from being optimised away.
template <typename T>
void Keep(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

// Sum over the threads of work(thread) per second; work is repeated for `seconds` and returns how much it did. Threads
// start together, and each is measured by its own clock, so one that is late to stop does not lower the others.
template <typename Prepare, typename Work>
double Rate(int threads, double seconds, const Prepare& prepare, const Work& work) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  std::atomic<int> waiting{threads};
  std::vector<double> rates(threads);
  auto run = [&](int thread) {
    auto state = prepare(thread);
    --waiting;
    while (waiting.load() > 0) std::this_thread::yield();
    work(thread, state);  // brings clocks up and data near
    double done = 0, elapsed = 0;
    const auto start = Clock::now();
    do {
      done += work(thread, state);
      elapsed = Since(start);
    } while (elapsed < seconds);
    rates[thread] = done / elapsed;
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(run, i);
  run(0);
  for (auto& other : others) other.join();
  double total = 0;
  for (double rate : rates) total += rate;
  return total;
}

constexpr int kRepeats = 4096;  // instructions between two looks at the clock, per accumulator

// Twelve accumulators hide the latency of a multiply-add on every processor with up to two or three such ports.
constexpr int kAccumulators = 12;

#if defined(__GNUC__)
typedef float Float4 __attribute__((vector_size(16)));

double BaselineF32() {
  Float4 acc[kAccumulators] = {};
  Float4 a = {1, 1, 1, 1}, b = {0, 0, 0, 0};
  Keep(a), Keep(b);
  for (int r = 0; r < kRepeats; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kAccumulators; ++i) acc[i] = acc[i] * a + b;
  }
  Keep(acc);
  return 2.0 * 4 * kAccumulators * kRepeats;
}
#else
double BaselineF32() {
  float acc[4 * kAccumulators] = {};
  volatile float one = 1, zero = 0;
  const float a = one, b = zero;
  for (int r = 0; r < kRepeats; ++r)
    for (float& x : acc) x = x * a + b;
  volatile float sink = acc[0];
  (void)sink;
  return 2.0 * 4 * kAccumulators * kRepeats;
}
#endif

#if defined(ATBFN_CEILINGS_X86)

#define ATBFN_TARGET(isa) __attribute__((target(isa)))

// The loops below are the same but for the instruction, which takes part in the function's target and so cannot be a
// template argument. The accumulators must stay in registers: the compiler sees constants and unrolls.
#define ATBFN_PEAK(Name, isa, Vector, zero, multiply_add, flops)                         \
  ATBFN_TARGET(isa) double Name() {                                                      \
    Vector acc[kAccumulators];                                                           \
    _Pragma("GCC unroll 12") for (int i = 0; i < kAccumulators; ++i) acc[i] = zero;      \
    auto a = zero, b = zero;                                                             \
    asm volatile("" : "+v"(a), "+v"(b));                                                 \
    for (int r = 0; r < kRepeats; ++r) {                                                 \
      _Pragma("GCC unroll 12") for (int i = 0; i < kAccumulators; ++i) {                 \
        acc[i] = multiply_add;                                                           \
        asm volatile("" : "+v"(acc[i]));                                                 \
      }                                                                                  \
    }                                                                                    \
    return double(flops) * kAccumulators * kRepeats;                                     \
  }

ATBFN_PEAK(Avx2F32, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_fmadd_ps(a, b, acc[i]), 2 * 8)
ATBFN_PEAK(Avx512F32, "avx512f", __m512, _mm512_setzero_ps(), _mm512_fmadd_ps(a, b, acc[i]), 2 * 16)
ATBFN_PEAK(Avx512Bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(),
           _mm512_dpbf16_ps(acc[i], (__m512bh)a, (__m512bh)b), 2 * 32)
#if defined(__clang__) || __GNUC__ >= 12
#define ATBFN_CEILINGS_FP16 1
ATBFN_PEAK(Avx512Fp16, "avx512f,avx512vl,avx512bw,avx512fp16", __m512h, _mm512_setzero_ph(),
           _mm512_fmadd_ph(a, b, acc[i]), 2 * 32)
#endif

// Four accumulator tiles of 16 x 16 with two tiles on either side: as much as eight tile registers hold.
ATBFN_TARGET("amx-tile,amx-bf16") double AmxBf16() {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  alignas(64) std::uint32_t ones[16 * 16], cancelling[16 * 16];
  std::fill_n(ones, 16 * 16, 0x3f803f80u);        // 1, 1
  std::fill_n(cancelling, 16 * 16, 0xbf803f80u);  // 1, -1: sums stay zero
  // The intrinsics of g++ 12 do not tell the compiler that they read memory, so it would drop what was written.
  Keep(config), Keep(ones), Keep(cancelling);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, ones, 64);
  _tile_loadd(5, ones, 64);
  _tile_loadd(6, cancelling, 64);
  _tile_loadd(7, cancelling, 64);
  for (int r = 0; r < kRepeats; ++r) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 2.0 * 16 * 16 * 32 * 4 * kRepeats;
}

bool AmxPermitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Features {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, avx512_fp16 = false, amx_bf16 = false;
};

Features Detect() {
  Features found;
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  constexpr unsigned kOsSaves = 1u << 27, kFma = 1u << 12;
  if (!(c & kOsSaves)) return found;
  const bool fma = c & kFma;
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const bool ymm = (low & 0x6) == 0x6, zmm = (low & 0xe6) == 0xe6, tiles = (low & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const unsigned leaf7_b = b, leaf7_d = d;
  found.avx2 = ymm && fma && (leaf7_b >> 5 & 1);
  found.avx512 = zmm && (leaf7_b >> 16 & 1);
  found.avx512_fp16 = found.avx512 && (leaf7_b >> 30 & 1) && (leaf7_d >> 23 & 1);
  found.amx_bf16 = tiles && (leaf7_d >> 24 & 1) && (leaf7_d >> 22 & 1) && AmxPermitted();
  found.avx512_bf16 = found.avx512 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
  return found;
}

const Features& Cpu() {
  static const Features features = Detect();
  return features;
}

// Reads in kStreams places at once; with several, the hardware's prefetchers get help, for they follow few of them.
template <int kStreams>
ATBFN_TARGET("avx2") void ReadAvx2(const char* data, std::size_t bytes) {
  constexpr std::size_t kStep = 128, kAhead = kStreams > 1 ? 2048 : 0;
  __m256i acc[4] = {};
  const std::size_t part = bytes / kStreams / kStep * kStep;
  for (std::size_t i = 0; i < part; i += kStep) {
    for (int stream = 0; stream < kStreams; ++stream) {
      const char* from = data + stream * part + i;
      if (kAhead)
        for (std::size_t line = 0; line < kStep; line += 64) _mm_prefetch(from + kAhead + line, _MM_HINT_T0);
      for (int j = 0; j < 4; ++j)
        acc[j] = _mm256_or_si256(acc[j], _mm256_load_si256(reinterpret_cast<const __m256i*>(from) + j));
    }
  }
  Keep(acc);
}

template <int kStreams>
ATBFN_TARGET("avx512f") void ReadAvx512(const char* data, std::size_t bytes) {
  constexpr std::size_t kStep = 256, kAhead = kStreams > 1 ? 2048 : 0;
  __m512i acc[4];
  for (auto& a : acc) a = _mm512_setzero_si512();
  const std::size_t part = bytes / kStreams / kStep * kStep;
  for (std::size_t i = 0; i < part; i += kStep) {
    for (int stream = 0; stream < kStreams; ++stream) {
      const char* from = data + stream * part + i;
      if (kAhead)
        for (std::size_t line = 0; line < kStep; line += 64) _mm_prefetch(from + kAhead + line, _MM_HINT_T0);
      for (int j = 0; j < 4; ++j)
        acc[j] = _mm512_or_si512(acc[j], _mm512_load_si512(reinterpret_cast<const __m512i*>(from) + j));
    }
  }
  Keep(acc);
}

#endif  // ATBFN_CEILINGS_X86

void ReadBaseline(const char* data, std::size_t bytes) {
  const auto* from = reinterpret_cast<const std::uint64_t*>(data);
  std::uint64_t acc[16] = {};
  for (std::size_t i = 0; i + 16 <= bytes / 8; i += 16)
    for (int j = 0; j < 16; ++j) acc[j] |= from[i + j];
  Keep(acc);
}

struct Kind {
  const char* name;
  double (*run)();
};

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
#if defined(ATBFN_CEILINGS_X86)
  const Features& cpu = Cpu();
  if (cpu.amx_bf16) kinds.push_back({"amx_bf16", AmxBf16});
#if defined(ATBFN_CEILINGS_FP16)
  if (cpu.avx512_fp16) kinds.push_back({"avx512_fp16", Avx512Fp16});
#endif
  if (cpu.avx512_bf16) kinds.push_back({"avx512_bf16", Avx512Bf16});
  if (cpu.avx512) kinds.push_back({"avx512_f32", Avx512F32});
  if (cpu.avx2) kinds.push_back({"avx2_f32", Avx2F32});
#endif
  kinds.push_back({"baseline_f32", BaselineF32});
  return kinds;
}

using Reader = void (*)(const char*, std::size_t);

std::vector<Reader> Readers() {
#if defined(ATBFN_CEILINGS_X86)
  if (Cpu().avx512) return {&ReadAvx512<1>, &ReadAvx512<4>};
  if (Cpu().avx2) return {&ReadAvx2<1>, &ReadAvx2<4>};
#endif
  return {&ReadBaseline};
}

}  // namespace

std::vector<std::string> MatrixPeakKinds() {
  std::vector<std::string> names;
  for (const Kind& kind : Kinds()) names.push_back(kind.name);
  return names;
}

double MatrixPeak(const std::string& kind, int threads, double seconds) {
  for (const Kind& known : Kinds()) {
    if (kind != known.name) continue;
    return Rate(threads, seconds, [](int) { return 0; }, [&](int, int) { return known.run(); });
  }
  throw std::invalid_argument("matrix_peak: this processor has no " + kind);
}

double ReadBandwidth(std::size_t bytes, int threads, double seconds) {
  constexpr std::size_t kPage = 4096;                // shares start on one
  constexpr std::size_t kBetweenLooks = 256 * 1024;  // a look at the clock costs as much as reading a few hundred bytes
  if (threads < 1) throw std::invalid_argument("threads must be at least 1");
  const std::size_t share = std::max<std::size_t>((bytes / threads + kPage - 1) / kPage * kPage, kPage);
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data(static_cast<char*>(std::aligned_alloc(kPage, share * threads)));
  if (!data) throw std::bad_alloc();
  auto prepare = [&](int thread) {
    char* mine = data.get() + thread * share;
    std::fill_n(mine, share, char(1));  // by the thread that reads it, so pages lie near; unwritten, all would be one
    return mine;
  };
  const auto readers = Readers();
  double best = 0;
  for (const Reader read : readers) {
    auto work = [&](int, const char* mine) {
      std::size_t done = 0;
      do {
        read(mine, share);
        done += share;
      } while (done < kBetweenLooks);
      return double(done);
    };
    best = std::max(best, Rate(threads, seconds / readers.size(), prepare, work));
  }
  return best;
}

}  // namespace atbfn
