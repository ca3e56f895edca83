// Two versions of each loop: for processors with AVX2, and for any. They give the same bits.
#include "multiply.h"

#include <cmath>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#define ATBFN_AVX2 __attribute__((target("avx2,f16c")))
// Without FMA among the targets, the compiler cannot join the separate multiplication and addition.
#define ATBFN_FMA __attribute__((target("avx2,fma,f16c")))
#endif

namespace atbfn::emulator {

namespace {

#if defined(__x86_64__)
bool Fast() {
  static const bool fast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  return fast;
}
#else
constexpr bool Fast() { return false; }
#endif

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
  uint32_t word;
  if (exponent == 31) word = sign | 0x7f800000u | mantissa << 13 | (mantissa != 0 ? 0x400000u : 0u);  // quiet
  else if (exponent != 0) word = sign | (exponent + 112) << 23 | mantissa << 13;
  else {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;  // exact
    std::memcpy(&word, &value, 4);
    word |= sign;
  }
  float result;
  std::memcpy(&result, &word, 4);
  return result;
}

uint16_t FloatToHalf(float value) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000);
  word &= 0x7fffffff;
  if (word > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (word >> 13 & 0x3ff));
  if (word >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to 65536 or more
  if (word < 0x38800000) {                                             // below the normal halves: units of 2^-24
    float magnitude;
    std::memcpy(&magnitude, &word, 4);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  word += 0xfff + (word >> 13 & 1);
  return static_cast<uint16_t>(sign | ((word - 0x38000000) >> 13));
}

#if defined(__x86_64__)

ATBFN_AVX2 inline void Transpose8(__m256 r[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// 16 x 16 of 16 bits: pairs of rows interleave four times.
ATBFN_AVX2 void Transpose16Fast(__m256i* r) {
  __m256i t[16], u[16];
  // Exchange halves first, so that the unpacks below, which stay within 128 bits, reach all rows.
  for (int i = 0; i < 8; ++i) {
    t[i] = _mm256_permute2x128_si256(r[i], r[i + 8], 0x20);
    t[i + 8] = _mm256_permute2x128_si256(r[i], r[i + 8], 0x31);
  }
  // Each of t[0..7] holds, in its two halves, 8 columns of rows i and i + 8: two 8 x 8 transposes side by side.
  for (int h = 0; h < 16; h += 8) {
    for (int i = 0; i < 4; ++i) {
      u[h + 2 * i] = _mm256_unpacklo_epi16(t[h + 2 * i], t[h + 2 * i + 1]);
      u[h + 2 * i + 1] = _mm256_unpackhi_epi16(t[h + 2 * i], t[h + 2 * i + 1]);
    }
    __m256i v[8];
    for (int i = 0; i < 2; ++i) {
      v[4 * i] = _mm256_unpacklo_epi32(u[h + 4 * i], u[h + 4 * i + 2]);
      v[4 * i + 1] = _mm256_unpackhi_epi32(u[h + 4 * i], u[h + 4 * i + 2]);
      v[4 * i + 2] = _mm256_unpacklo_epi32(u[h + 4 * i + 1], u[h + 4 * i + 3]);
      v[4 * i + 3] = _mm256_unpackhi_epi32(u[h + 4 * i + 1], u[h + 4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      r[h + 2 * i] = _mm256_unpacklo_epi64(v[i], v[i + 4]);
      r[h + 2 * i + 1] = _mm256_unpackhi_epi64(v[i], v[i + 4]);
    }
  }
}

ATBFN_AVX2 void Transpose16Memory(uint16_t* to, const uint16_t* from) {
  __m256i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 16 * i));
  Transpose16Fast(r);
  for (int i = 0; i < 16; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 16 * i), r[i]);
}

ATBFN_AVX2 void FractalToFloatsFast(float* to, const uint8_t* from, DType dtype) {
  if (dtype == DType::F32) {
    for (int h = 0; h < 2; ++h) {
      __m256 r[8];
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(from + (8 * h + i) * 32));
      Transpose8(r);
      for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + 16 * i + 8 * h, r[i]);
    }
    return;
  }
  __m256i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32 * i));
  Transpose16Fast(r);
  for (int i = 0; i < 16; ++i) {
    const __m128i low = _mm256_castsi256_si128(r[i]), high = _mm256_extracti128_si256(r[i], 1);
    __m256 a, b;
    if (dtype == DType::F16) {
      a = _mm256_cvtph_ps(low);
      b = _mm256_cvtph_ps(high);
    } else {
      a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16));
      b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16));
    }
    _mm256_storeu_ps(to + 16 * i, a);
    _mm256_storeu_ps(to + 16 * i + 8, b);
  }
}

ATBFN_AVX2 void HalvesToFloats(float* to, const uint8_t* from, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i))));
  for (; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = HalfToFloat(bits);
  }
}

ATBFN_AVX2 void FloatsToHalves(uint16_t* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  for (; i < count; ++i) to[i] = FloatToHalf(from[i]);
}

