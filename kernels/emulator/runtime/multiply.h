// The arithmetic of the matrix unit on host memory: no checks, no addresses of the device.
#pragma once

#include <cstdint>

#include "atbfn/emulator.h"
#include "transpose.h"

namespace atbfn::emulator {

// c[r][j] += sum over k of a[r][k] * b[k][j], in the order of k, for 16 columns. Each sum is a chain of its own, so the
// result does not depend on how the rows are grouped. `fused`: products are exact in float (both factors were halves), so
// multiplying and adding in one step rounds the same.
void MultiplyColumns(float* c, int64_t c_pitch, const float* a, int64_t a_pitch, const float* b, int64_t k, int64_t rows,
                     bool fused);
// The same for integers: k in pairs of 16 bits, b[k / 2][j] holds two.
void MultiplyColumns(int32_t* c, int64_t c_pitch, const int32_t* a, int64_t a_pitch, const int32_t* b, int64_t pairs,
                     int64_t rows);

// Rows of 32 bytes of a fractal to floats, or pairs of 16-bit integers in 32 bits. `count` elements.
void ToFloats(float* to, const uint8_t* from, int64_t count, DType dtype);
void ToPairs(int32_t* to, const uint8_t* from, int64_t count, DType dtype);
// A fractal of L0B (16 columns, k within) as [k][16 columns]: floats, or pairs.
void FractalToFloats(float* to, const uint8_t* from, DType dtype);
void FractalToPairs(int32_t* to, const uint8_t* from, DType dtype);

// Floats to halves and bfloat16, to nearest even.
void ToHalves(uint16_t* to, const float* from, int64_t count);
void ToBrains(uint16_t* to, const float* from, int64_t count);

}  // namespace atbfn::emulator
