// What every handler needs: its operands by number, errors, and rows packed for a product.
#ifndef ATBFN_KERNELS_CPU_CALLS_H_
#define ATBFN_KERNELS_CPU_CALLS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "xla/ffi/api/ffi.h"

#include "cpu/isa.h"
#include "cpu/parallel.h"

namespace atbfn {

namespace ffi = xla::ffi;

ffi::Error Invalid(const char* handler, const std::string& what);

// The dtype of a buffer; false if it is none that the kernels take.
bool DtypeOf(ffi::DataType type, Dtype* dtype);

// Optional operands of a handler: bit i of `present` says whether operand i was given; those that were follow each
// other in the call.
class Operands {
 public:
  Operands(ffi::RemainingArgs args, int64_t present) : args_(args), present_(present) {}

  bool Has(int i) const { return (present_ >> i) & 1; }
  // Null where absent.
  const void* Data(int i) const;
  const float* Floats(int i) const { return static_cast<const float*>(Data(i)); }
  const int32_t* Ints(int i) const { return static_cast<const int32_t*>(Data(i)); }
  ffi::DataType Type(int i) const { return Get(i).element_type(); }
  int64_t Count(int i) const { return static_cast<int64_t>(Get(i).element_count()); }
  ffi::Span<const int64_t> Shape(int i) const { return Get(i).dimensions(); }
  // As fp32, copied to scratch where it is not that already; null where absent.
  const float* Wide(int i, const Kernels& kernels, Scratch& scratch) const;
  // Whether the operand, where given, has this many elements.
  bool Holds(int i, int64_t count) const { return !Has(i) || Count(i) == count; }

 private:
  ffi::AnyBuffer Get(int i) const;
  ffi::RemainingArgs args_;
  int64_t present_;
};

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

#endif  // ATBFN_KERNELS_CPU_CALLS_H_
