// fused_ffn on plain pointers.
#ifndef ATBFN_KERNELS_CPU_FFN_DRIVER_H_
#define ATBFN_KERNELS_CPU_FFN_DRIVER_H_

#include "cpu/machine.h"

namespace atbfn {

struct Ffn {
  Dtype dtype;
  int64_t tokens, hidden, intermediate;
  int64_t block, chunk;  // tokens and intermediate features at a time
  Activation activation;
  NormSettings norm, post;
  const void* x;                  // [tokens, hidden]
  const void *gate, *up, *down;   // [intermediate, hidden] twice, [hidden, intermediate]; gate null: not gated
  const float *bias_gate, *bias_up, *bias_down;  // null where absent
  const void* residual;           // [tokens, hidden] or null
  void* out;                      // [tokens, hidden]
};

void RunFfn(Machine& machine, const Ffn& ffn);

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_FFN_DRIVER_H_
