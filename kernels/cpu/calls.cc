#include "cpu/calls.h"

namespace atbfn {

ffi::Error Invalid(const char* handler, const std::string& what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string(handler) + ": " + what);
}

bool DtypeOf(ffi::DataType type, Dtype* dtype) {
  switch (type) {
    case ffi::BF16:
      *dtype = Dtype::kBf16;
      return true;
    case ffi::F16:
      *dtype = Dtype::kF16;
      return true;
    case ffi::F32:
      *dtype = Dtype::kF32;
      return true;
    default:
      return false;
  }
}

ffi::AnyBuffer Operands::Get(int i) const {
  size_t index = 0;
  for (int j = 0; j < i; ++j) index += (present_ >> j) & 1;
  return *args_.get<ffi::AnyBuffer>(index);
}

const void* Operands::Data(int i) const { return Has(i) ? Get(i).untyped_data() : nullptr; }

const float* Operands::Wide(int i, const Kernels& kernels, Scratch& scratch) const {
  if (!Has(i)) return nullptr;
  Dtype dtype;
  if (!DtypeOf(Type(i), &dtype)) return nullptr;
  if (dtype == Dtype::kF32) return Floats(i);
  float* wide = scratch.Take<float>(Count(i));
  kernels.widen(dtype, Data(i), wide, Count(i));
  return wide;
}

}  // namespace atbfn
