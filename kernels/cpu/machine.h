// What the drivers of all operators share: the threads and memory of a call, rows packed for a product, norms of rows.
#ifndef ATBFN_KERNELS_CPU_MACHINE_H_
#define ATBFN_KERNELS_CPU_MACHINE_H_

#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace atbfn {

// A norm before or after a product; `gamma` null: none.
struct NormSettings {
  NormArgs args{nullptr, nullptr, 0, false};
  bool given = false;
};

// How much of the machine a call can use.
struct Machine {
  const Kernels& kernels;
  Team& team;
  Scratch& scratch;
};

// The engine for products of W of `dtype` with `tokens` tokens at a time.
const Engine& EngineFor(const Kernels& kernels, Dtype dtype, int64_t tokens);

// A worker's own memory, one stretch for each.
template <class T>
class PerWorker {
 public:
  PerWorker(Machine& machine, int64_t count) : each_(RoundUp(count, 64 / sizeof(T))) {
    base_ = machine.scratch.Take<T>(each_ * machine.team.size());
  }
  T* operator[](int64_t worker) const { return base_ + worker * each_; }

 private:
  int64_t each_;
  T* base_;
};

// Where the rows of an operand come from: rows [.., k] one after the other, or, with `heads`, the heads of a row of an
// array [batch, heads, q_len, k / heads], side by side.
struct RowSource {
  Dtype dtype;
  const void* base;
  int64_t heads = 1, q_len = 1;
};

// Packs `tokens` rows from `first` on as the X of a product, normalised where `norm` is given.
void PackRows(Machine& machine, const Engine& engine, const RowSource& source, int64_t first, int64_t tokens, int64_t k,
              const NormSettings& norm, void* packed);

// Normalises fp32 rows and stores them in the dtype.
void NormRows(Machine& machine, Dtype dtype, float* rows, int64_t count, int64_t n, const NormSettings& norm, void* out);

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_MACHINE_H_
