// The kernels of one instruction set, written once with the compiler's vector types and compiled for each set.
//
// A file that includes this defines ATBFN_ISA (a namespace of its own) and is compiled with the set's flags. Nothing here
// may call functions of the standard library that are compiled into the caller: the linker keeps one copy of an inline
// function, and it could be one that an older machine cannot run.
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "cpu/isa.h"

namespace atbfn {
namespace ATBFN_ISA {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif
constexpr int64_t kParts = kTile / kLanes;  // vectors in a tile of tokens

typedef float VF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VH __attribute__((vector_size(kLanes * 2)));

#define ATBFN_INLINE static inline __attribute__((always_inline))

template <class T>
ATBFN_INLINE T Smaller(T a, T b) {
  return b < a ? b : a;
}
template <class T>
ATBFN_INLINE T Larger(T a, T b) {
  return a < b ? b : a;
}

ATBFN_INLINE VF Splat(float x) { return VF{} + x; }
ATBFN_INLINE VF Bits(VU x) {
  VF y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
ATBFN_INLINE VU Bits(VF x) {
  VU y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

ATBFN_INLINE VF Load(const float* p) {
  VF v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
ATBFN_INLINE void Store(float* p, VF v) { std::memcpy(p, &v, sizeof v); }

ATBFN_INLINE VF Load(const Bf16* p) {
  VH h;
  std::memcpy(&h, p, sizeof h);
  return Bits(__builtin_convertvector(h, VU) << 16);
}
ATBFN_INLINE VH ToBf16(VF x) {
  const VU u = Bits(x);
  const VU rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const VU nan = (u >> 16) | 0x40;
  return __builtin_convertvector((u & 0x7fffffff) > 0x7f800000 ? nan : rounded, VH);
}
ATBFN_INLINE void Store(Bf16* p, VF x) {
  const VH h = ToBf16(x);
  std::memcpy(p, &h, sizeof h);
}

// One fp16 number, for where there are no instructions for it.
ATBFN_INLINE float WidenF16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7fff;
  uint32_t u;
  if (rest >= 0x7c00) {
    u = sign | 0x7f800000 | (rest << 13);
  } else if (rest >= 0x400) {
    u = sign | ((rest << 13) + 0x38000000);
  } else {
    float f = static_cast<float>(rest) * 0x1p-24f;
    std::memcpy(&u, &f, 4);
    u |= sign;
  }
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
ATBFN_INLINE uint16_t NarrowF16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  u &= 0x7fffffff;
  if (u > 0x7f800000) return sign | 0x7e00 | static_cast<uint16_t>((u >> 13) & 0x3ff);
  if (u >= 0x47800000) return sign | 0x7c00;  // 65536 and more
  if (u < 0x38800000) {                       // subnormal: the addition rounds at the right place
    float x;
    std::memcpy(&x, &u, 4);
    x += 0.5f;
    std::memcpy(&u, &x, 4);
    return sign | static_cast<uint16_t>(u - 0x3f000000);
  }
  u += 0xfff + ((u >> 13) & 1);
  return sign | static_cast<uint16_t>((u - 0x38000000) >> 13);
}

ATBFN_INLINE VF Load(const F16* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<VF>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__F16C__)
  return reinterpret_cast<VF>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  VF v;
  for (int64_t i = 0; i < kLanes; ++i) v[i] = WidenF16(p[i].bits);
  return v;
#endif
}
ATBFN_INLINE void Store(F16* p, VF x) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(reinterpret_cast<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm256_cvtps_ph(reinterpret_cast<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
#else
  for (int64_t i = 0; i < kLanes; ++i) p[i].bits = NarrowF16(x[i]);
#endif
}

// The first n < kLanes elements; the others read as zero.
template <class T>
ATBFN_INLINE VF LoadSome(const T* p, int64_t n) {
  T some[kLanes];
  std::memset(some, 0, sizeof some);
  std::memcpy(some, p, static_cast<size_t>(n) * sizeof(T));
  return Load(some);
}
template <class T>
ATBFN_INLINE void StoreSome(T* p, VF x, int64_t n) {
  T some[kLanes];
  Store(some, x);
  std::memcpy(p, some, static_cast<size_t>(n) * sizeof(T));
}
template <class T>
ATBFN_INLINE VF LoadUpTo(const T* p, int64_t n) {
  return n >= kLanes ? Load(p) : LoadSome(p, n);
}
template <class T>
ATBFN_INLINE void StoreUpTo(T* p, VF x, int64_t n) {
  n >= kLanes ? Store(p, x) : StoreSome(p, x, n);
}

ATBFN_INLINE float Widen(const float* p) { return *p; }
ATBFN_INLINE float Widen(const Bf16* p) {
  const uint32_t u = static_cast<uint32_t>(p->bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
ATBFN_INLINE float Widen(const F16* p) {
#if defined(__F16C__)
  return _cvtsh_ss(p->bits);
#else
  return WidenF16(p->bits);
#endif
}

ATBFN_INLINE float Sum(VF v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#else
  float s[kLanes];
  Store(s, v);
  for (int64_t width = kLanes / 2; width; width /= 2)
    for (int64_t i = 0; i < width; ++i) s[i] += s[i + width];
  return s[0];
#endif
}

ATBFN_INLINE VF Max(VF a, VF b) { return a < b ? b : a; }  // keeps a NaN of a, passes over one of b
ATBFN_INLINE VF Min(VF a, VF b) { return a > b ? b : a; }

// e^x, relative error below 2e-7 for x in [-87, 88]; 0 below, saturated above, NaN for NaN.
ATBFN_INLINE VF Exp(VF x) {
  const VF clamped = Min(x, Splat(88.3762626647950f));
  const VF magic = Splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VF shifted = clamped * 1.44269504088896341f + magic;
  const VF n = shifted - magic;
  VF r = clamped - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  VF p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const VF power = Bits((Bits(shifted) << 23) + 0x3f800000u);
  return x < -87.0f ? VF{} : p * power;
}

ATBFN_INLINE VF Tanh(VF x) {
  // The sign is put back at the end: for small |x| the quotient alone would cancel to nothing.
  const VF a = Bits(Bits(x) & 0x7fffffff);
  const VF e = Exp(-2.0f * a);
  const VF large = (1.0f - e) / (1.0f + e);
  const VF x2 = x * x;
  const VF small = x + x * x2 * (-1.0f / 3 + x2 * (2.0f / 15 + x2 * (-17.0f / 315 + x2 * (62.0f / 2835))));
  const VF signed_large = Bits(Bits(large) | (Bits(x) & 0x80000000u));
  return a < 0.25f ? small : signed_large;
}

// Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: absolute error below 1.5e-7. A series near zero.
ATBFN_INLINE VF Erf(VF x) {
  const VF a = Bits(Bits(x) & 0x7fffffff);
  const VF t = 1.0f / (1.0f + 0.3275911f * a);
  VF p = t * 1.061405429f + -1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t + -0.284496736f;
  p = p * t + 0.254829592f;
  const VF large = 1.0f - p * t * Exp(-(a * a));
  const VF x2 = x * x;
  const VF small = x * (1.1283791671f + x2 * (-0.3761263890f + x2 * (0.1128379167f + x2 * (-0.0268661706f + x2 * 0.0052239776f))));
  const VF signed_large = Bits(Bits(large) | (Bits(x) & 0x80000000u));
  return a < 0.3f ? small : signed_large;
}

template <Activation kind>
ATBFN_INLINE VF Act(VF x) {
  if constexpr (kind == Activation::kSilu) {
    // A NaN stays one; minus infinity gives -0 as x / (1 + e^-x) would not (inf / inf).
    const VF y = x / (1.0f + Exp(-x));
    return x < -1e30f ? VF{} : y;
  }
  if constexpr (kind == Activation::kGelu) {
    const VF y = 0.5f * x * (1.0f + Erf(x * 0.70710678118654752f));
    return x < -1e30f ? VF{} * x : y;  // as the formula: -inf * 0 is NaN
  }
  if constexpr (kind == Activation::kGeluTanh)
    return 0.5f * x * (1.0f + Tanh(0.79788456080286536f * (x + 0.044715f * (x * x * x))));
  if constexpr (kind == Activation::kRelu) return x < 0.0f ? VF{} : x;
  return x;
}

// Dispatch on a dtype: `f` gets a null pointer of its element type.
template <class F>
ATBFN_INLINE void WithType(Dtype dtype, F f) {
  switch (dtype) {
    case Dtype::kBf16:
      return f(static_cast<Bf16*>(nullptr));
    case Dtype::kF16:
      return f(static_cast<F16*>(nullptr));
    case Dtype::kF32:
      return f(static_cast<float*>(nullptr));
  }
}
template <class T>
struct Unpointer;
template <class T>
struct Unpointer<T*> {
  using type = T;
};

static void WidenRow(Dtype dtype, const void* from, float* to, int64_t n) {
  WithType(dtype, [&](auto* tag) {
    using T = typename Unpointer<decltype(tag)>::type;
    const T* p = static_cast<const T*>(from);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Store(to + i, Load(p + i));
    for (; i < n; ++i) to[i] = Widen(p + i);
  });
}

static void NarrowRow(Dtype dtype, const float* from, void* to, int64_t n) {
  WithType(dtype, [&](auto* tag) {
    using T = typename Unpointer<decltype(tag)>::type;
    T* p = static_cast<T*>(to);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Store(p + i, Load(from + i));
    if (i < n) StoreSome(p + i, LoadSome(from + i, n - i), n - i);
  });
}

static void WidenSum(Dtype dtype, const void* a, const void* b, float* to, int64_t n) {
  WithType(dtype, [&](auto* tag) {
    using T = typename Unpointer<decltype(tag)>::type;
    const T* p = static_cast<const T*>(a);
    const T* q = static_cast<const T*>(b);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) Store(to + i, Load(p + i) + Load(q + i));
    for (; i < n; ++i) to[i] = Widen(p + i) + Widen(q + i);
  });
}

// Squares of values beyond 2^50 may overflow once summed, and without an eps to hide them those of values below 2^-30
// vanish. Such rows are scaled by a power of two, which is exact, and eps with them.
static void NormRow(const NormArgs& args, float* row, int64_t n, float* mean_out, float* rstd_out) {
  const int64_t whole = n / kLanes * kLanes;
  VF sums[4] = {}, squares[4] = {};
  VF largest{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= whole; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const VF x = Load(row + i + j * kLanes);
      sums[j] += x;
      squares[j] += x * x;
      largest = Max(largest, Bits(Bits(x) & 0x7fffffff));
    }
  for (; i < n; i += kLanes) {
    const VF x = LoadUpTo(row + i, n - i);
    sums[0] += x;
    squares[0] += x * x;
    largest = Max(largest, Bits(Bits(x) & 0x7fffffff));
  }
  float top = 0;
  for (int64_t j = 0; j < kLanes; ++j) top = top < largest[j] ? largest[j] : top;
  float shrink = top > 0x1p50f ? 0x1p-80f : 1.0f;
  if (args.eps == 0 && top > 0 && top < 0x1p-30f) shrink = 0x1p80f;
  const float inverse = 1.0f / static_cast<float>(n);
  float mean = 0, square = 0;
  if (!args.center && shrink == 1.0f) {
    square = Sum((squares[0] + squares[1]) + (squares[2] + squares[3])) * inverse;
  } else {
    if (args.center) {
      if (shrink == 1.0f) {
        mean = Sum((sums[0] + sums[1]) + (sums[2] + sums[3])) * inverse;
      } else {
        VF sum{};
        for (i = 0; i < n; i += kLanes) sum += LoadUpTo(row + i, n - i) * shrink;
        mean = Sum(sum) * inverse;
      }
    }
    // The variance from the centred values: the difference of two large numbers would cancel.
    VF parts[4] = {};
    for (i = 0; i + 4 * kLanes <= whole; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) {
        const VF x = Load(row + i + j * kLanes) * shrink - mean;
        parts[j] += x * x;
      }
    for (; i < whole; i += kLanes) {
      const VF x = Load(row + i) * shrink - mean;
      parts[0] += x * x;
    }
    float rest = 0;
    for (; i < n; ++i) {
      const float x = row[i] * shrink - mean;
      rest += x * x;
    }
    square = (Sum((parts[0] + parts[1]) + (parts[2] + parts[3])) + rest) * inverse;
  }
  const float total = args.eps == 0 ? square : square + args.eps * shrink * shrink;
  const float rstd = 1.0f / __builtin_sqrtf(total);
  if (mean_out) *mean_out = mean / shrink;
  if (rstd_out) *rstd_out = rstd * shrink;
  for (i = 0; i < n; i += kLanes) {
    VF y = (LoadUpTo(row + i, n - i) * shrink - mean) * rstd;
    if (args.gamma) y *= LoadUpTo(args.gamma + i, n - i);
    if (args.beta) y += LoadUpTo(args.beta + i, n - i);
    StoreUpTo(row + i, y, n - i);
  }
}

#if defined(__AVX512F__)
// 16 rows of 16 floats, transposed in registers.
ATBFN_INLINE void Transpose16(__m512 r[16]) {
  __m512 t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(t[4 * i]), b = _mm512_castps_pd(t[4 * i + 1]);
    const __m512d c = _mm512_castps_pd(t[4 * i + 2]), d = _mm512_castps_pd(t[4 * i + 3]);
    r[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    r[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    r[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    r[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}
#endif

// to [n, kTile] (leading dim ld_to) = from [rows <= kTile, n] (leading dim ld_from), transposed.
static void Transpose(const float* from, int64_t ld_from, int64_t rows, int64_t n, float* to, int64_t ld_to) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    __m512 r[16];
    for (int64_t j = 0; j < 16; ++j) r[j] = j < rows ? _mm512_loadu_ps(from + j * ld_from + i) : _mm512_setzero_ps();
    Transpose16(r);
    for (int64_t j = 0; j < 16; ++j) _mm512_storeu_ps(to + (i + j) * ld_to, r[j]);
  }
#endif
  for (; i < n; ++i)
    for (int64_t j = 0; j < kTile; ++j) to[i * ld_to + j] = j < rows ? from[j * ld_from + i] : 0.0f;
}

template <Activation kind>
static void ActivateAs(bool gated, const float* bias_gate, const float* bias_up, float* c, int64_t ldc, int64_t rows,
                       int64_t columns) {
  for (int64_t f = 0; f < rows; ++f) {
    float* gate = c + f * ldc;
    if (gated) {
      const float* up = c + (kHalf + f) * ldc;
      const float bg = bias_gate ? bias_gate[f] : 0, bu = bias_up ? bias_up[f] : 0;
      for (int64_t t = 0; t < columns; t += kLanes)
        Store(gate + t, Act<kind>(Load(gate + t) + bg) * (Load(up + t) + bu));
    } else {
      const float b = bias_up ? bias_up[f] : 0;
      for (int64_t t = 0; t < columns; t += kLanes) Store(gate + t, Act<kind>(Load(gate + t) + b));
    }
  }
}

static void Activate(Activation activation, bool gated, const float* bias_gate, const float* bias_up, float* c,
                     int64_t ldc, int64_t rows, int64_t columns) {
  switch (activation) {
    case Activation::kIdentity:
      return ActivateAs<Activation::kIdentity>(gated, bias_gate, bias_up, c, ldc, rows, columns);
    case Activation::kSilu:
      return ActivateAs<Activation::kSilu>(gated, bias_gate, bias_up, c, ldc, rows, columns);
    case Activation::kGelu:
      return ActivateAs<Activation::kGelu>(gated, bias_gate, bias_up, c, ldc, rows, columns);
    case Activation::kGeluTanh:
      return ActivateAs<Activation::kGeluTanh>(gated, bias_gate, bias_up, c, ldc, rows, columns);
    case Activation::kRelu:
      return ActivateAs<Activation::kRelu>(gated, bias_gate, bias_up, c, ldc, rows, columns);
  }
}

template <class T>
static void FinishAs(const float* c, int64_t ldc, int64_t features, int64_t tokens, const float* bias,
                     const T* residual, T* out, int64_t ld, float* wide, int64_t ld_wide) {
  float tile[kTile * kGroup];  // [token, feature]
  for (int64_t t0 = 0; t0 < tokens; t0 += kTile) {
    Transpose(c + t0, ldc, kHalf, kTile, tile, kGroup);
    Transpose(c + kHalf * ldc + t0, ldc, kHalf, kTile, tile + kHalf, kGroup);
    const int64_t count = Smaller(kTile, tokens - t0);
    for (int64_t t = 0; t < count; ++t)
      for (int64_t f = 0; f < features; f += kLanes) {
        const int64_t n = features - f;
        VF y = Load(tile + t * kGroup + f);
        if (bias) y += LoadUpTo(bias + f, n);
        if (residual) y += LoadUpTo(residual + (t0 + t) * ld + f, n);
        if (wide)
          StoreUpTo(wide + (t0 + t) * ld_wide + f, y, n);
        else
          StoreUpTo(out + (t0 + t) * ld + f, y, n);
      }
  }
}

static void Finish(Dtype dtype, const float* c, int64_t ldc, int64_t features, int64_t tokens, const float* bias,
                   const void* residual, void* out, int64_t ld, float* wide, int64_t ld_wide) {
  WithType(dtype, [&](auto* tag) {
    using T = typename Unpointer<decltype(tag)>::type;
    FinishAs<T>(c, ldc, features, tokens, bias, static_cast<const T*>(residual), static_cast<T*>(out), ld, wide,
                ld_wide);
  });
}

static void Rotate(float* q, const float* cos, const float* sin, int64_t half, bool interleaved) {
  if (interleaved) {
    for (int64_t i = 0; i < half; ++i) {
      const float a = q[2 * i], b = q[2 * i + 1];
      q[2 * i] = a * cos[i] - b * sin[i];
      q[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i;
    const VF a = LoadUpTo(q + i, n), b = LoadUpTo(q + half + i, n);
    const VF c = LoadUpTo(cos + i, n), s = LoadUpTo(sin + i, n);
    const VF first = a * c - b * s, second = b * c + a * s;
    StoreUpTo(q + i, first, n);
    StoreUpTo(q + half + i, second, n);
  }
}

ATBFN_INLINE bool FiniteBits(const Bf16& x) { return (x.bits & 0x7f80) != 0x7f80; }
ATBFN_INLINE bool FiniteBits(const F16& x) { return (x.bits & 0x7c00) != 0x7c00; }
ATBFN_INLINE bool FiniteBits(const float& x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return (u & 0x7f800000) != 0x7f800000;
}

template <class T>
static bool TransposeValuesAs(const T* from, int64_t ld_from, int64_t rows, int64_t columns, T* to, int64_t ld_to,
                              int64_t padded) {
  bool finite = true;
  int64_t r = 0;
#if defined(__AVX512BW__)
  if constexpr (sizeof(T) == 2) {
    // Two rows side by side are one row of 32 bit elements, so 32 rows x 16 columns are a 16 x 16 transposition.
    const __m256i mask = _mm256_set1_epi16(FiniteBits(T{0x7c00}) ? 0x7f80 : 0x7c00);  // the exponent's bits
    __mmask16 odd = 0;
    for (; r + 32 <= rows; r += 32) {
      int64_t c = 0;
      for (; c + 16 <= columns; c += 16) {
        __m512 t[16];
        for (int64_t i = 0; i < 16; ++i) {
          const T* p = from + (r + 2 * i) * ld_from + c;
          const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
          const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + ld_from));
          odd |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(a, mask), mask);
          odd |= _mm256_cmpeq_epi16_mask(_mm256_and_si256(b, mask), mask);
          const __m512i wide = _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
          t[i] = _mm512_castsi512_ps(wide);
        }
        Transpose16(t);
        for (int64_t i = 0; i < 16; ++i) _mm512_storeu_ps(to + (c + i) * ld_to + r, t[i]);
      }
      for (; c < columns; ++c)
        for (int64_t i = 0; i < 32; ++i) {
          to[c * ld_to + r + i] = from[(r + i) * ld_from + c];
          finite = finite && FiniteBits(from[(r + i) * ld_from + c]);
        }
    }
    finite = finite && odd == 0;
  }
#endif
  for (; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      to[c * ld_to + r] = from[r * ld_from + c];
      finite = finite && FiniteBits(from[r * ld_from + c]);
    }
  for (; r < padded; ++r)
    for (int64_t c = 0; c < columns; ++c) to[c * ld_to + r] = T{};
  return finite;
}

static bool TransposeValues(Dtype dtype, const void* from, int64_t ld_from, int64_t rows, int64_t columns, void* to,
                            int64_t ld_to, int64_t padded) {
  bool finite = true;
  WithType(dtype, [&](auto* tag) {
    using T = typename Unpointer<decltype(tag)>::type;
    finite = TransposeValuesAs<T>(static_cast<const T*>(from), ld_from, rows, columns, static_cast<T*>(to), ld_to, padded);
  });
  return finite;
}

// 2^x, relative error below 3e-7; 0 far below, NaN for NaN. For the softmax, where it is most of the work.
ATBFN_INLINE VF Exp2(VF x) {
#if defined(__AVX512F__)
  const __m512 v = reinterpret_cast<__m512>(x);
  // x - floor(x), and 2^floor(x) put on by the same rule at the end. Of minus infinity the remainder is 0.
  const VF r = reinterpret_cast<VF>(_mm512_reduce_ps(v, 0x01));
  VF p = r * 1.879318625e-3f + 8.990995142e-3f;
  p = p * r + 5.581867593e-2f;
  p = p * r + 2.401592715e-1f;
  p = p * r + 6.931517388e-1f;
  p = p * r + 1.0f;  // exactly 1 at 0 and 2 at 1: a lone key has probability 1
  return reinterpret_cast<VF>(_mm512_scalef_ps(reinterpret_cast<__m512>(p), v));
#else
  return Exp(x * 0.693147180559945309f);
#endif
}

// Keeps a product from being joined with a sum into one instruction, which would not round it.
ATBFN_INLINE VF Rounded(VF x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#elif defined(__x86_64__)
  asm("" : "+x"(x));
#elif defined(__aarch64__)
  asm("" : "+w"(x));
#endif
  return x;
}

// Where the softmax puts the exponentials of two neighbouring keys for a vector of queries: back where the scores were.
struct InPlace {
  float* s;
  int64_t ld;
  ATBFN_INLINE void Put(const InPlace& to, int64_t key, int64_t t, VF first, VF second, bool both) {
    Store(to.s + key * to.ld + t, first);
    if (both) Store(to.s + (key + 1) * to.ld + t, second);
  }
};

// Two passes over the block: the maximum, then the exponentials. Lanes are queries, so neither reduces across lanes. A
// NaN score is passed over by the first and makes the sum of the second a NaN.
template <bool masked, bool capped, class Sink>
static void SoftmaxAs(const SoftmaxArgs& a, const Sink& sink) {
  constexpr float kMinusInf = -__builtin_inff();
  constexpr float kLog2e = 1.44269504088896341f;
  const bool rewrite = masked || capped || !(a.scale > 0);
  for (int64_t t = 0; t < a.columns; t += kLanes) {
    const VF old_top = Load(a.top + t);
    VI low{}, high{}, leading{};
    if (masked && a.low) {
      std::memcpy(&low, a.low + t, sizeof low);
      std::memcpy(&high, a.high + t, sizeof high);
      std::memcpy(&leading, a.leading + t, sizeof leading);
    }
    VF tops[4] = {Splat(kMinusInf), Splat(kMinusInf), Splat(kMinusInf), Splat(kMinusInf)};
    if (!rewrite) {
      int64_t j = 0;
      for (; j + 4 <= a.keys; j += 4)
        for (int64_t i = 0; i < 4; ++i) tops[i] = Max(tops[i], Load(a.s + (j + i) * a.ld + t));
      for (; j < a.keys; ++j) tops[0] = Max(tops[0], Load(a.s + j * a.ld + t));
    } else {
      for (int64_t j = 0; j < a.keys; ++j) {
        float* p = a.s + j * a.ld + t;
        VF s = Load(p) * a.scale;
        if (capped) s = a.softcap * Tanh(s / a.softcap);
        if (masked) {
          VI may = VI{} - 1;
          if (a.low) {
            const VI key = VI{} + (a.first_key + static_cast<int32_t>(j));
            may = (key < high) & ((key >= low) | (key < leading));
          }
          if (a.allowed) {
            const uint8_t* b = a.allowed + j * a.columns + t;
            VI bytes;
            for (int64_t i = 0; i < kLanes; ++i) bytes[i] = b[i] ? -1 : 0;
            may &= bytes;
          }
          s = may ? s : Splat(kMinusInf);
        }
        Store(p, s);
        tops[0] = Max(tops[0], s);
      }
    }
    const float factor = rewrite ? 1.0f : a.scale, factor2 = factor * kLog2e;
    const VF largest = Max(Max(tops[0], tops[1]), Max(tops[2], tops[3]));
    const VF top = Max(old_top, largest * factor);
    // In powers of two, by the same two roundings as every score below: the largest itself comes out as exactly 1.
    const VF top2 = Max(Rounded(old_top * kLog2e), Rounded(largest * factor2));
    const VF shift = top2 == kMinusInf ? VF{} : top2;
    VF sums[2] = {};
    int64_t j = 0;
    for (; j + 2 <= a.keys; j += 2) {
      const VF first = Exp2(Rounded(Load(a.s + j * a.ld + t) * factor2) - shift);
      const VF second = Exp2(Rounded(Load(a.s + (j + 1) * a.ld + t) * factor2) - shift);
      sums[0] += first;
      sums[1] += second;
      Sink::Put(sink, j, t, first, second, true);
    }
    if (j < a.keys) {
      const VF first = Exp2(Rounded(Load(a.s + j * a.ld + t) * factor2) - shift);
      sums[0] += first;
      Sink::Put(sink, j, t, first, VF{}, false);
    }
    const VF rescale = Exp2(Rounded(old_top * kLog2e) - shift);
    Store(a.rescale + t, rescale);
    Store(a.total + t, Load(a.total + t) * rescale + (sums[0] + sums[1]));
    Store(a.top + t, top);
  }
}

template <class Sink>
static void SoftmaxTo(const SoftmaxArgs& a, const Sink& sink) {
  const bool masked = a.low != nullptr || a.allowed != nullptr;
  if (masked)
    a.softcap != 0 ? SoftmaxAs<true, true>(a, sink) : SoftmaxAs<true, false>(a, sink);
  else
    a.softcap != 0 ? SoftmaxAs<false, true>(a, sink) : SoftmaxAs<false, false>(a, sink);
}

static void Softmax(const SoftmaxArgs& a) { SoftmaxTo(a, InPlace{a.s, a.ld}); }

// kRows x kVectors accumulators stay in registers while the keys go by.
template <class T, int kRows, int kVectors>
static bool WeightedSumOf(const float* p, int64_t ld_p, const T* v, int64_t ld_v, int64_t keys, int64_t valid,
                          float* out, int64_t ld_out) {
  constexpr int64_t kAhead = 24;  // keys to fetch ahead
  VF acc[kRows][kVectors];
  VF odd{};
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kVectors; ++j)
      acc[r][j] = (j + 1) * kLanes <= valid ? Load(out + r * ld_out + j * kLanes)
                                            : LoadSome(out + r * ld_out + j * kLanes, valid - j * kLanes);
  for (int64_t key = 0; key < keys; ++key) {
    VF x[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      const T* from = v + key * ld_v + j * kLanes;
      x[j] = (j + 1) * kLanes <= valid ? Load(from) : LoadSome(from, valid - j * kLanes);
      odd += x[j] * 0.0f;
    }
    for (int64_t line = 0; line < kVectors * kLanes * static_cast<int64_t>(sizeof(T)); line += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(v + (key + kAhead) * ld_v) + line, 0, 2);
    for (int r = 0; r < kRows; ++r) {
      const float weight = p[key * ld_p + r];
      for (int j = 0; j < kVectors; ++j) acc[r][j] += weight * x[j];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int j = 0; j < kVectors; ++j)
      StoreUpTo(out + r * ld_out + j * kLanes, acc[r][j], valid - j * kLanes);
  return Sum(odd) == 0.0f;
}

template <class T, int kRows>
static bool WeightedSumAs(const float* p, int64_t ld_p, const T* v, int64_t ld_v, int64_t keys, int64_t columns,
                          float* out, int64_t ld_out) {
  constexpr int kVectors = kLanes == 16 ? (kRows <= 2 ? 8 : kRows <= 4 ? 4 : 2) : (kRows <= 2 ? 4 : 1);
  // Few keys at a time, so that the later columns of their rows are still in the nearest cache.
  constexpr int64_t kKeys = 64;
  bool finite = true;
  for (int64_t key = 0; key < keys; key += kKeys) {
    const int64_t count = Smaller(kKeys, keys - key);
    int64_t c = 0;
    for (; c + kVectors * kLanes <= columns; c += kVectors * kLanes)
      finite &= WeightedSumOf<T, kRows, kVectors>(p + key * ld_p, ld_p, v + key * ld_v + c, ld_v, count,
                                                  kVectors * kLanes, out + c, ld_out);
    for (; c < columns; c += kLanes)
      finite &= WeightedSumOf<T, kRows, 1>(p + key * ld_p, ld_p, v + key * ld_v + c, ld_v, count,
                                           Smaller(kLanes, columns - c), out + c, ld_out);
  }
  return finite;
}

static bool WeightedSum(Dtype dtype, const float* p, int64_t ld_p, const void* v, int64_t ld_v, int64_t keys,
                        int64_t rows, int64_t columns, float* out, int64_t ld_out) {
  bool finite = true;
  WithType(dtype, [&](auto* tag) {
    using T = typename Unpointer<decltype(tag)>::type;
    const T* from = static_cast<const T*>(v);
    switch (rows) {
#define ATBFN_ROWS(n)                                                                        \
  case n:                                                                                    \
    finite = WeightedSumAs<T, n>(p, ld_p, from, ld_v, keys, columns, out, ld_out);           \
    break;
      ATBFN_ROWS(1)
      ATBFN_ROWS(2)
      ATBFN_ROWS(3)
      ATBFN_ROWS(4)
      ATBFN_ROWS(5)
      ATBFN_ROWS(6)
      ATBFN_ROWS(7)
      ATBFN_ROWS(8)
#undef ATBFN_ROWS
    }
  });
  return finite;
}

static void ScaleColumns(float* x, int64_t ld, int64_t n, int64_t columns, const float* factors) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t t = 0; t < columns; t += kLanes) Store(x + i * ld + t, Load(x + i * ld + t) * Load(factors + t));
}

// Products on vectors. X is packed as [tile, k, kTile] in fp32; weights are widened, a chunk of k at a time.

static int64_t VectorPackedBytes(int64_t k, int64_t tokens) { return RoundUp(tokens, kTile) * k * 4; }

static void VectorPack(const float* cols, int64_t ld, int64_t k0, int64_t k_count, int64_t k, int64_t token,
                       int64_t tokens, int64_t, void* packed) {
  float* to = static_cast<float*>(packed);
  for (int64_t t = 0; t < tokens; t += kTile)
    for (int64_t i = 0; i < k_count; ++i) {
      float* tile = to + (token + t) * k + (k0 + i) * kTile;
      const float* from = cols + i * ld + t;
      const int64_t count = Smaller(kTile, tokens - t);
      for (int64_t j = 0; j < kTile; ++j) tile[j] = j < count ? from[j] : 0.0f;
    }
}

constexpr int64_t kChunk = 256;  // k at a time: kGroup rows of it in fp32 are 32 KiB

static int64_t VectorScratchBytes(int64_t) { return kGroup * kChunk * 4; }

// kRows rows of W (fp32, leading dim kChunk) times kVectors vectors of tokens.
template <int kRows, int kVectors>
static void VectorBlock(const float* w, const float* x, int64_t k_stride_tile, int64_t n, float* c, int64_t ldc,
                        bool accumulate) {
  VF acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) acc[r][v] = accumulate ? Load(c + r * ldc + v * kLanes) : VF{};
  for (int64_t k = 0; k < n; ++k) {
    VF b[kVectors];
    for (int v = 0; v < kVectors; ++v)
      b[v] = Load(x + (v / kParts) * k_stride_tile + k * kTile + (v % kParts) * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float a = w[r * kChunk + k];
      for (int v = 0; v < kVectors; ++v) acc[r][v] += a * b[v];
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) Store(c + r * ldc + v * kLanes, acc[r][v]);
}

ATBFN_INLINE void PrefetchSome(const void* base, int64_t bytes, int64_t part, int64_t parts) {
  if (!base) return;
  const int64_t each = RoundUp(CeilDiv(bytes, parts), 64);
  const char* p = static_cast<const char*>(base) + part * each;
  const int64_t n = Smaller(each, bytes - part * each);
  for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(p + i, 0, 2);
}

template <class T>
static void VectorPanel(const PanelArgs& a) {
  constexpr int kTiles = kLanes == 16 ? 3 : 1;
  constexpr int kRows = kLanes == 16 ? 8 : kLanes == 8 ? 4 : 2;
  float* wide = static_cast<float*>(a.scratch);
  const float* x = static_cast<const float*>(a.packed);
  const int64_t columns = RoundUp(a.tokens, kTile);
  for (int64_t g = 0; g < a.groups; ++g) {
    float* c = a.c + g * kGroup * a.ldc;
    for (int64_t k0 = 0; k0 < a.k; k0 += kChunk) {
      const int64_t n = Smaller(kChunk, a.k - k0);
      for (int half = 0; half < 2; ++half) {
        const int64_t rows = g + 1 == a.groups ? a.rows[half] : kHalf;
        for (int64_t r = 0; r < kHalf; ++r) {
          float* to = wide + (half * kHalf + r) * kChunk;
          if (r >= rows) {
            std::memset(to, 0, static_cast<size_t>(n) * 4);
            continue;
          }
          const T* from = static_cast<const T*>(a.w[half]) + (g * a.step[half] + r) * a.ldw + k0;
          int64_t i = 0;
          for (; i + kLanes <= n; i += kLanes) Store(to + i, Load(from + i));
          for (; i < n; ++i) to[i] = Widen(from + i);
        }
      }
      const bool accumulate = a.accumulate || k0 > 0;
      for (int64_t t = 0; t < columns;) {
        const int64_t tiles = (columns - t) / kTile;
        const float* b = x + t * a.k + k0 * kTile;
        for (int64_t r = 0; r < kGroup; r += kRows) {
          const float* w = wide + r * kChunk;
          float* to = c + r * a.ldc + t;
          if (tiles >= kTiles)
            VectorBlock<kRows, kTiles * kParts>(w, b, a.k * kTile, n, to, a.ldc, accumulate);
          else if (kTiles == 3 && tiles == 2)
            VectorBlock<kRows, 2 * kParts>(w, b, a.k * kTile, n, to, a.ldc, accumulate);
          else
            VectorBlock<kRows, kParts>(w, b, a.k * kTile, n, to, a.ldc, accumulate);
        }
        t += kTile * (tiles >= kTiles ? kTiles : tiles);
      }
    }
  }
}

// Products for a few tokens: dot products of rows as they lie in memory. X is packed as fp32 rows [tokens, k].

static int64_t DotPackedBytes(int64_t k, int64_t tokens) { return tokens * k * 4; }

static void DotPack(const float* cols, int64_t ld, int64_t k0, int64_t k_count, int64_t k, int64_t token,
                    int64_t tokens, int64_t, void* packed) {
  float* to = static_cast<float*>(packed);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < k_count; ++i) to[(token + t) * k + k0 + i] = cols[i * ld + t];
}

static int64_t DotScratchBytes(int64_t) { return 0; }

constexpr int64_t kMaxDotTokens = 8;
constexpr int64_t kFetchAhead = 4096;  // bytes; what keeps memory busy on the machines measured

template <class T, int kRows, int kTokens>
static void Dots(const T* w, int64_t ldw, const float* x, int64_t k, float* c, int64_t ldc, bool accumulate,
                 const char* next, int64_t next_ld) {
  VF acc[kRows][kTokens] = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    VF b[kTokens];
    for (int t = 0; t < kTokens; ++t) b[t] = Load(x + t * k + i);
    for (int r = 0; r < kRows; ++r) {
      const VF a = Load(w + r * ldw + i);
      for (int t = 0; t < kTokens; ++t) acc[r][t] += a * b[t];
    }
    if (next && (i * static_cast<int64_t>(sizeof(T))) % 64 == 0)
      for (int r = 0; r < kRows; ++r) __builtin_prefetch(next + r * next_ld + i * static_cast<int64_t>(sizeof(T)), 0, 2);
  }
  if (i < k) {
    for (int r = 0; r < kRows; ++r) {
      const VF a = LoadSome(w + r * ldw + i, k - i);
      for (int t = 0; t < kTokens; ++t) acc[r][t] += a * LoadSome(x + t * k + i, k - i);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int t = 0; t < kTokens; ++t) {
      const float y = Sum(acc[r][t]);
      c[r * ldc + t] = accumulate ? c[r * ldc + t] + y : y;
    }
}

template <class T, int kTokens>
static void DotPanelOf(const PanelArgs& a) {
  // Accumulators fill the registers; with few tokens more rows keep more of memory's streams busy.
  constexpr int kRows = kLanes == 4 ? (kTokens <= 2 ? 4 : 1) : kTokens <= 2 ? 4 : kTokens <= 4 ? (kLanes == 16 ? 4 : 2) : (kLanes == 16 ? 2 : 1);
  const float* x = static_cast<const float*>(a.packed);
  const int64_t ld_bytes = a.ldw * static_cast<int64_t>(sizeof(T));
  for (int64_t g = 0; g < a.groups; ++g)
    for (int half = 0; half < 2; ++half) {
      const int64_t rows = g + 1 == a.groups ? a.rows[half] : kHalf;
      const T* w = static_cast<const T*>(a.w[half]) + g * a.step[half] * a.ldw;
      float* c = a.c + (g * kGroup + half * kHalf) * a.ldc;
      int64_t r = 0;
      // Fetched ahead: the next rows, or where rows are short those that come some KiB later.
      const int64_t ahead = RoundUp(Larger<int64_t>(kRows, kFetchAhead / ld_bytes), kRows);
      for (; r + kRows <= rows; r += kRows)
        Dots<T, kRows, kTokens>(w + r * a.ldw, a.ldw, x, a.k, c + r * a.ldc, a.ldc, a.accumulate,
                                reinterpret_cast<const char*>(w + (r + ahead) * a.ldw), ld_bytes);
      for (; r < rows; ++r)
        Dots<T, 1, kTokens>(w + r * a.ldw, a.ldw, x, a.k, c + r * a.ldc, a.ldc, a.accumulate, nullptr, 0);
      for (; r < kHalf; ++r)
        for (int64_t t = 0; t < kTokens; ++t) c[r * a.ldc + t] = a.accumulate ? c[r * a.ldc + t] : 0.0f;
    }
}

template <class T>
static void DotPanel(const PanelArgs& a) {
  switch (a.tokens) {
    case 1:
      return DotPanelOf<T, 1>(a);
    case 2:
      return DotPanelOf<T, 2>(a);
    case 3:
      return DotPanelOf<T, 3>(a);
    case 4:
      return DotPanelOf<T, 4>(a);
    case 5:
      return DotPanelOf<T, 5>(a);
    case 6:
      return DotPanelOf<T, 6>(a);
    case 7:
      return DotPanelOf<T, 7>(a);
    case 8:
      return DotPanelOf<T, 8>(a);
  }
}

static void Nothing() {}

static Kernels VectorKernels(const char* name) {
  Kernels k{};
  k.name = name;
  k.many[0] = {"vector", VectorPackedBytes, VectorPack, VectorScratchBytes, VectorPanel<Bf16>, nullptr};
  k.many[1] = {"vector", VectorPackedBytes, VectorPack, VectorScratchBytes, VectorPanel<F16>, nullptr};
  k.many[2] = {"vector", VectorPackedBytes, VectorPack, VectorScratchBytes, VectorPanel<float>, nullptr};
  k.few[0] = {"dot", DotPackedBytes, DotPack, DotScratchBytes, DotPanel<Bf16>, nullptr};
  k.few[1] = {"dot", DotPackedBytes, DotPack, DotScratchBytes, DotPanel<F16>, nullptr};
  k.few[2] = {"dot", DotPackedBytes, DotPack, DotScratchBytes, DotPanel<float>, nullptr};
  for (int i = 0; i < kDtypes; ++i) k.max_few[i] = kMaxDotTokens;
  k.begin = Nothing;
  k.end = Nothing;
  k.widen = WidenRow;
  k.narrow = NarrowRow;
  k.widen_sum = WidenSum;
  k.norm = NormRow;
  k.transpose = Transpose;
  k.activate = Activate;
  k.finish = Finish;
  k.rotate = Rotate;
  k.transpose_values = TransposeValues;
  k.softmax = Softmax;
  k.weighted_sum = WeightedSum;
  k.scale_columns = ScaleColumns;
  return k;
}

}  // namespace ATBFN_ISA
}  // namespace atbfn
