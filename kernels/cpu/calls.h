// What every handler needs: its operands by number, and errors.
#ifndef ATBFN_KERNELS_CPU_CALLS_H_
#define ATBFN_KERNELS_CPU_CALLS_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "xla/ffi/api/ffi.h"

#include "cpu/machine.h"

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

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_CALLS_H_
