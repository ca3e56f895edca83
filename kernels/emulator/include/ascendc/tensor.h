// Tensors: a LocalTensor names bytes of on-chip memory, a GlobalTensor bytes of GM. Neither owns anything.
#pragma once

#include "ascendc/types.h"
#include "atbfn/vector.h"

namespace AscendC {

namespace emu = ::atbfn::emulator;

struct ShapeInfo {
  ShapeInfo() = default;
  ShapeInfo(uint8_t dim, const uint32_t in[], uint8_t original_dim, const uint32_t original[], DataFormat format)
      : shapeDim(dim), originalShapeDim(original_dim), dataFormat(format) {
    for (int i = 0; i < dim && i < K_MAX_SHAPE_DIM; ++i) shape[i] = in[i];
    for (int i = 0; i < original_dim && i < K_MAX_SHAPE_DIM; ++i) originalShape[i] = original[i];
  }
  ShapeInfo(uint8_t dim, const uint32_t in[], DataFormat format) : ShapeInfo(dim, in, dim, in, format) {}
  ShapeInfo(uint8_t dim, const uint32_t in[]) : ShapeInfo(dim, in, dim, in, DataFormat::ND) {}
  uint8_t shapeDim = 0;
  uint8_t originalShapeDim = 0;
  uint32_t shape[K_MAX_SHAPE_DIM] = {};
  uint32_t originalShape[K_MAX_SHAPE_DIM] = {};
  DataFormat dataFormat = DataFormat::ND;
};
inline uint64_t GetShapeSize(const ShapeInfo& info) {
  uint64_t size = 1;
  for (int i = 0; i < info.shapeDim; ++i) size *= info.shape[i];
  return size;
}

// How many bytes `count` elements take; int4b_t holds two in a byte.
template <class T>
constexpr uint64_t BytesOf(uint64_t count) {
  if constexpr (std::is_same_v<T, int4b_t>) return (count + 1) / 2;
  else return count * sizeof(T);
}

// The address of on-chip memory as a number: the space in the upper half, the byte in the lower. Adding offsets works.
constexpr uint64_t PackAddress(const emu::Tensor& t) {
  return static_cast<uint64_t>(t.space) << 56 | static_cast<uint64_t>(t.buffer & 0xffff) << 40 | t.address;
}

template <class T>
class LocalTensor;

// What `a + b` and `a < b` of tensors are, until they are assigned to a tensor.
template <class T>
struct TensorExpression {
  emu::BinaryOp op;
  LocalTensor<T> a, b;
};
template <class T>
struct TensorComparison {
  CMPMODE mode;
  LocalTensor<T> a, b;
};

// An element of on-chip memory, accessed by the scalar unit.
template <class T>
class LocalElement {
 public:
  LocalElement(const LocalTensor<T>& tensor, uint32_t index, emu::Where where)
      : tensor_(tensor), index_(index), where_(where) {}
  operator T() const { return tensor_.GetValue(index_, where_); }
  const LocalElement& operator=(T value) const {
    tensor_.SetValue(index_, value, where_);
    return *this;
  }
  const LocalElement& operator=(const LocalElement& other) const { return *this = static_cast<T>(other); }
  const LocalElement& operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
  const LocalElement& operator-=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) - value); }
  const LocalElement& operator*=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) * value); }
  const LocalElement& operator/=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) / value); }

 private:
  LocalTensor<T> tensor_;
  uint32_t index_;
  emu::Where where_;
};

