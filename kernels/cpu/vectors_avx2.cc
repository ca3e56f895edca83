// The vector kernels, compiled for avx2: see vectors.h.
#define ATBFN_ISA isa_avx2
#include "cpu/vectors.h"

namespace atbfn {

const Kernels& Avx2Kernels() {
  static const Kernels kernels = isa_avx2::VectorKernels("avx2");
  return kernels;
}

}  // namespace atbfn
