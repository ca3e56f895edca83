// The vector kernels, compiled for avx512: see vectors.h.
#define ATBFN_ISA isa_avx512
#include "cpu/vectors.h"

namespace atbfn {

const Kernels& Avx512Kernels() {
  static const Kernels kernels = isa_avx512::VectorKernels("avx512");
  return kernels;
}

}  // namespace atbfn