template <class T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() {
    tensor_.dtype = DTypeOf<T>();
    tensor_.element = sizeof(T);
    tensor_.position = static_cast<uint8_t>(TPosition::MAX);
  }
  // Static form: `count` elements at byte `address` of the memory that `position` is.
  LocalTensor(TPosition position, uint32_t address, uint32_t count, emu::Where where = emu::Here()) : LocalTensor() {
    tensor_.space = SpaceOf(position);
    tensor_.position = static_cast<uint8_t>(position);
    tensor_.address = address;
    tensor_.size = count;
    emu::Place(tensor_.space, address, BytesOf<T>(count), where);
  }
  // For the framework.
  explicit LocalTensor(const emu::Tensor& tensor) : tensor_(tensor) {
    tensor_.dtype = DTypeOf<T>();
    tensor_.element = sizeof(T);
  }

  // dst = a + b, for all elements of dst.
  template <class U>
  void operator=(const TensorExpression<U>& expression);
  template <class U>
  void operator=(const TensorComparison<U>& comparison);
  TensorExpression<T> operator+(const LocalTensor& b) const { return {emu::BinaryOp::Add, *this, b}; }
  TensorExpression<T> operator-(const LocalTensor& b) const { return {emu::BinaryOp::Sub, *this, b}; }
  TensorExpression<T> operator*(const LocalTensor& b) const { return {emu::BinaryOp::Mul, *this, b}; }
  TensorExpression<T> operator/(const LocalTensor& b) const { return {emu::BinaryOp::Div, *this, b}; }
  TensorExpression<T> operator|(const LocalTensor& b) const { return {emu::BinaryOp::Or, *this, b}; }
  TensorExpression<T> operator&(const LocalTensor& b) const { return {emu::BinaryOp::And, *this, b}; }
  TensorComparison<T> operator<(const LocalTensor& b) const { return {CMPMODE::LT, *this, b}; }
  TensorComparison<T> operator>(const LocalTensor& b) const { return {CMPMODE::GT, *this, b}; }
  TensorComparison<T> operator==(const LocalTensor& b) const { return {CMPMODE::EQ, *this, b}; }
  TensorComparison<T> operator<=(const LocalTensor& b) const { return {CMPMODE::LE, *this, b}; }
  TensorComparison<T> operator>=(const LocalTensor& b) const { return {CMPMODE::GE, *this, b}; }
  TensorComparison<T> operator!=(const LocalTensor& b) const { return {CMPMODE::NE, *this, b}; }

  uint64_t GetPhyAddr() const { return PackAddress(tensor_); }
  uint64_t GetPhyAddr(uint32_t offset) const { return PackAddress(tensor_) + BytesOf<T>(offset); }

  T GetValue(uint32_t index, emu::Where where = emu::Here()) const {
    if constexpr (std::is_same_v<T, int4b_t>) {
      static_assert(!std::is_same_v<T, int4b_t>, "GetValue does not support int4b_t");
    } else {
      T value;
      emu::ScalarRead(tensor_, BytesOf<T>(index), &value, sizeof(T), where);
      return value;
    }
  }
  template <class S>
  void SetValue(uint32_t index, S value, emu::Where where = emu::Here()) const {
    const T converted = static_cast<T>(value);
    emu::ScalarWrite(tensor_, BytesOf<T>(index), &converted, sizeof(T), where);
  }
  LocalElement<T> operator()(uint32_t index, emu::Where where = emu::Here()) const { return {*this, index, where}; }

  LocalTensor operator[](uint32_t offset) const {
    LocalTensor result = *this;
    result.tensor_.address += static_cast<uint32_t>(BytesOf<T>(offset));
    result.tensor_.size -= offset < result.tensor_.size ? offset : result.tensor_.size;
    return result;
  }
  template <class U>
  LocalTensor<U> ReinterpretCast() const {
    LocalTensor<U> result(tensor_);
    const uint64_t bits = std::is_same_v<T, int4b_t> ? tensor_.size * 4ull : tensor_.size * sizeof(T) * 8ull;
    result.SetSize(static_cast<uint32_t>(bits / (std::is_same_v<U, int4b_t> ? 4 : sizeof(U) * 8)));
    return result;
  }
  template <class S>
  void SetAddrWithOffset(LocalTensor<S>& source, uint32_t offset) {
    tensor_ = source.Handle();
    tensor_.dtype = DTypeOf<T>();
    tensor_.element = sizeof(T);
    tensor_.address += static_cast<uint32_t>(BytesOf<S>(offset));
  }

  int32_t GetPosition() const { return tensor_.position; }
  void SetSize(uint32_t size) { tensor_.size = size; }
  uint32_t GetSize() const { return tensor_.size; }
  uint32_t GetLength() const { return static_cast<uint32_t>(BytesOf<T>(tensor_.size)); }
  void SetBufferLen(uint32_t size) { tensor_.size = size; }
  void SetUserTag(TTagType tag) { tag_ = tag; }
  TTagType GetUserTag() const { return tag_; }
  void SetShapeInfo(const ShapeInfo& info) { shapeInfo_ = info; }
  ShapeInfo GetShapeInfo() const { return shapeInfo_; }
  // The elements as text, on the core's output.
  void Print(uint32_t count = 0, emu::Where where = emu::Here()) const {
    emu::DumpElements(tensor_, 0, count == 0 ? tensor_.size : count, where);
  }

  const emu::Tensor& Handle() const { return tensor_; }

  ShapeInfo shapeInfo_;

 private:
  emu::Tensor tensor_;
  TTagType tag_ = 0;
};

template <class T>
class GlobalElement;

template <class T>
class GlobalTensor {
 public:
  using PrimType = T;