// R rows at a time: 2 R sums in registers (hence the unrolling), so that their latencies overlap.
template <int R>
ATBFN_FMA inline void RowsFused(float* c, int64_t c_pitch, const float* a, int64_t a_pitch, const float* b, int64_t k) {
  __m256 sum[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) sum[r][h] = _mm256_loadu_ps(c + r * c_pitch + 8 * h);
  for (int64_t i = 0; i < k; ++i) {
    const __m256 b0 = _mm256_load_ps(b + 16 * i), b1 = _mm256_load_ps(b + 16 * i + 8);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * a_pitch + i);
      sum[r][0] = _mm256_fmadd_ps(x, b0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(x, b1, sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) _mm256_storeu_ps(c + r * c_pitch + 8 * h, sum[r][h]);
}

template <int R>
ATBFN_AVX2 inline void RowsApart(float* c, int64_t c_pitch, const float* a, int64_t a_pitch, const float* b, int64_t k) {
  __m256 sum[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) sum[r][h] = _mm256_loadu_ps(c + r * c_pitch + 8 * h);
  for (int64_t i = 0; i < k; ++i) {
    const __m256 b0 = _mm256_load_ps(b + 16 * i), b1 = _mm256_load_ps(b + 16 * i + 8);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256 x = _mm256_broadcast_ss(a + r * a_pitch + i);
      sum[r][0] = _mm256_add_ps(sum[r][0], _mm256_mul_ps(x, b0));
      sum[r][1] = _mm256_add_ps(sum[r][1], _mm256_mul_ps(x, b1));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) _mm256_storeu_ps(c + r * c_pitch + 8 * h, sum[r][h]);
}

template <int R>
ATBFN_AVX2 inline void RowsOfPairs(int32_t* c, int64_t c_pitch, const int32_t* a, int64_t a_pitch, const int32_t* b,
                                   int64_t pairs) {
  __m256i sum[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) sum[r][h] = _mm256_loadu_si256(reinterpret_cast<__m256i*>(c + r * c_pitch + 8 * h));
  for (int64_t i = 0; i < pairs; ++i) {
    const __m256i b0 = _mm256_load_si256(reinterpret_cast<const __m256i*>(b + 16 * i));
    const __m256i b1 = _mm256_load_si256(reinterpret_cast<const __m256i*>(b + 16 * i + 8));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i x = _mm256_set1_epi32(a[r * a_pitch + i]);
      sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(x, b0));
      sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(x, b1));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) _mm256_storeu_si256(reinterpret_cast<__m256i*>(c + r * c_pitch + 8 * h), sum[r][h]);
}

ATBFN_FMA void ColumnsFused(float* c, int64_t c_pitch, const float* a, int64_t a_pitch, const float* b, int64_t k,
                            int64_t rows) {
  int64_t r = 0;
  for (; r + 6 <= rows && rows - r != 8; r += 6) RowsFused<6>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, k);
  for (; r + 4 <= rows; r += 4) RowsFused<4>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, k);
  for (; r + 2 <= rows; r += 2) RowsFused<2>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, k);
  for (; r < rows; ++r) RowsFused<1>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, k);
}

ATBFN_AVX2 void ColumnsApart(float* c, int64_t c_pitch, const float* a, int64_t a_pitch, const float* b, int64_t k,
                             int64_t rows) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) RowsApart<4>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, k);
  for (; r < rows; ++r) RowsApart<1>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, k);
}

ATBFN_AVX2 void ColumnsOfPairs(int32_t* c, int64_t c_pitch, const int32_t* a, int64_t a_pitch, const int32_t* b,
                               int64_t pairs, int64_t rows) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) RowsOfPairs<4>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, pairs);
  for (; r < rows; ++r) RowsOfPairs<1>(c + r * c_pitch, c_pitch, a + r * a_pitch, a_pitch, b, pairs);
}

#endif

int16_t Integer(const uint8_t* from, int64_t i, DType dtype) {
  switch (dtype) {
    case DType::I8: return static_cast<int8_t>(from[i]);
    case DType::U8: return from[i];
    default: {  // I4: the lower half of a byte comes first
      const int nibble = from[i / 2] >> (i % 2 * 4) & 15;
      return static_cast<int16_t>(nibble >= 8 ? nibble - 16 : nibble);
    }
  }
}

int32_t Pair(int16_t low, int16_t high) {
  return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(low)) |
                              static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16);
}

