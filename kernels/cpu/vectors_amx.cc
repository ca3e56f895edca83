// Products on AMX: C^T = W x^T, with rows of W as the A operand just as they lie in memory, and x packed in pairs of k.
//
// bfloat16 is what the tiles multiply. A float16 is the sum of two bfloat16 numbers and a float32 of three, exactly, so
// products of those are sums of three and six products of such parts; the parts that are left out are below 2^-18 and
// 2^-26 of a product. All sums are in float32. Those weights are split a group of rows at a time, in scratch.
#define ATBFN_ISA isa_amx
#include "cpu/vectors.h"

namespace atbfn {
namespace ATBFN_ISA {

constexpr int64_t kStep = 32;  // elements of k in one tile
constexpr int64_t kTileBytes = 1024;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

static void Begin() {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = 16;
  }
  // The compiler's own function tells it that 8 bytes are read, and it would leave out the others.
  asm volatile("ldtilecfg %0" : : "m"(config));
}

static void End() { _tile_release(); }

template <class T>
struct Parts;
template <>
struct Parts<Bf16> {
  static constexpr int kCount = 1, kProducts = 1;
  static constexpr int kW[] = {0}, kX[] = {0};
};
template <>
struct Parts<F16> {
  static constexpr int kCount = 2, kProducts = 3;
  // In an order that changes one operand at a time; small products first would be as good in float32.
  static constexpr int kW[] = {1, 0, 0}, kX[] = {0, 0, 1};
};
template <>
struct Parts<float> {
  static constexpr int kCount = 3, kProducts = 6;
  static constexpr int kW[] = {2, 1, 1, 0, 0, 0}, kX[] = {0, 0, 1, 1, 0, 2};
};

// Bytes from a part of a tile of tokens to the next. Tiles that are read together lie 1 KiB off a multiple of 4 KiB
// apart: at a multiple they would share a sixteenth of the first cache.
ATBFN_INLINE int64_t PartBytes(int64_t k) { return RoundUp(RoundUp(k, kStep) * kTile * 2, 4096) + kTileBytes; }

template <class T>
static int64_t PackedBytes(int64_t k, int64_t tokens) {
  return CeilDiv(tokens, kTile) * PartBytes(k) * Parts<T>::kCount;
}

// A float as a bfloat16, and what remains of it. What is not finite, or rounds to infinity, leaves a NaN: see Repair.
ATBFN_INLINE __m256i TakePart(__m512* x) {
  const __m256i high = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(*x));
  *x = _mm512_sub_ps(*x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16)));
  return high;
}

// The same for any float: what is not finite has nothing left, and a large number is cut off instead of rounded up to
// infinity, so that the sum of the parts is the number again.
ATBFN_INLINE __m256i TakePartOfAny(__m512* x) {
  const __m512i u = _mm512_castps_si512(*x), size = _mm512_and_si512(u, _mm512_set1_epi32(0x7fffffff));
  const __mmask16 large = _mm512_cmpge_epi32_mask(size, _mm512_set1_epi32(0x7f7f8000));
  if (__builtin_expect(large == 0, 1)) return TakePart(x);
  const __mmask16 odd = _mm512_cmpge_epi32_mask(size, _mm512_set1_epi32(0x7f800000));
  const VF rounded = reinterpret_cast<VF>(_mm512_mask_and_epi32(u, large & ~odd, u, _mm512_set1_epi32(-65536)));
  const VH high = ToBf16(rounded);
  const VF taken = Bits(__builtin_convertvector(high, VU) << 16);
  *x = _mm512_maskz_sub_ps(static_cast<__mmask16>(~odd), *x, reinterpret_cast<__m512>(taken));
  return reinterpret_cast<__m256i>(high);
}