  GlobalTensor() = default;
  void SetGlobalBuffer(__gm__ T* buffer, uint64_t size) {
    address_ = buffer;
    bufferSize_ = size;
  }
  void SetGlobalBuffer(__gm__ T* buffer) { SetGlobalBuffer(buffer, 0); }
  __gm__ T* GetPhyAddr() const { return address_; }
  __gm__ T* GetPhyAddr(uint64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(address_) + BytesOf<T>(offset));
  }
  T GetValue(uint64_t offset, emu::Where where = emu::Here()) const {
    T value;
    emu::ScalarRead(Handle(), static_cast<int64_t>(BytesOf<T>(offset)), &value, sizeof(T), where);
    return value;
  }
  void SetValue(uint64_t offset, T value, emu::Where where = emu::Here()) const {
    emu::ScalarWrite(Handle(), static_cast<int64_t>(BytesOf<T>(offset)), &value, sizeof(T), where);
  }
  GlobalElement<T> operator()(uint64_t offset, emu::Where where = emu::Here()) const { return {*this, offset, where}; }
  uint64_t GetSize() const { return bufferSize_; }
  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor result = *this;
    result.address_ = GetPhyAddr(offset);
    result.bufferSize_ -= offset < bufferSize_ ? offset : bufferSize_;
    return result;
  }
  template <class U>
  GlobalTensor<U> ReinterpretCast() const {
    GlobalTensor<U> result;
    result.SetGlobalBuffer(reinterpret_cast<U*>(address_), bufferSize_ * sizeof(T) / sizeof(U));
    return result;
  }
  void SetShapeInfo(const ShapeInfo& info) { shapeInfo_ = info; }
  ShapeInfo GetShapeInfo() const { return shapeInfo_; }
  template <CacheRwMode mode = CacheRwMode::RW>
  void SetL2CacheHint(CacheMode) {}  // a hint about speed; the traffic model does not read it

  emu::Global Handle() const {
    return {DTypeOf<T>(), static_cast<uint8_t>(sizeof(T)), const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(address_))};
  }

  uint64_t bufferSize_ = 0;
  ShapeInfo shapeInfo_;

 private:
  __gm__ T* address_ = nullptr;
};

// An element of GM, accessed by the scalar unit.
template <class T>
class GlobalElement {
 public:
  GlobalElement(const GlobalTensor<T>& tensor, uint64_t index, emu::Where where)
      : tensor_(tensor), index_(index), where_(where) {}
  operator T() const { return tensor_.GetValue(index_, where_); }
  const GlobalElement& operator=(T value) const {
    tensor_.SetValue(index_, value, where_);
    return *this;
  }
  const GlobalElement& operator=(const GlobalElement& other) const { return *this = static_cast<T>(other); }

 private:
  GlobalTensor<T> tensor_;
  uint64_t index_;
  emu::Where where_;
};

// Hands out a memory from its start, in the order asked.
template <Hardware hardware = Hardware::UB>
class LocalMemAllocator {
 public:
  uint32_t GetCurAddr() const { return head_; }
  template <TPosition position, class T, uint32_t count>
  LocalTensor<T> Alloc(emu::Where where = emu::Here()) { return Take<T>(position, count, where); }
  template <TPosition position, class T>
  LocalTensor<T> Alloc(uint32_t count, emu::Where where = emu::Here()) { return Take<T>(position, count, where); }
  template <class T, uint32_t count>
  LocalTensor<T> Alloc(emu::Where where = emu::Here()) { return Take<T>(Default(), count, where); }
  template <class T>
  LocalTensor<T> Alloc(uint32_t count, emu::Where where = emu::Here()) { return Take<T>(Default(), count, where); }

 private:
  static constexpr TPosition Default() {
    switch (hardware) {
      case Hardware::L1: return TPosition::A1;
      case Hardware::L0A: return TPosition::A2;
      case Hardware::L0B: return TPosition::B2;
      case Hardware::L0C: return TPosition::CO1;
      case Hardware::BIAS: return TPosition::C2;
      case Hardware::FIXBUF: return TPosition::C2PIPE2GM;
      default: return TPosition::VECCALC;
    }
  }
  template <class T>
  LocalTensor<T> Take(TPosition position, uint32_t count, emu::Where where) {
    if (SpaceOf(position) != SpaceOf(hardware))
      emu::Refuse("position", where, "Alloc of this allocator gives memory of %s, the position named lies in %s",
                  emu::Name(SpaceOf(hardware)), emu::Name(SpaceOf(position)));
    LocalTensor<T> tensor(position, head_, count, where);
    head_ += static_cast<uint32_t>((BytesOf<T>(count) + 31) / 32 * 32);
    return tensor;
  }
  uint32_t head_ = 0;
};

}  // namespace AscendC
