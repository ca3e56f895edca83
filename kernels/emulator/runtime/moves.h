// What copies and loads share: which bytes hold a value, checks of parameters, and common sizes.
#pragma once

#include <cstring>

#include "core.h"

namespace atbfn::emulator {

constexpr int64_t kBlock = 32;      // bytes of a data block: a row of a fractal
constexpr int64_t kFractal = 512;   // bytes of a fractal of L0A and L0B

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

inline Unit UnitOf(Space space) {
  switch (space) {
    case Space::UB: return Unit::Vector;
    case Space::GM: return Unit::Any;
    default: return Unit::Cube;
  }
}

// All of these bytes have been written.
inline bool Defined(const Instruction& in, const Tensor& tensor, int64_t offset, int64_t bytes) {
  const Memory& memory = in.core().at(tensor.space);
  const int64_t begin = static_cast<int64_t>(tensor.address) + offset, end = begin + bytes;
  for (int64_t g = begin / 32; g * 32 < end; ++g) {
    const int64_t from = std::max(begin - g * 32, int64_t{0}), to = std::min(end - g * 32, int64_t{32});
    const uint32_t mask = to - from == 32 ? ~0u : ((1u << (to - from)) - 1u) << from;
    if ((memory.granules[static_cast<size_t>(g)].written & mask) != mask) return false;
  }
  return true;
}

// Takes the mark of having been written away again.
inline void Undefine(const Instruction& in, const Tensor& tensor, int64_t offset, int64_t bytes) {
  Memory& memory = in.core().at(tensor.space);
  const int64_t begin = static_cast<int64_t>(tensor.address) + offset, end = begin + bytes;
  for (int64_t g = begin / 32; g * 32 < end; ++g) {
    const int64_t from = std::max(begin - g * 32, int64_t{0}), to = std::min(end - g * 32, int64_t{32});
    const uint32_t mask = to - from == 32 ? ~0u : ((1u << (to - from)) - 1u) << from;
    memory.granules[static_cast<size_t>(g)].written &= ~mask;
  }
}

// After bytes were moved: those that held no value hold none at their new place. `unit` divides both and the offsets.
inline void CarryDefined(const Instruction& in, const Tensor& dst, int64_t dst_offset, const Tensor& src,
                         int64_t src_offset, int64_t bytes, int64_t unit = 1) {
  if (Defined(in, src, src_offset, bytes)) return;
  for (int64_t i = 0; i < bytes; i += unit)
    if (!Defined(in, src, src_offset + i, unit)) Undefine(in, dst, dst_offset + i, unit);
}

inline void Range(Instruction& in, const char* name, int64_t value, int64_t low, int64_t high) {
  in.require(value >= low && value <= high, "range", "%s is %lld; it may be %lld to %lld", name,
             static_cast<long long>(value), static_cast<long long>(low), static_cast<long long>(high));
}

}  // namespace atbfn::emulator