// Layout: [tile of tokens][part][step of k][16 pairs of k][16 tokens][2].
template <class T>
static void Pack(const float* cols, int64_t ld, int64_t k0, int64_t k_count, int64_t k, int64_t token, int64_t tokens,
                 int64_t, void* packed) {
  constexpr int kParts_ = Parts<T>::kCount;
  const int64_t part_bytes = PartBytes(k);
  const int64_t end = k0 + k_count == k ? RoundUp(k, kStep) : k0 + k_count;
  for (int64_t t = 0; t < tokens; t += kTile) {
    char* tile = static_cast<char*>(packed) + (token + t) / kTile * part_bytes * kParts_;
    const int64_t count = Smaller(kTile, tokens - t);
    const __mmask16 some = static_cast<__mmask16>((1u << count) - 1);
    for (int64_t i = k0; i < end; i += 2) {
      const float* from = cols + (i - k0) * ld + t;
      __m512 a = i < k0 + k_count ? _mm512_maskz_loadu_ps(some, from) : _mm512_setzero_ps();
      __m512 b = i + 1 < k0 + k_count ? _mm512_maskz_loadu_ps(some, from + ld) : _mm512_setzero_ps();
      for (int p = 0; p < kParts_; ++p) {
        const __m512i low = _mm512_cvtepu16_epi32(TakePartOfAny(&a)), high = _mm512_cvtepu16_epi32(TakePartOfAny(&b));
        _mm512_storeu_si512(tile + p * part_bytes + i * 32, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
    }
  }
}

// The last, partial step of k of a group, zero-padded; or for split weights all of a group: [part][step][half][16][32].
template <class T>
static int64_t ScratchBytes(int64_t k) {
  return Parts<T>::kCount == 1 ? 2 * kTileBytes : RoundUp(k, kStep) * kGroup * 2 * Parts<T>::kCount;
}

template <int n>
struct Count {
  static constexpr int value = n;
};

// Where the tiles of a group of weights are, for a step of k.
struct Weights {
  const char* half[2];   // at step 0
  int64_t step_bytes;    // to the next step
  int64_t stride;        // from a row to the next
  int64_t part_bytes;    // to the next part
  const char* tail[2];   // the last step, where it is partial (else null)
};

// One group of rows times kColumns tiles of tokens. With three, six tiles hold sums and one each W and x: what comes from
// the second cache is then 5 KiB for six products instead of 4 KiB for four, and that is what limits the speed.
template <class T, int kColumns>
ATBFN_INLINE void Columns(const Weights& w, const char* x, int64_t x_tile_bytes, int64_t x_part_bytes, int64_t steps,
                          float* c, int64_t ldc, bool accumulate, const char* const next[2], int64_t next_row,
                          int64_t next_rows) {
  using P = Parts<T>;
  const int64_t row = ldc * 4;
  float* c1 = c + kHalf * ldc;
  // The compiler is not told what memory tiles are loaded from and stored to.
  asm volatile("" : : : "memory");
  // Tile 0 + i holds column i of the first half's sums, 3 + i of the second's.
  if (accumulate) {
    _tile_loadd(0, c, row);
    _tile_loadd(3, c1, row);
    if (kColumns > 1) _tile_loadd(1, c + kTile, row);
    if (kColumns > 1) _tile_loadd(4, c1 + kTile, row);
    if (kColumns > 2) _tile_loadd(2, c + 2 * kTile, row);
    if (kColumns > 2) _tile_loadd(5, c1 + 2 * kTile, row);
  } else {
    _tile_zero(0);
    _tile_zero(3);
    if (kColumns > 1) _tile_zero(1);
    if (kColumns > 1) _tile_zero(4);
    if (kColumns > 2) _tile_zero(2);
    if (kColumns > 2) _tile_zero(5);
  }
  for (int64_t s = 0; s < steps; ++s) {
    const bool tail = w.tail[0] && s + 1 == steps;
    const int64_t stride = tail ? 64 : w.stride;
    for (int p = 0; p < P::kProducts; ++p) {
      const int64_t at = P::kW[p] * w.part_bytes + s * w.step_bytes;
      const char* a0 = tail ? w.tail[0] : w.half[0] + at;
      const char* a1 = tail ? w.tail[1] : w.half[1] + at;
      const char* b = x + P::kX[p] * x_part_bytes + s * kTileBytes;
      _tile_loadd(6, a0, stride);
      _tile_loadd(7, b, 64);
      _tile_dpbf16ps(0, 6, 7);
      if constexpr (kColumns > 1) {
        _tile_loadd(7, b + x_tile_bytes, 64);
        _tile_dpbf16ps(1, 6, 7);
      }
      if constexpr (kColumns > 2) {
        _tile_loadd(7, b + 2 * x_tile_bytes, 64);
        _tile_dpbf16ps(2, 6, 7);
      }
      // Back through the columns: the last is still there.
      _tile_loadd(6, a1, stride);
      if constexpr (kColumns > 2) {
        _tile_dpbf16ps(5, 6, 7);
        _tile_loadd(7, b + x_tile_bytes, 64);
      }
      if constexpr (kColumns > 1) {
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(7, b, 64);
      }
      _tile_dpbf16ps(3, 6, 7);
    }
    constexpr int64_t kLine = 64, kLines = kStep * sizeof(T) / kLine;
    for (int64_t r = 0; r < next_rows; ++r)
      for (int64_t line = s * kLines; line < (s + 1) * kLines; ++line) {
        _mm_prefetch(next[0] + r * next_row + line * kLine, _MM_HINT_T1);
        _mm_prefetch(next[1] + r * next_row + line * kLine, _MM_HINT_T1);
      }
  }
  _tile_stored(0, c, row);
  _tile_stored(3, c1, row);
  if (kColumns > 1) _tile_stored(1, c + kTile, row);
  if (kColumns > 1) _tile_stored(4, c1 + kTile, row);
  if (kColumns > 2) _tile_stored(2, c + 2 * kTile, row);
  if (kColumns > 2) _tile_stored(5, c1 + 2 * kTile, row);
  asm volatile("" : : : "memory");
}

ATBFN_INLINE __m512i HighHalves(__m512i a, __m512i b) {
  alignas(64) static constexpr int16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                   33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kOdd), b);
}

