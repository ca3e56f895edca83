// Element types of the kernels, and the activations by number.
#ifndef ATBFN_KERNELS_CPU_TYPES_H_
#define ATBFN_KERNELS_CPU_TYPES_H_

#include <cstddef>
#include <cstdint>

namespace atbfn {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

enum class Dtype : int { kBf16 = 0, kF16 = 1, kF32 = 2 };
constexpr int kDtypes = 3;

constexpr int64_t ItemSize(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

// The order is that of ACTIVATIONS in atbfn.lowering.cpu.calls.
enum class Activation : int { kIdentity = 0, kSilu = 1, kGelu = 2, kGeluTanh = 3, kRelu = 4 };

constexpr int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
constexpr int64_t CeilDiv(int64_t n, int64_t by) { return (n + by - 1) / by; }

// Tokens come in tiles of this many: a column of an AMX tile, a 512 bit vector of floats.
constexpr int64_t kTile = 16;
// Weight rows come in groups of two halves of this many: two AMX tiles.
constexpr int64_t kHalf = 16;
constexpr int64_t kGroup = 2 * kHalf;

inline const char* At(const void* base, int64_t offset, Dtype dtype) {
  return static_cast<const char*>(base) + offset * ItemSize(dtype);
}
inline char* At(void* base, int64_t offset, Dtype dtype) {
  return static_cast<char*>(base) + offset * ItemSize(dtype);
}

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_TYPES_H_