template <class T>
void TransposeAny(T* to, const T* from, int side) {
  for (int r = 0; r < side; ++r)
    for (int c = 0; c < side; ++c) to[c * side + r] = from[r * side + c];
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------- transposing

void Transpose16(uint16_t* to, const uint16_t* from) {
#if defined(__x86_64__)
  if (Fast()) return Transpose16Memory(to, from);
#endif
  TransposeAny(to, from, 16);
}

void TransposeSquare(uint8_t* to, const uint8_t* from, int bits) {
  switch (bits) {
    case 16: return Transpose16(reinterpret_cast<uint16_t*>(to), reinterpret_cast<const uint16_t*>(from));
    case 8: return TransposeAny(to, from, 32);  // two fractals are 32 rows of 32 bytes
    case 32: {
      // Two fractals of 16 x 8 are the left and right halves of the square, before and after.
      const auto at = [](int r, int c) { return (c / 8) * 128 + r * 8 + c % 8; };
      uint32_t a[256], b[256];
      std::memcpy(a, from, sizeof(a));
      for (int r = 0; r < 16; ++r)
        for (int c = 0; c < 16; ++c) b[at(c, r)] = a[at(r, c)];
      std::memcpy(to, b, sizeof(b));
      return;
    }
    default: {  // 4 bits: four fractals are 64 rows of 64 elements
      std::memset(to, 0, 2048);
      for (int r = 0; r < 64; ++r)
        for (int c = 0; c < 64; ++c) {
          const int nibble = from[r * 32 + c / 2] >> (c % 2 * 4) & 15;
          to[c * 32 + r / 2] = static_cast<uint8_t>(to[c * 32 + r / 2] | nibble << (r % 2 * 4));
        }
    }
  }
}

// ----------------------------------------------------------------------------------------------------------- conversions

void ToFloats(float* to, const uint8_t* from, int64_t count, DType dtype) {
  if (dtype == DType::F32) {
    std::memcpy(to, from, static_cast<size_t>(count) * 4);
    return;
  }
#if defined(__x86_64__)
  if (dtype == DType::F16 && Fast()) return HalvesToFloats(to, from, count);
#endif
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    if (dtype == DType::F16) {
      to[i] = HalfToFloat(bits);
    } else {
      const uint32_t word = static_cast<uint32_t>(bits) << 16;
      std::memcpy(to + i, &word, 4);
    }
  }
}

void ToPairs(int32_t* to, const uint8_t* from, int64_t count, DType dtype) {
  for (int64_t i = 0; i < count; i += 2)
    to[i / 2] = Pair(Integer(from, i, dtype), i + 1 < count ? Integer(from, i + 1, dtype) : int16_t{0});
}

void FractalToFloats(float* to, const uint8_t* from, DType dtype) {
#if defined(__x86_64__)
  if (Fast()) return FractalToFloatsFast(to, from, dtype);
#endif
  const int k0 = dtype == DType::F32 ? 8 : 16;
  for (int n = 0; n < 16; ++n) {
    float row[16];
    ToFloats(row, from + 32 * n, k0, dtype);
    for (int k = 0; k < k0; ++k) to[16 * k + n] = row[k];
  }
}

void FractalToPairs(int32_t* to, const uint8_t* from, DType dtype) {
  const int k0 = dtype == DType::I4 ? 64 : 32;
  for (int n = 0; n < 16; ++n)
    for (int k = 0; k < k0; k += 2)
      to[k / 2 * 16 + n] = Pair(Integer(from + 32 * n, k, dtype), Integer(from + 32 * n, k + 1, dtype));
}

void ToHalves(uint16_t* to, const float* from, int64_t count) {
#if defined(__x86_64__)
  if (Fast()) return FloatsToHalves(to, from, count);
#endif
  for (int64_t i = 0; i < count; ++i) to[i] = FloatToHalf(from[i]);
}

void ToBrains(uint16_t* to, const float* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, from + i, 4);
    if ((word & 0x7fffffff) > 0x7f800000) to[i] = static_cast<uint16_t>(word >> 16 | 0x40);
    else to[i] = static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
}

// ----------------------------------------------------------------------------------------------------------- multiplying

void MultiplyColumns(float* c, int64_t c_pitch, const float* a, int64_t a_pitch, const float* b, int64_t k, int64_t rows,
                     bool fused) {
#if defined(__x86_64__)
  if (Fast()) return (fused ? ColumnsFused : ColumnsApart)(c, c_pitch, a, a_pitch, b, k, rows);
#endif
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < k; ++i) {
      const float x = a[r * a_pitch + i];
      for (int j = 0; j < 16; ++j) {
        float& sum = c[r * c_pitch + j];
        const float product = x * b[16 * i + j];
        sum = sum + product;  // exact products round the same here as in one step
      }
    }
  (void)fused;
}

void MultiplyColumns(int32_t* c, int64_t c_pitch, const int32_t* a, int64_t a_pitch, const int32_t* b, int64_t pairs,
                     int64_t rows) {
#if defined(__x86_64__)
  if (Fast()) return ColumnsOfPairs(c, c_pitch, a, a_pitch, b, pairs, rows);
#endif
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < pairs; ++i) {
      const int32_t x = a[r * a_pitch + i];
      for (int j = 0; j < 16; ++j) {
        const int32_t y = b[16 * i + j];
        c[r * c_pitch + j] += static_cast<int16_t>(x) * static_cast<int16_t>(y) + (x >> 16) * (y >> 16);
      }
    }
}

}  // namespace atbfn::emulator
