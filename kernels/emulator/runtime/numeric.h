// Conversions between the element types, exact to the bit.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__F16C__) && defined(__AVX2__)
#include <immintrin.h>
#endif

namespace atbfn::emulator {

// The rounding modes of Cast: to nearest even, down, up, to nearest with ties away from zero, towards zero, and to odd.
enum class Round : uint8_t { Nearest, Floor, Ceil, Away, Zero, Odd };

template <class To, class From>
inline To Bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

inline float HalfToFloat(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 1023u;
  if (exponent == 31) return Bits<float>(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u));
  if (exponent != 0) return Bits<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
#endif
}

// Rounds a float to `drop` fewer mantissa bits of its magnitude, as an integer of the kept bits.
inline uint32_t RoundBits(uint32_t magnitude, int drop, Round round, bool negative) {
  if (drop <= 0) return magnitude << -drop;
  if (drop > 31) return round == Round::Odd ? magnitude != 0 : (round == Round::Ceil && !negative && magnitude != 0) ||
                                                                   (round == Round::Floor && negative && magnitude != 0);
  const uint32_t kept = magnitude >> drop, rest = magnitude & ((1u << drop) - 1u), half = 1u << (drop - 1);
  switch (round) {
    case Round::Nearest: return kept + (rest > half || (rest == half && (kept & 1u)) ? 1u : 0u);
    case Round::Away: return kept + (rest >= half ? 1u : 0u);
    case Round::Floor: return kept + (negative && rest ? 1u : 0u);
    case Round::Ceil: return kept + (!negative && rest ? 1u : 0u);
    case Round::Odd: return kept | (rest ? 1u : 0u);
    default: return kept;
  }
}

inline uint16_t FloatToHalf(float value, Round round) {
  const uint32_t word = Bits<uint32_t>(value), magnitude = word & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000u);
  const bool negative = sign != 0;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude == 0x7f800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  uint32_t result;
  if (exponent >= -14) {
    result = RoundBits(magnitude - (112u << 23), 13, round, negative);
    if (magnitude >= (143u << 23) || result > 0x7c00u) result = 0x7c00u;
    if (result >= 0x7c00u) {
      const bool away = round == Round::Nearest || round == Round::Away || (round == Round::Ceil && !negative) ||
                        (round == Round::Floor && negative);
      result = away ? 0x7c00u : 0x7bffu;
    }
  } else {
    const uint32_t mantissa = magnitude >= 0x800000u ? (magnitude & 0x7fffffu) | 0x800000u : magnitude;
    const int scale = magnitude >= 0x800000u ? exponent : -126;  // value = mantissa * 2^(scale - 23); units of 2^-24
    result = RoundBits(mantissa, -(scale - 23) - 24, round, negative);
  }
  return static_cast<uint16_t>(sign | result);
}

inline uint16_t FloatToHalf(float value) {
#if defined(__F16C__)
  return static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT));
#else
  return FloatToHalf(value, Round::Nearest);
#endif
}

inline float BfloatToFloat(uint16_t value) { return Bits<float>(static_cast<uint32_t>(value) << 16); }

inline uint16_t FloatToBfloat(float value, Round round = Round::Nearest) {
  const uint32_t word = Bits<uint32_t>(value), magnitude = word & 0x7fffffffu;
  const uint32_t sign = word >> 16 & 0x8000u;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7fc0u);
  if (magnitude == 0x7f800000u) return static_cast<uint16_t>(sign | 0x7f80u);
  uint32_t result = RoundBits(magnitude, 16, round, sign != 0);
  if (result >= 0x7f80u) {
    const bool away = round == Round::Nearest || round == Round::Away || (round == Round::Ceil && !sign) ||
                      (round == Round::Floor && sign);
    result = away ? 0x7f80u : 0x7f7fu;
  }
  return static_cast<uint16_t>(sign | result);
}

inline void HalfToFloat(const uint16_t* from, float* to, size_t count) {
  size_t i = 0;
#if defined(__F16C__) && defined(__AVX2__)
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
#endif
  for (; i < count; ++i) to[i] = HalfToFloat(from[i]);
}

inline void FloatToHalf(const float* from, uint16_t* to, size_t count) {
  size_t i = 0;
#if defined(__F16C__) && defined(__AVX2__)
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
  for (; i < count; ++i) to[i] = FloatToHalf(from[i]);
}

inline void BfloatToFloat(const uint16_t* from, float* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = BfloatToFloat(from[i]);
}
inline void FloatToBfloat(const float* from, uint16_t* to, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = FloatToBfloat(from[i]);
}

// To an integral value, by a mode.
inline double RoundToIntegral(double value, Round round) {
  switch (round) {
    case Round::Nearest: return std::nearbyint(value);
    case Round::Floor: return std::floor(value);
    case Round::Ceil: return std::ceil(value);
    case Round::Away: return std::round(value);
    case Round::Zero: return std::trunc(value);
    default: {
      const double low = std::trunc(value);
      return low == value || std::fmod(low, 2.0) != 0 ? low : low + std::copysign(1.0, value);
    }
  }
}

// To an integer: nan becomes 0, what does not fit the nearest that does.
template <class T>
inline T ToInteger(double value, Round round) {
  if (std::isnan(value)) return 0;
  const double rounded = RoundToIntegral(value, round);
  if (rounded <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (rounded >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(rounded);
}

// What saturation mode makes of a half or bfloat16: inf becomes the largest number, nan zero.
inline uint16_t SaturateHalf(uint16_t bits) {
  if ((bits & 0x7c00u) != 0x7c00u) return bits;
  return bits & 0x3ffu ? 0 : static_cast<uint16_t>((bits & 0x8000u) | 0x7bffu);
}
inline uint16_t SaturateBfloat(uint16_t bits) {
  if ((bits & 0x7f80u) != 0x7f80u) return bits;
  return bits & 0x7fu ? 0 : static_cast<uint16_t>((bits & 0x8000u) | 0x7f7fu);
}

}  // namespace atbfn::emulator