// Splits `n` elements of a row into parts, `part_bytes` apart, steps of k `step_bytes` apart. Adding half a unit of the
// upper sixteen bits and cutting off the lower ones rounds to nearest; the last part is exact as it is. What rounds to
// infinity, or is not finite, leaves a NaN: see Repair.
template <class T>
ATBFN_INLINE void SplitRow(const T* from, int64_t n, char* to, int64_t part_bytes, int64_t step_bytes) {
  const __m512i half_unit = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32(-65536);
  for (int64_t i = 0; i < n; i += kStep, to += step_bytes) {
    __m512 x[2];
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t left = n - i - j * kLanes;
      const VF v = left >= kLanes ? Load(from + i + j * kLanes) : left > 0 ? LoadSome(from + i + j * kLanes, left) : VF{};
      x[j] = reinterpret_cast<__m512>(v);
    }
    for (int p = 0; p < Parts<T>::kCount; ++p) {
      __m512i u[2];
      for (int j = 0; j < 2; ++j) {
        u[j] = _mm512_castps_si512(x[j]);
        if (p + 1 == Parts<T>::kCount) continue;
        u[j] = _mm512_and_si512(_mm512_add_epi32(u[j], half_unit), high);
        x[j] = _mm512_sub_ps(x[j], _mm512_castsi512_ps(u[j]));
      }
      _mm512_store_si512(to + p * part_bytes, HighHalves(u[0], u[1]));
    }
  }
}

template <class T>
static Weights PrepareWeights(const PanelArgs& a, int64_t group, bool last) {
  const int64_t steps = CeilDiv(a.k, kStep), whole = a.k / kStep;
  char* scratch = static_cast<char*>(a.scratch);
  Weights w{};
  const T* from[2];
  int64_t rows[2];
  for (int h = 0; h < 2; ++h) {
    from[h] = static_cast<const T*>(a.w[h]) + group * a.step[h] * a.ldw;
    rows[h] = last ? a.rows[h] : kHalf;
  }
  if constexpr (Parts<T>::kCount == 1) {
    w.stride = a.ldw * 2;
    w.step_bytes = 64;
    for (int h = 0; h < 2; ++h) w.half[h] = reinterpret_cast<const char*>(from[h]);
    if (whole < steps)
      for (int h = 0; h < 2; ++h) {
        char* tail = scratch + h * kTileBytes;
        std::memset(tail, 0, kTileBytes);
        for (int64_t r = 0; r < rows[h]; ++r)
          std::memcpy(tail + r * 64, from[h] + r * a.ldw + whole * kStep, static_cast<size_t>(a.k - whole * kStep) * 2);
        w.tail[h] = tail;
      }
  } else {
    w.stride = 64;
    w.step_bytes = 2 * kTileBytes;
    w.part_bytes = steps * w.step_bytes;
    for (int h = 0; h < 2; ++h) {
      w.half[h] = scratch + h * kTileBytes;
      for (int64_t r = 0; r < kHalf; ++r) {
        char* to = scratch + h * kTileBytes + r * 64;
        if (r < rows[h]) {
          SplitRow(from[h] + r * a.ldw, a.k, to, w.part_bytes, w.step_bytes);
        } else {
          for (int p = 0; p < Parts<T>::kCount; ++p)
            for (int64_t s = 0; s < steps; ++s) std::memset(to + p * w.part_bytes + s * w.step_bytes, 0, 64);
        }
      }
    }
  }
  return w;
}

