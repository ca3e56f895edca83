// Drivers of products of packed rows with weights, shared by linear, ffn and attention.
#ifndef ATBFN_KERNELS_CPU_PRODUCT_H_
#define ATBFN_KERNELS_CPU_PRODUCT_H_

#include "cpu/machine.h"

namespace atbfn {

// out[t, f] = sum over k of x[t, k] w[f, k] + bias[f] + residual[t, f].
struct Product {
  const void* w;       // [features, k], of the operand's dtype
  int64_t features;
  const float* bias;   // [features] or null
  const void* residual;  // [tokens, ld] or null
  void* out;           // [tokens, ld] of the dtype, or null:
  int64_t ld;
  float* wide;         // [tokens, ld_wide]
  int64_t ld_wide;
};

// Several products of the same rows (query, key and value projections), in one phase. `packed` holds `tokens` rows.
void Multiply(Machine& machine, Dtype dtype, const Engine& engine, const void* packed, int64_t tokens, int64_t k,
              const Product* products, int count);

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_PRODUCT_H_
