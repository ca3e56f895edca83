// Transposing the squares that fractals make up: one of 16 x 16 at 16 bits, two at 8 and 32 bits, four at 4 bits.
#pragma once

#include <cstdint>

namespace atbfn::emulator {

void TransposeSquare(uint8_t* to, const uint8_t* from, int bits);
// 16 rows of 16 elements of 16 bits.
void Transpose16(uint16_t* to, const uint16_t* from);

}  // namespace atbfn::emulator