// Products of parts make NaN of what should be infinite: what is not finite is computed again from the numbers
// themselves. The rest stays as it is, so that one infinity changes nothing beside it.
template <class T>
static void Repair(const PanelArgs& a, int64_t group, bool last, float* c) {
  const int64_t columns = RoundUp(a.tokens, kTile), part_bytes = PartBytes(a.k);
  VF odd{};
  for (int64_t r = 0; r < kGroup; ++r)
    for (int64_t t = 0; t < columns; t += kLanes) odd += Load(c + r * a.ldc + t) * 0.0f;
  if (Sum(odd) == 0.0f) return;
  for (int h = 0; h < 2; ++h)
    for (int64_t r = 0; r < (last ? a.rows[h] : kHalf); ++r) {
      const T* w = static_cast<const T*>(a.w[h]) + (group * a.step[h] + r) * a.ldw;
      for (int64_t t = 0; t < columns; t += kTile) {
        if (Sum(Load(c + (h * kHalf + r) * a.ldc + t) * 0.0f) == 0.0f) continue;
        const char* tile = static_cast<const char*>(a.packed) + t / kTile * part_bytes * Parts<T>::kCount;
        VF sum{};
        for (int64_t i = 0; i < a.k; ++i) {
          VF x{};
          for (int p = Parts<T>::kCount - 1; p >= 0; --p) {
            VU pair;
            std::memcpy(&pair, tile + p * part_bytes + i / 2 * 64, sizeof pair);
            x += Bits(i % 2 ? pair & 0xffff0000u : pair << 16);
          }
          sum += Widen(w + i) * x;
        }
        float* to = c + (h * kHalf + r) * a.ldc + t;
        const VF now = Load(to);
        Store(to, now * 0.0f == 0.0f ? now : sum);
      }
    }
}

// C += W X of split weights: by way of a C of its own, so that a repair does not lose what was there.
template <class T>
static void Panel(const PanelArgs& a);

template <class T>
static void AccumulatePanel(const PanelArgs& a) {
  const int64_t columns = RoundUp(a.tokens, kTile), rows = a.groups * kGroup;
  PanelArgs fresh = a;
  fresh.accumulate = false;
  fresh.ldc = columns;
  fresh.c = static_cast<float*>(__builtin_malloc(static_cast<size_t>(rows * columns) * 4));
  Panel<T>(fresh);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t t = 0; t < columns; t += kLanes)
      Store(a.c + r * a.ldc + t, Load(a.c + r * a.ldc + t) + Load(fresh.c + r * columns + t));
  __builtin_free(fresh.c);
}

