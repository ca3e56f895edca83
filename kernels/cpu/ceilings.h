// What this machine can do at most: the rates that benchmarks compare operators with. No operator uses these.
#ifndef ATBFN_KERNELS_CPU_CEILINGS_H_
#define ATBFN_KERNELS_CPU_CEILINGS_H_

#include <cstddef>
#include <string>
#include <vector>

namespace atbfn {

// Names of the multiply-add instructions this processor has, widest first: "amx_bf16", "avx512_f32", ...
// "baseline_f32" is always there: what the compiler makes of plain vectors for the architecture's baseline.
std::vector<std::string> MatrixPeakKinds();

// Floating-point operations per second of `threads` threads that do nothing but multiply and add in registers.
// Throws std::invalid_argument for a kind this processor does not have.
double MatrixPeak(const std::string& kind, int threads, double seconds);

// Bytes per second of `threads` threads that read `bytes` bytes again and again, each its own contiguous share;
// the best of a few orders of reading.
double ReadBandwidth(std::size_t bytes, int threads, double seconds);

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_CEILINGS_H_
