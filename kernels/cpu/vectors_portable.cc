// The vector kernels, compiled for portable: see vectors.h.
#define ATBFN_ISA isa_portable
#include "cpu/vectors.h"

namespace atbfn {

const Kernels& PortableKernels() {
  static const Kernels kernels = isa_portable::VectorKernels("portable");
  return kernels;
}

}  // namespace atbfn