template <class T>
static void Panel(const PanelArgs& a) {
  if (Parts<T>::kCount > 1 && a.accumulate) return AccumulatePanel<T>(a);
  const int64_t steps = CeilDiv(a.k, kStep), tiles = CeilDiv(a.tokens, kTile);
  const int64_t x_part = PartBytes(a.k), x_tile = x_part * Parts<T>::kCount;
  const char* x = static_cast<const char*>(a.packed);
  for (int64_t g = 0; g < a.groups; ++g) {
    const bool last = g + 1 == a.groups;
    // Rows that do not exist must not be read: a half with fewer is copied. What it has beyond them is zero.
    PanelArgs b = a;
    T* copy = nullptr;
    if (Parts<T>::kCount == 1 && last && (a.rows[0] < kHalf || a.rows[1] < kHalf)) {
      const int64_t ld = RoundUp(a.k, kStep);
      copy = static_cast<T*>(__builtin_malloc(static_cast<size_t>(kGroup * ld) * sizeof(T)));
      std::memset(static_cast<void*>(copy), 0, static_cast<size_t>(kGroup * ld) * sizeof(T));
      for (int h = 0; h < 2; ++h) {
        for (int64_t r = 0; r < a.rows[h]; ++r)
          std::memcpy(static_cast<void*>(copy + (h * kHalf + r) * ld),
                      static_cast<const T*>(a.w[h]) + (g * a.step[h] + r) * a.ldw, static_cast<size_t>(a.k) * sizeof(T));
        b.w[h] = copy + h * kHalf * ld - g * a.step[h] * ld;
      }
      b.ldw = ld;
    }
    const Weights w = PrepareWeights<T>(b, g, last);
    float* c = a.c + g * kGroup * a.ldc;
    // The rows that come next are fetched into the second cache while these are multiplied.
    const char* next[2] = {static_cast<const char*>(a.next[0]), static_cast<const char*>(a.next[1])};
    if (!last)
      for (int h = 0; h < 2; ++h)
        next[h] = reinterpret_cast<const char*>(static_cast<const T*>(a.w[h]) + (g + 1) * a.step[h] * a.ldw);
    const int64_t next_row = a.ldw * static_cast<int64_t>(sizeof(T));
    const int64_t each = CeilDiv(kHalf, CeilDiv(tiles, 3));  // rows to fetch in each pass over k
    int64_t row = next[0] ? 0 : kHalf;
    for (int64_t t = 0; t < tiles; row += each) {
      const int64_t rows = Larger<int64_t>(0, Smaller(each, kHalf - row));
      const char* ahead[2] = {next[0] + row * next_row, next[1] + row * next_row};
      const auto columns = [&](auto count) {
        Columns<T, decltype(count)::value>(w, x + t * x_tile, x_tile, x_part, steps, c + t * kTile, a.ldc,
                                           a.accumulate, ahead, next_row, rows);
        t += decltype(count)::value;
      };
      // Four are two and two: a single column loads as much as it multiplies.
      if (tiles - t >= 3 && tiles - t != 4)
        columns(Count<3>());
      else if (tiles - t >= 2)
        columns(Count<2>());
      else
        columns(Count<1>());
    }
    __builtin_free(copy);
    if (Parts<T>::kCount > 1) Repair<T>(a, g, last, c);
  }
}

// Two keys are a row of pairs in the packed operand.
struct PackedPairs {
  char* packed;
  int64_t tile_bytes;
  ATBFN_INLINE void Put(const PackedPairs& to, int64_t key, int64_t t, VF first, VF second, bool) {
    const __m512i half_unit = _mm512_set1_epi32(0x8000);
    const __m512i a = _mm512_add_epi32(reinterpret_cast<__m512i>(first), half_unit);
    const __m512i b = _mm512_add_epi32(reinterpret_cast<__m512i>(second), half_unit);
    // The low half from a's upper bits, the high half from b's. Exponentials are not negative and at most 1.
    const __m512i pair = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(a, 16), b);
    _mm512_store_si512(to.packed + t / kTile * to.tile_bytes + key * 32, pair);
  }
};

// Keys are a multiple of kStep, so nothing is left to be zero.
static void SoftmaxPacked(const SoftmaxArgs& a, void* packed) {
  SoftmaxTo(a, PackedPairs{static_cast<char*>(packed), PartBytes(a.keys)});
}

}  // namespace ATBFN_ISA

const Kernels& AmxKernels() {
  using namespace isa_amx;
  static const Kernels kernels = [] {
    Kernels k = VectorKernels("amx");
    k.many[0] = {"amx", PackedBytes<Bf16>, Pack<Bf16>, ScratchBytes<Bf16>, Panel<Bf16>, SoftmaxPacked};
    k.many[1] = {"amx", PackedBytes<F16>, Pack<F16>, ScratchBytes<F16>, Panel<F16>, nullptr};
    k.many[2] = {"amx", PackedBytes<float>, Pack<float>, ScratchBytes<float>, Panel<float>, nullptr};
    k.max_few[0] = 4;
    k.begin = Begin;
    k.end = End;
    return k;
  }();
  return kernels;
}

}  // namespace atbfn
