// The vector unit's instructions on tensors of the unified buffer. Each has three call forms: the first `count` elements;
// `mask` active elements of each of `repeatTime` repeats; or the elements that the bits of `mask[]` name.
#pragma once

#include <cmath>

#include "ascendc/copy.h"
#include "ascendc/vector_params.h"

namespace AscendC {

namespace detail {

inline emu::Lanes Counted(int64_t count, bool set_mask = true) {
  emu::Lanes lanes;
  lanes.count = count;
  lanes.set_mask = set_mask;
  return lanes;
}
inline emu::Lanes Masked(uint64_t mask, int64_t repeats, bool set_mask) {
  emu::Lanes lanes;
  lanes.form = emu::Lanes::Mask;
  lanes.count = static_cast<int64_t>(mask);
  lanes.repeats = repeats;
  lanes.set_mask = set_mask;
  return lanes;
}
inline emu::Lanes Masked(const uint64_t mask[], int64_t repeats, bool set_mask) {
  emu::Lanes lanes;
  lanes.form = emu::Lanes::Bits;
  lanes.low = mask[0];
  lanes.high = mask[1];
  lanes.repeats = repeats;
  lanes.set_mask = set_mask;
  return lanes;
}
template <class T>
emu::Operand Plain(const LocalTensor<T>& tensor) { return {tensor.Handle(), {1, 8}}; }
template <class T>
emu::Operand With(const LocalTensor<T>& tensor, uint32_t block, uint32_t repeat) { return {tensor.Handle(), {block, repeat}}; }
template <class T>
emu::Scalar ScalarOf(T value) {
  emu::Scalar scalar{DTypeOf<T>(), 0};
  std::memcpy(&scalar.bits, &value, sizeof(T));
  return scalar;
}
inline emu::ReduceOp ReduceOf(ReduceType type) {
  return type == ReduceType::SUM ? emu::ReduceOp::Sum : type == ReduceType::MAX ? emu::ReduceOp::Max : emu::ReduceOp::Min;
}

}  // namespace detail

// ------------------------------------------------------------------------------------------- elementwise, one source

#define ATBFN_UNARY(NAME)                                                                                              \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask[], const Small<uint8_t> repeatTime, \
                   const UnaryRepeatParams& p, emu::Where where = emu::Here()) {                                       \
    emu::Unary(emu::UnaryOp::NAME, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                           \
               detail::With(src, p.srcBlkStride, p.srcRepStride), detail::Masked(mask, repeatTime, isSetMask), where); \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, uint64_t mask, const Small<uint8_t> repeatTime, \
                   const UnaryRepeatParams& p, emu::Where where = emu::Here()) {                                       \
    emu::Unary(emu::UnaryOp::NAME, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                           \
               detail::With(src, p.srcBlkStride, p.srcRepStride), detail::Masked(mask, repeatTime, isSetMask), where); \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t& count,                         \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::Unary(emu::UnaryOp::NAME, #NAME, detail::Plain(dst), detail::Plain(src), detail::Counted(count), where);      \
  }
ATBFN_UNARY(Exp)
ATBFN_UNARY(Ln)
ATBFN_UNARY(Abs)
ATBFN_UNARY(Sqrt)
ATBFN_UNARY(Rsqrt)
ATBFN_UNARY(Reciprocal)
ATBFN_UNARY(Relu)
ATBFN_UNARY(Not)
#undef ATBFN_UNARY

// ------------------------------------------------------------------------------------------ elementwise, two sources

#define ATBFN_BINARY(NAME)                                                                                             \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[], \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::Binary(emu::BinaryOp::NAME, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                         \
                detail::With(src0, p.src0BlkStride, p.src0RepStride),                                                  \
                detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask),     \
                where);                                                                                                \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,   \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::Binary(emu::BinaryOp::NAME, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                         \
                detail::With(src0, p.src0BlkStride, p.src0RepStride),                                                  \
                detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask),     \
                where);                                                                                                \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,                  \
                   const int32_t& count, emu::Where where = emu::Here()) {                                             \
    emu::Binary(emu::BinaryOp::NAME, #NAME, detail::Plain(dst), detail::Plain(src0), detail::Plain(src1),              \
                detail::Counted(count), where);                                                                        \
  }
ATBFN_BINARY(Add)
ATBFN_BINARY(Sub)
ATBFN_BINARY(Mul)
ATBFN_BINARY(Div)
ATBFN_BINARY(Max)
ATBFN_BINARY(Min)
ATBFN_BINARY(And)
ATBFN_BINARY(Or)
ATBFN_BINARY(AddRelu)
ATBFN_BINARY(SubRelu)
#undef ATBFN_BINARY

// dst = src0 * src1 + dst, src0 * dst + src1, and the relu of that.
#define ATBFN_FUSED(NAME, OP)                                                                                          \
  template <typename T, typename U, bool isSetMask = true>                                                             \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,                  \
                   const uint64_t mask[], const Small<uint8_t> repeatTime, const BinaryRepeatParams& p,                \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::Fused(emu::FusedOp::OP, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                             \
               detail::With(src0, p.src0BlkStride, p.src0RepStride),                                                   \
               detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask),      \
               where);                                                                                                 \
  }                                                                                                                    \
  template <typename T, typename U, bool isSetMask = true>                                                             \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, uint64_t mask,   \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::Fused(emu::FusedOp::OP, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                             \
               detail::With(src0, p.src0BlkStride, p.src0RepStride),                                                   \
               detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask),      \
               where);                                                                                                 \
  }                                                                                                                    \
  template <typename T, typename U>                                                                                    \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,                  \
                   const int32_t& count, emu::Where where = emu::Here()) {                                             \
    emu::Fused(emu::FusedOp::OP, #NAME, detail::Plain(dst), detail::Plain(src0), detail::Plain(src1),                  \
               detail::Counted(count), where);                                                                         \
  }
ATBFN_FUSED(MulAddDst, MulAddDst)
#undef ATBFN_FUSED

#define ATBFN_FUSED(NAME, OP)                                                                                          \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask[], \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::Fused(emu::FusedOp::OP, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                             \
               detail::With(src0, p.src0BlkStride, p.src0RepStride),                                                   \
               detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask),      \
               where);                                                                                                 \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, uint64_t mask,   \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::Fused(emu::FusedOp::OP, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                             \
               detail::With(src0, p.src0BlkStride, p.src0RepStride),                                                   \
               detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask),      \
               where);                                                                                                 \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,                  \
                   const int32_t& count, emu::Where where = emu::Here()) {                                             \
    emu::Fused(emu::FusedOp::OP, #NAME, detail::Plain(dst), detail::Plain(src0), detail::Plain(src1),                  \
               detail::Counted(count), where);                                                                         \
  }
ATBFN_FUSED(FusedMulAdd, FusedMulAdd)
ATBFN_FUSED(FusedMulAddRelu, FusedMulAddRelu)
ATBFN_FUSED(MulAddRelu, FusedMulAddRelu)
#undef ATBFN_FUSED

// ------------------------------------------------------------------------------------------------------ with a scalar

#define ATBFN_SCALAR(NAME)                                                                                             \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask[],        \
                   const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, emu::Where where = emu::Here()) {      \
    emu::WithScalar(emu::ScalarOp::NAME, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                     \
                    detail::With(src, p.srcBlkStride, p.srcRepStride), detail::ScalarOf<T>(scalarValue),               \
                    detail::Masked(mask, repeatTime, isSetMask), where);                                               \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask,          \
                   const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, emu::Where where = emu::Here()) {      \
    emu::WithScalar(emu::ScalarOp::NAME, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                     \
                    detail::With(src, p.srcBlkStride, p.srcRepStride), detail::ScalarOf<T>(scalarValue),               \
                    detail::Masked(mask, repeatTime, isSetMask), where);                                               \
  }                                                                                                                    \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, const int32_t& count,   \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::WithScalar(emu::ScalarOp::NAME, #NAME, detail::Plain(dst), detail::Plain(src),                                \
                    detail::ScalarOf<T>(scalarValue), detail::Counted(count, isSetMask), where);                       \
  }
ATBFN_SCALAR(Adds)
ATBFN_SCALAR(Muls)
ATBFN_SCALAR(Maxs)
ATBFN_SCALAR(Mins)
ATBFN_SCALAR(LeakyRelu)
ATBFN_SCALAR(ShiftLeft)
#undef ATBFN_SCALAR

template <typename T, bool isSetMask = true>
inline void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask[],
                       const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, bool roundEn = false,
                       emu::Where where = emu::Here()) {
  emu::WithScalar(roundEn ? emu::ScalarOp::ShiftRightRound : emu::ScalarOp::ShiftRight, "ShiftRight",
                  detail::With(dst, p.dstBlkStride, p.dstRepStride), detail::With(src, p.srcBlkStride, p.srcRepStride),
                  detail::ScalarOf<T>(scalarValue), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, bool isSetMask = true>
inline void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, uint64_t mask,
                       const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, bool roundEn = false,
                       emu::Where where = emu::Here()) {
  emu::WithScalar(roundEn ? emu::ScalarOp::ShiftRightRound : emu::ScalarOp::ShiftRight, "ShiftRight",
                  detail::With(dst, p.dstBlkStride, p.dstRepStride), detail::With(src, p.srcBlkStride, p.srcRepStride),
                  detail::ScalarOf<T>(scalarValue), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, bool isSetMask = true>
inline void ShiftRight(const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue, const int32_t& count,
                       emu::Where where = emu::Here()) {
  emu::WithScalar(emu::ScalarOp::ShiftRight, "ShiftRight", detail::Plain(dst), detail::Plain(src),
                  detail::ScalarOf<T>(scalarValue), detail::Counted(count, isSetMask), where);
}

// dst = src * scalar + dst.
template <typename T, typename U, bool isSetMask = true>
inline void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, uint64_t mask,
                 const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, emu::Where where = emu::Here()) {
  emu::Axpy(detail::With(dst, p.dstBlkStride, p.dstRepStride), detail::With(src, p.srcBlkStride, p.srcRepStride),
            detail::ScalarOf<U>(scalarValue), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, uint64_t mask[],
                 const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, emu::Where where = emu::Here()) {
  emu::Axpy(detail::With(dst, p.dstBlkStride, p.dstRepStride), detail::With(src, p.srcBlkStride, p.srcRepStride),
            detail::ScalarOf<U>(scalarValue), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U>
inline void Axpy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const U& scalarValue, const int32_t& count,
                 emu::Where where = emu::Here()) {
  emu::Axpy(detail::Plain(dst), detail::Plain(src), detail::ScalarOf<U>(scalarValue), detail::Counted(count), where);
}

// --------------------------------------------------------------------------------------------------------- conversion

template <typename T, typename U, bool isSetMask = true>
inline void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask[],
                 const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, emu::Where where = emu::Here()) {
  emu::Cast("Cast", detail::With(dst, p.dstBlkStride, p.dstRepStride), detail::With(src, p.srcBlkStride, p.srcRepStride),
            static_cast<int>(roundMode), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint64_t mask,
                 const Small<uint8_t> repeatTime, const UnaryRepeatParams& p, emu::Where where = emu::Here()) {
  emu::Cast("Cast", detail::With(dst, p.dstBlkStride, p.dstRepStride), detail::With(src, p.srcBlkStride, p.srcRepStride),
            static_cast<int>(roundMode), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U>
inline void Cast(const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode, const uint32_t count,
                 emu::Where where = emu::Here()) {
  emu::Cast("Cast", detail::Plain(dst), detail::Plain(src), static_cast<int>(roundMode), detail::Counted(count), where);
}

// Arithmetic and conversion in one.
#define ATBFN_BINARY_CAST(NAME, OP)                                                                                    \
  template <typename T, typename U, bool isSetMask = true>                                                             \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, uint64_t mask,   \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::BinaryCast(emu::BinaryOp::OP, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                       \
                    detail::With(src0, p.src0BlkStride, p.src0RepStride),                                              \
                    detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask), \
                    where);                                                                                            \
  }                                                                                                                    \
  template <typename T, typename U, bool isSetMask = true>                                                             \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1, uint64_t mask[], \
                   const Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {     \
    emu::BinaryCast(emu::BinaryOp::OP, #NAME, detail::With(dst, p.dstBlkStride, p.dstRepStride),                       \
                    detail::With(src0, p.src0BlkStride, p.src0RepStride),                                              \
                    detail::With(src1, p.src1BlkStride, p.src1RepStride), detail::Masked(mask, repeatTime, isSetMask), \
                    where);                                                                                            \
  }                                                                                                                    \
  template <typename T, typename U>                                                                                    \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<U>& src0, const LocalTensor<U>& src1,                  \
                   const uint32_t count, emu::Where where = emu::Here()) {                                             \
    emu::BinaryCast(emu::BinaryOp::OP, #NAME, detail::Plain(dst), detail::Plain(src0), detail::Plain(src1),            \
                    detail::Counted(count), where);                                                                    \
  }
ATBFN_BINARY_CAST(AddReluCast, AddRelu)
ATBFN_BINARY_CAST(SubReluCast, SubRelu)
ATBFN_BINARY_CAST(MulCast, Mul)
#undef ATBFN_BINARY_CAST

// The factor of the conversion from int32_t to half.
inline void SetDeqScale(half scale) { emu::CoreRegisters().deq_scale = static_cast<float>(scale); }

// ------------------------------------------------------------------------------------------------------------ filling

template <typename T, bool isSetMask = true>
inline void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask, const Small<uint8_t> repeatTime,
                      const Small<uint16_t> dstBlockStride, const Small<uint8_t> dstRepeatStride, emu::Where where = emu::Here()) {
  emu::Duplicate(detail::With(dst, dstBlockStride, dstRepeatStride), detail::ScalarOf<T>(scalarValue),
                 detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, bool isSetMask = true>
inline void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, uint64_t mask[], const Small<uint8_t> repeatTime,
                      const Small<uint16_t> dstBlockStride, const Small<uint8_t> dstRepeatStride, emu::Where where = emu::Here()) {
  emu::Duplicate(detail::With(dst, dstBlockStride, dstRepeatStride), detail::ScalarOf<T>(scalarValue),
                 detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T>
inline void Duplicate(const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count, emu::Where where = emu::Here()) {
  emu::Duplicate(detail::Plain(dst), detail::ScalarOf<T>(scalarValue), detail::Counted(count), where);
}

template <typename T>
inline void Brcb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const Small<uint8_t> repeatTime, const BrcbRepeatParams& p,
                 emu::Where where = emu::Here()) {
  emu::Broadcast(dst.Handle(), src.Handle(), repeatTime, p.dstBlkStride, p.dstRepStride, where);
}

template <typename T>
inline void CreateVecIndex(const LocalTensor<T>& dst, const T& firstValue, uint64_t mask, Small<uint8_t> repeatTime,
                           Small<uint16_t> dstBlkStride, Small<uint8_t> dstRepStride, emu::Where where = emu::Here()) {
  emu::VectorIndex(detail::With(dst, dstBlkStride, dstRepStride), detail::ScalarOf<T>(firstValue),
                   detail::Masked(mask, repeatTime, true), where);
}
template <typename T>
inline void CreateVecIndex(const LocalTensor<T>& dst, const T& firstValue, uint64_t mask[], Small<uint8_t> repeatTime,
                           Small<uint16_t> dstBlkStride, Small<uint8_t> dstRepStride, emu::Where where = emu::Here()) {
  emu::VectorIndex(detail::With(dst, dstBlkStride, dstRepStride), detail::ScalarOf<T>(firstValue),
                   detail::Masked(mask, repeatTime, true), where);
}
template <typename T>
inline void CreateVecIndex(LocalTensor<T> dst, const T& firstValue, uint32_t count, emu::Where where = emu::Here()) {
  emu::VectorIndex(detail::Plain(dst), detail::ScalarOf<T>(firstValue), detail::Counted(count), where);
}

template <typename T, bool isSetMask = true>
inline void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[], const Small<uint8_t> repeatTime,
                 const CopyRepeatParams& p, emu::Where where = emu::Here()) {
  emu::CopyVector(detail::With(dst, p.dstStride, p.dstRepeatSize), detail::With(src, p.srcStride, p.srcRepeatSize),
                  detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, bool isSetMask = true>
inline void Copy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask, const Small<uint8_t> repeatTime,
                 const CopyRepeatParams& p, emu::Where where = emu::Here()) {
  emu::CopyVector(detail::With(dst, p.dstStride, p.dstRepeatSize), detail::With(src, p.srcStride, p.srcRepeatSize),
                  detail::Masked(mask, repeatTime, isSetMask), where);
}

// ----------------------------------------------------------------------------------------------- compare and select

template <typename T, typename U, bool isSetMask = true>
inline void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
                    const uint64_t mask[], Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Compare("Compare", &dst.Handle(), detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {},
               static_cast<int>(cmpMode), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
                    const uint64_t mask, Small<uint8_t> repeatTime, const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Compare("Compare", &dst.Handle(), detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {},
               static_cast<int>(cmpMode), detail::Masked(mask, repeatTime, isSetMask), where);
}
// Into the compare register.
template <typename T, bool isSetMask = true>
inline void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, const uint64_t mask[],
                    const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Compare("Compare", nullptr, detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {}, static_cast<int>(cmpMode),
               detail::Masked(mask, 1, isSetMask), where);
}
template <typename T, bool isSetMask = true>
inline void Compare(const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode, const uint64_t mask,
                    const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Compare("Compare", nullptr, detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {}, static_cast<int>(cmpMode),
               detail::Masked(mask, 1, isSetMask), where);
}
template <typename T, typename U>
inline void Compare(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, CMPMODE cmpMode,
                    uint32_t count, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::Plain(src1);
  emu::Compare("Compare", &dst.Handle(), detail::Plain(src0), &b, {}, static_cast<int>(cmpMode), detail::Counted(count), where);
}
#define ATBFN_COMPARE_SCALAR(NAME)                                                                                     \
  template <typename T, typename U, bool isSetMask = true>                                                             \
  inline void NAME(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,         \
                   const uint64_t mask[], Small<uint8_t> repeatTime, const UnaryRepeatParams& p,                       \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::Compare(#NAME, &dst.Handle(), detail::With(src0, p.srcBlkStride, p.srcRepStride), nullptr,                    \
                 detail::ScalarOf<T>(src1Scalar), static_cast<int>(cmpMode),                                           \
                 detail::Masked(mask, repeatTime, isSetMask), where);                                                  \
  }                                                                                                                    \
  template <typename T, typename U, bool isSetMask = true>                                                             \
  inline void NAME(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,         \
                   const uint64_t mask, Small<uint8_t> repeatTime, const UnaryRepeatParams& p,                         \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::Compare(#NAME, &dst.Handle(), detail::With(src0, p.srcBlkStride, p.srcRepStride), nullptr,                    \
                 detail::ScalarOf<T>(src1Scalar), static_cast<int>(cmpMode),                                           \
                 detail::Masked(mask, repeatTime, isSetMask), where);                                                  \
  }                                                                                                                    \
  template <typename T, typename U>                                                                                    \
  inline void NAME(const LocalTensor<U>& dst, const LocalTensor<T>& src0, const T src1Scalar, CMPMODE cmpMode,         \
                   uint32_t count, emu::Where where = emu::Here()) {                                                   \
    emu::Compare(#NAME, &dst.Handle(), detail::Plain(src0), nullptr, detail::ScalarOf<T>(src1Scalar),                  \
                 static_cast<int>(cmpMode), detail::Counted(count), where);                                            \
  }
ATBFN_COMPARE_SCALAR(Compares)
ATBFN_COMPARE_SCALAR(CompareScalar)
#undef ATBFN_COMPARE_SCALAR

template <typename T>
inline void GetCmpMask(const LocalTensor<T>& dst, emu::Where where = emu::Here()) { emu::GetCompareMask(dst.Handle(), where); }
template <typename T>
inline void SetCmpMask(const LocalTensor<T>& src, emu::Where where = emu::Here()) { emu::SetCompareMask(src.Handle(), where); }

template <typename T, typename U, bool isSetMask = true>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                   const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask[], Small<uint8_t> repeatTime,
                   const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Select(detail::With(dst, p.dstBlkStride, p.dstRepStride), &selMask.Handle(),
              detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {}, static_cast<int>(selMode),
              detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                   const LocalTensor<T>& src1, SELMODE selMode, uint64_t mask, Small<uint8_t> repeatTime,
                   const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Select(detail::With(dst, p.dstBlkStride, p.dstRepStride), &selMask.Handle(),
              detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {}, static_cast<int>(selMode),
              detail::Masked(mask, repeatTime, isSetMask), where);
}
// By the compare register.
template <typename T, SELMODE selMode>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1, Small<uint8_t> repeatTime,
                   const BinaryRepeatParams& p, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::With(src1, p.src1BlkStride, p.src1RepStride);
  emu::Select(detail::With(dst, p.dstBlkStride, p.dstRepStride), nullptr,
              detail::With(src0, p.src0BlkStride, p.src0RepStride), &b, {}, static_cast<int>(selMode),
              detail::Masked(uint64_t{0}, repeatTime, false), where);
}
template <typename T, typename U>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0,
                   const LocalTensor<T>& src1, SELMODE selMode, uint32_t count, emu::Where where = emu::Here()) {
  const emu::Operand b = detail::Plain(src1);
  emu::Select(detail::Plain(dst), &selMask.Handle(), detail::Plain(src0), &b, {}, static_cast<int>(selMode),
              detail::Counted(count), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
                   SELMODE selMode, uint64_t mask[], Small<uint8_t> repeatTime, const BinaryRepeatParams& p,
                   emu::Where where = emu::Here()) {
  emu::Select(detail::With(dst, p.dstBlkStride, p.dstRepStride), &selMask.Handle(),
              detail::With(src0, p.src0BlkStride, p.src0RepStride), nullptr, detail::ScalarOf<T>(src1),
              static_cast<int>(selMode), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U, bool isSetMask = true>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
                   SELMODE selMode, uint64_t mask, Small<uint8_t> repeatTime, const BinaryRepeatParams& p,
                   emu::Where where = emu::Here()) {
  emu::Select(detail::With(dst, p.dstBlkStride, p.dstRepStride), &selMask.Handle(),
              detail::With(src0, p.src0BlkStride, p.src0RepStride), nullptr, detail::ScalarOf<T>(src1),
              static_cast<int>(selMode), detail::Masked(mask, repeatTime, isSetMask), where);
}
template <typename T, typename U>
inline void Select(const LocalTensor<T>& dst, const LocalTensor<U>& selMask, const LocalTensor<T>& src0, T src1,
                   SELMODE selMode, uint32_t count, emu::Where where = emu::Here()) {
  emu::Select(detail::Plain(dst), &selMask.Handle(), detail::Plain(src0), nullptr, detail::ScalarOf<T>(src1),
              static_cast<int>(selMode), detail::Counted(count), where);
}

template <class T>
template <class U>
void LocalTensor<T>::operator=(const TensorExpression<U>& e) {
  emu::Binary(e.op, "operator", detail::Plain(*this), detail::Plain(e.a), detail::Plain(e.b), detail::Counted(GetSize()), emu::Here());
}
template <class T>
template <class U>
void LocalTensor<T>::operator=(const TensorComparison<U>& e) {
  const emu::Operand b = detail::Plain(e.b);
  emu::Compare("operator", &Handle(), detail::Plain(e.a), &b, {}, static_cast<int>(e.mode), detail::Counted(e.a.GetSize()), emu::Here());
}

// --------------------------------------------------------------------------------------------------------- reductions

// A result for every block of 32 bytes.
template <ReduceType type, typename T, typename U, bool isSetMask = true>
inline void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, const int32_t mask, const int32_t repeatTime,
                            const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                            emu::Where where = emu::Here()) {
  emu::ReduceBlocks(detail::ReduceOf(type), "ReduceDataBlock", dst.Handle(), src.Handle(),
                    detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, srcBlkStride,
                    srcRepStride, where);
}
template <ReduceType type, typename T, typename U, bool isSetMask = true>
inline void ReduceDataBlock(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint64_t mask[], const int32_t repeatTime,
                            const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                            emu::Where where = emu::Here()) {
  emu::ReduceBlocks(detail::ReduceOf(type), "ReduceDataBlock", dst.Handle(), src.Handle(),
                    detail::Masked(mask, repeatTime, isSetMask), dstRepStride, srcBlkStride, srcRepStride, where);
}
// A result for every two neighbours.
template <ReduceType type, typename T, typename U, bool isSetMask = true>
inline void ReducePairElem(const LocalTensor<T>& dst, const LocalTensor<U>& src, const int32_t mask, const int32_t repeatTime,
                           const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                           emu::Where where = emu::Here()) {
  static_assert(type == ReduceType::SUM, "ReducePairElem: only ReduceType::SUM exists");
  emu::ReducePairs("ReducePairElem", dst.Handle(), src.Handle(),
                   detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, srcBlkStride,
                   srcRepStride, where);
}
template <ReduceType type, typename T, typename U, bool isSetMask = true>
inline void ReducePairElem(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint64_t mask[], const int32_t repeatTime,
                           const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                           emu::Where where = emu::Here()) {
  static_assert(type == ReduceType::SUM, "ReducePairElem: only ReduceType::SUM exists");
  emu::ReducePairs("ReducePairElem", dst.Handle(), src.Handle(), detail::Masked(mask, repeatTime, isSetMask), dstRepStride,
                   srcBlkStride, srcRepStride, where);
}
// A result for every repeat; of extremes also where in the repeat it was.
template <ReduceType type, typename T, typename U, bool isSetMask = true>
inline void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, const int32_t mask, const int32_t repeatTime,
                         const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                         ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, emu::Where where = emu::Here()) {
  emu::ReduceRepeats(detail::ReduceOf(type), "ReduceRepeat", dst.Handle(), src.Handle(),
                     detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, srcBlkStride,
                     srcRepStride, static_cast<int>(order), where);
}
template <ReduceType type, typename T, typename U, bool isSetMask = true>
inline void ReduceRepeat(const LocalTensor<T>& dst, const LocalTensor<U>& src, const uint64_t mask[], const int32_t repeatTime,
                         const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                         ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, emu::Where where = emu::Here()) {
  emu::ReduceRepeats(detail::ReduceOf(type), "ReduceRepeat", dst.Handle(), src.Handle(),
                     detail::Masked(mask, repeatTime, isSetMask), dstRepStride, srcBlkStride, srcRepStride,
                     static_cast<int>(order), where);
}

// The older names of the same. Those of blocks and pairs take the repeats before the mask, those of repeats after it.
#define ATBFN_REDUCE(NAME, FUNCTION, OP, MASK, LANES)                                                                  \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, MASK,               \
                   const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,                 \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::FUNCTION(emu::ReduceOp::OP, #NAME, dst.Handle(), src.Handle(), LANES, dstRepStride, srcBlkStride,             \
                  srcRepStride, where);                                                                                \
  }
#define ATBFN_COUNT_LANES detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask)
#define ATBFN_BIT_LANES detail::Masked(mask, repeatTime, isSetMask)
ATBFN_REDUCE(BlockReduceSum, ReduceBlocks, Sum, const int32_t mask, ATBFN_COUNT_LANES)
ATBFN_REDUCE(BlockReduceSum, ReduceBlocks, Sum, const uint64_t mask[], ATBFN_BIT_LANES)
ATBFN_REDUCE(BlockReduceMax, ReduceBlocks, Max, const int32_t mask, ATBFN_COUNT_LANES)
ATBFN_REDUCE(BlockReduceMax, ReduceBlocks, Max, const uint64_t mask[], ATBFN_BIT_LANES)
ATBFN_REDUCE(BlockReduceMin, ReduceBlocks, Min, const int32_t mask, ATBFN_COUNT_LANES)
ATBFN_REDUCE(BlockReduceMin, ReduceBlocks, Min, const uint64_t mask[], ATBFN_BIT_LANES)
#undef ATBFN_REDUCE
#define ATBFN_REDUCE(NAME, OP, MASK, LANES)                                                                            \
  template <typename T, bool isSetMask = true>                                                                         \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, MASK, const int32_t repeatTime,               \
                   const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,                 \
                   ReduceOrder order = ReduceOrder::ORDER_VALUE_INDEX, emu::Where where = emu::Here()) {               \
    emu::ReduceRepeats(emu::ReduceOp::OP, #NAME, dst.Handle(), src.Handle(), LANES, dstRepStride, srcBlkStride,        \
                       srcRepStride, static_cast<int>(order), where);                                                  \
  }
ATBFN_REDUCE(WholeReduceMax, Max, const int32_t mask, ATBFN_COUNT_LANES)
ATBFN_REDUCE(WholeReduceMax, Max, const uint64_t mask[], ATBFN_BIT_LANES)
ATBFN_REDUCE(WholeReduceMin, Min, const int32_t mask, ATBFN_COUNT_LANES)
ATBFN_REDUCE(WholeReduceMin, Min, const uint64_t mask[], ATBFN_BIT_LANES)
#undef ATBFN_REDUCE
#undef ATBFN_COUNT_LANES
#undef ATBFN_BIT_LANES
template <typename T, bool isSetMask = true>
inline void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t mask, const int32_t repeatTime,
                           const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                           emu::Where where = emu::Here()) {
  emu::ReduceRepeats(emu::ReduceOp::Sum, "WholeReduceSum", dst.Handle(), src.Handle(),
                     detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, srcBlkStride,
                     srcRepStride, 0, where);
}
template <typename T, bool isSetMask = true>
inline void WholeReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint64_t mask[], const int32_t repeatTime,
                           const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                           emu::Where where = emu::Here()) {
  emu::ReduceRepeats(emu::ReduceOp::Sum, "WholeReduceSum", dst.Handle(), src.Handle(),
                     detail::Masked(mask, repeatTime, isSetMask), dstRepStride, srcBlkStride, srcRepStride, 0, where);
}
template <typename T, bool isSetMask = true>
inline void RepeatReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, const int32_t mask,
                            const int32_t dstBlkStride, const int32_t srcBlkStride, const int32_t dstRepStride,
                            const int32_t srcRepStride, emu::Where where = emu::Here()) {
  emu::ReduceRepeats(emu::ReduceOp::Sum, "RepeatReduceSum", dst.Handle(), src.Handle(),
                     detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, srcBlkStride,
                     srcRepStride, 0, where);
}
template <typename T, bool isSetMask = true>
inline void PairReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, const int32_t mask,
                          const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                          emu::Where where = emu::Here()) {
  emu::ReducePairs("PairReduceSum", dst.Handle(), src.Handle(),
                   detail::Masked(static_cast<uint64_t>(mask), repeatTime, isSetMask), dstRepStride, srcBlkStride,
                   srcRepStride, where);
}
template <typename T, bool isSetMask = true>
inline void PairReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const int32_t repeatTime, const uint64_t mask[],
                          const int32_t dstRepStride, const int32_t srcBlkStride, const int32_t srcRepStride,
                          emu::Where where = emu::Here()) {
  emu::ReducePairs("PairReduceSum", dst.Handle(), src.Handle(), detail::Masked(mask, repeatTime, isSetMask), dstRepStride,
                   srcBlkStride, srcRepStride, where);
}

// All elements to one; of extremes, on request, also which it was.
#define ATBFN_REDUCE(NAME, OP)                                                                                         \
  template <typename T>                                                                                                \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,        \
                   const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = 0,        \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::ReduceAll(emu::ReduceOp::OP, #NAME, dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),                     \
                   detail::Masked(static_cast<uint64_t>(mask), repeatTime, true), srcRepStride, calIndex, where);      \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,        \
                   const uint64_t mask[], const int32_t repeatTime, const int32_t srcRepStride, bool calIndex = 0,     \
                   emu::Where where = emu::Here()) {                                                                   \
    emu::ReduceAll(emu::ReduceOp::OP, #NAME, dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),                     \
                   detail::Masked(mask, repeatTime, true), srcRepStride, calIndex, where);                             \
  }                                                                                                                    \
  template <typename T>                                                                                                \
  inline void NAME(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,        \
                   const int32_t count, bool calIndex = 0, emu::Where where = emu::Here()) {                           \
    emu::ReduceAll(emu::ReduceOp::OP, #NAME, dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),                     \
                   detail::Counted(count), 8, calIndex, where);                                                        \
  }
ATBFN_REDUCE(ReduceMax, Max)
ATBFN_REDUCE(ReduceMin, Min)
#undef ATBFN_REDUCE
template <typename T>
inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
                      const int32_t mask, const int32_t repeatTime, const int32_t srcRepStride, emu::Where where = emu::Here()) {
  emu::ReduceAll(emu::ReduceOp::Sum, "ReduceSum", dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),
                 detail::Masked(static_cast<uint64_t>(mask), repeatTime, true), srcRepStride, false, where);
}
template <typename T>
inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
                      const uint64_t mask[], const int32_t repeatTime, const int32_t srcRepStride, emu::Where where = emu::Here()) {
  emu::ReduceAll(emu::ReduceOp::Sum, "ReduceSum", dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),
                 detail::Masked(mask, repeatTime, true), srcRepStride, false, where);
}
template <typename T, bool isSetMask = true>
inline void ReduceSum(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<T>& sharedTmpBuffer,
                      const int32_t count, emu::Where where = emu::Here()) {
  emu::ReduceAll(emu::ReduceOp::Sum, "ReduceSum", dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),
                 detail::Counted(count, isSetMask), 8, false, where);
}

// What the last reduction of a repeat left in the registers.
template <typename T>
inline void GetReduceRepeatMaxMinSpr(T& value, T& index) {
  value = detail::FromBits<T>(emu::CoreRegisters().extreme[0]);
  index = detail::FromBits<T>(emu::CoreRegisters().extreme[1]);
}
template <typename T>
inline void GetReduceRepeatMaxMinSpr(T& value) { value = detail::FromBits<T>(emu::CoreRegisters().extreme[0]); }
template <typename T>
inline void GetReduceMaxMinCount(T& value, T& index) { GetReduceRepeatMaxMinSpr(value, index); }
template <typename T>
inline void GetReduceMaxMinCount(T& value) { GetReduceRepeatMaxMinSpr(value); }
template <typename T>
inline T GetReduceRepeatSumSpr() { return detail::FromBits<T>(emu::CoreRegisters().accumulated); }
template <typename T>
inline T GetAccVal() { return GetReduceRepeatSumSpr<T>(); }

// ----------------------------------------------------------------------------------------------- gathering, transposing

// dst[i] = the element at src + srcBaseOffset + srcOffset[i], in bytes.
template <typename T>
inline void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
                   const uint32_t srcBaseOffset, const uint64_t mask, const Small<uint8_t> repeatTime, const Small<uint16_t> dstRepStride,
                   emu::Where where = emu::Here()) {
  emu::GatherElements(dst.Handle(), src.Handle(), srcOffset.Handle(), srcBaseOffset, detail::Masked(mask, repeatTime, true),
                      dstRepStride, where);
}
template <typename T>
inline void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
                   const uint32_t srcBaseOffset, const uint64_t mask[], const Small<uint8_t> repeatTime, const Small<uint16_t> dstRepStride,
                   emu::Where where = emu::Here()) {
  emu::GatherElements(dst.Handle(), src.Handle(), srcOffset.Handle(), srcBaseOffset, detail::Masked(mask, repeatTime, true),
                      dstRepStride, where);
}
template <typename T>
inline void Gather(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
                   const uint32_t srcBaseOffset, const uint32_t count, emu::Where where = emu::Here()) {
  emu::GatherElements(dst.Handle(), src.Handle(), srcOffset.Handle(), srcBaseOffset, detail::Counted(count), 8, where);
}
template <typename T>
inline void Gatherb(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& offset,
                    const Small<uint8_t> repeatTime, const GatherRepeatParams& p, emu::Where where = emu::Here()) {
  emu::GatherBlocks(dst.Handle(), src.Handle(), offset.Handle(), repeatTime, p.dstBlkStride, p.dstRepStride, where);
}
template <typename T>
inline void Scatter(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& dstOffset,
                    const uint32_t dstBaseAddr, const uint64_t mask, const Small<uint8_t> repeatTime, const Small<uint8_t> srcRepStride,
                    emu::Where where = emu::Here()) {
  emu::ScatterElements(dst.Handle(), src.Handle(), dstOffset.Handle(), dstBaseAddr, detail::Masked(mask, repeatTime, true),
                       srcRepStride, where);
}
template <typename T>
inline void Scatter(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& dstOffset,
                    const uint32_t dstBaseAddr, const uint64_t mask[], const Small<uint8_t> repeatTime, const Small<uint8_t> srcRepStride,
                    emu::Where where = emu::Here()) {
  emu::ScatterElements(dst.Handle(), src.Handle(), dstOffset.Handle(), dstBaseAddr, detail::Masked(mask, repeatTime, true),
                       srcRepStride, where);
}
template <typename T>
inline void Scatter(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& dstOffset,
                    const uint32_t dstBaseAddr, const uint32_t count, emu::Where where = emu::Here()) {
  emu::ScatterElements(dst.Handle(), src.Handle(), dstOffset.Handle(), dstBaseAddr, detail::Counted(count), 8, where);
}
// Keeps the elements that a pattern names, one after the other.
template <typename T, typename U, GatherMaskMode mode = defaultGatherMaskMode>
inline void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<U>& src1Pattern,
                       const bool reduceMode, const uint32_t mask, const GatherMaskParams& p, uint64_t& rsvdCnt,
                       emu::Where where = emu::Here()) {
  rsvdCnt = emu::GatherByMask(dst.Handle(), src0.Handle(), &src1Pattern.Handle(), 0, reduceMode, mask,
                              {p.src0BlockStride, p.repeatTimes, p.src0RepeatStride, p.src1RepeatStride}, where);
}
template <typename T, GatherMaskMode mode = defaultGatherMaskMode>
inline void GatherMask(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const Small<uint8_t> src1Pattern, const bool reduceMode,
                       const uint32_t mask, const GatherMaskParams& p, uint64_t& rsvdCnt, emu::Where where = emu::Here()) {
  rsvdCnt = emu::GatherByMask(dst.Handle(), src0.Handle(), nullptr, src1Pattern, reduceMode, mask,
                              {p.src0BlockStride, p.repeatTimes, p.src0RepeatStride, p.src1RepeatStride}, where);
}
inline int64_t GetGatherMaskRemainCount() { return emu::CoreRegisters().reserved_count; }

template <typename T>
inline void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, emu::Where where = emu::Here()) {
  emu::Transpose16(dst.Handle(), src.Handle(), where);
}
template <typename T>
inline void Transpose(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint8_t>& sharedTmpBuffer,
                      const TransposeParamsExt& p, emu::Where where = emu::Here()) {
  emu::TransposeShaped(dst.Handle(), src.Handle(), sharedTmpBuffer.Handle(),
                       {p.nSize, p.cSize, p.hSize, p.wSize, static_cast<int>(p.transposeType)}, where);
}
template <typename T>
inline void TransDataTo5HD(uint64_t dstList[NCHW_CONV_ADDR_LIST_SIZE], uint64_t srcList[NCHW_CONV_ADDR_LIST_SIZE],
                           const TransDataTo5HDParams& p, emu::Where where = emu::Here()) {
  emu::TransposeBlocks(dstList, srcList, DTypeOf<T>(), {p.dstHighHalf, p.srcHighHalf, p.repeatTimes, p.dstRepStride, p.srcRepStride},
                       where);
}
template <typename T>
inline void TransDataTo5HD(const LocalTensor<T> (&dstList)[NCHW_CONV_ADDR_LIST_SIZE],
                           const LocalTensor<T> (&srcList)[NCHW_CONV_ADDR_LIST_SIZE], const TransDataTo5HDParams& p,
                           emu::Where where = emu::Here()) {
  uint64_t dst[NCHW_CONV_ADDR_LIST_SIZE], src[NCHW_CONV_ADDR_LIST_SIZE];
  for (int i = 0; i < NCHW_CONV_ADDR_LIST_SIZE; ++i) {
    dst[i] = dstList[i].GetPhyAddr();
    src[i] = srcList[i].GetPhyAddr();
  }
  TransDataTo5HD<T>(dst, src, p, where);
}

// With the addresses in tensors, written there by the scalar unit.
template <typename T>
inline void TransDataTo5HD(const LocalTensor<uint64_t>& dst, const LocalTensor<uint64_t>& src, const TransDataTo5HDParams& p,
                           emu::Where where = emu::Here()) {
  uint64_t to[NCHW_CONV_ADDR_LIST_SIZE], from[NCHW_CONV_ADDR_LIST_SIZE];
  for (uint32_t i = 0; i < NCHW_CONV_ADDR_LIST_SIZE; ++i) {
    to[i] = dst.GetValue(i, where);
    from[i] = src.GetValue(i, where);
  }
  TransDataTo5HD<T>(to, from, p, where);
}

// ------------------------------------------------------------------------------------------------------------- sorting

template <typename T>
inline void Sort32(const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<uint32_t>& src1,
                   const int32_t repeatTime, emu::Where where = emu::Here()) {
  emu::SortRegions(dst.Handle(), src0.Handle(), src1.Handle(), repeatTime, where);
}
template <typename T>
inline void MrgSort(const LocalTensor<T>& dst, const MrgSortSrcList<T>& src, const MrgSort4Info& p, emu::Where where = emu::Here()) {
  const emu::Tensor lists[4] = {src.src1.Handle(), src.src2.Handle(), src.src3.Handle(), src.src4.Handle()};
  emu::MergeSorted(dst.Handle(), lists,
                   {{p.elementLengths[0], p.elementLengths[1], p.elementLengths[2], p.elementLengths[3]},
                    p.ifExhaustedSuspension, p.validBit, p.repeatTimes}, where);
}
// How many entries the last MrgSort took of each list.
inline void GetMrgSortResult(uint16_t& list1, uint16_t& list2, uint16_t& list3, uint16_t& list4) {
  uint16_t taken[4];
  emu::MergedCounts(taken);
  list1 = taken[0];
  list2 = taken[1];
  list3 = taken[2];
  list4 = taken[3];
}
template <typename T>
inline uint32_t GetSortOffset(const uint32_t elemOffset) { return elemOffset * 8 / static_cast<uint32_t>(sizeof(T)); }
template <typename T>
inline uint32_t GetSortLen(const uint32_t elemCount) { return elemCount * 8 / static_cast<uint32_t>(sizeof(T)); }

// ------------------------------------------------------------------------------------------------- masks and modes

template <typename T, MaskMode mode = MaskMode::NORMAL>
inline void SetVectorMask(const uint64_t maskHigh, const uint64_t maskLow) {
  emu::CoreRegisters().mask_high = maskHigh;
  emu::CoreRegisters().mask_low = maskLow;
}
template <typename T, MaskMode mode = MaskMode::NORMAL>
inline void SetVectorMask(int32_t len) {
  if constexpr (mode == MaskMode::COUNTER) {
    SetVectorMask<T, mode>(0, static_cast<uint64_t>(len));
  } else {
    SetVectorMask<T, mode>(len <= 64 ? 0 : len >= 128 ? ~0ull : (1ull << (len - 64)) - 1, len >= 64 ? ~0ull : (1ull << len) - 1);
  }
}
inline void SetMaskCount() { emu::CoreRegisters().mask_count = true; }
inline void SetMaskNorm() { emu::CoreRegisters().mask_count = false; }
inline void ResetMask() { SetVectorMask<half>(~0ull, ~0ull); }

// Copies to GM combine with what is there until SetAtomicNone.
namespace detail {
template <class T>
void Atomic(uint8_t operation, emu::Where where) {
  constexpr emu::DType dtype = DTypeOf<T>();
  constexpr uint32_t legal = emu::Bit(emu::DType::F32) | emu::Bit(emu::DType::F16) | emu::Bit(emu::DType::I16) |
                             emu::Bit(emu::DType::I32) | emu::Bit(emu::DType::I8) | emu::Bit(emu::DType::BF16);
  if (!(legal >> static_cast<int>(dtype) & 1u))
    emu::Refuse("dtype", where, "atomic copies of %s do not exist", emu::Name(dtype));
  emu::CoreRegisters().atomic = operation;
  emu::CoreRegisters().atomic_dtype = dtype;
}
}  // namespace detail
template <typename T>
inline void SetAtomicAdd(emu::Where where = emu::Here()) { detail::Atomic<T>(1, where); }
template <typename T>
inline void SetAtomicMax(emu::Where where = emu::Here()) { detail::Atomic<T>(2, where); }
template <typename T>
inline void SetAtomicMin(emu::Where where = emu::Here()) { detail::Atomic<T>(3, where); }
template <typename T>
inline void SetAtomicType(emu::Where where = emu::Here()) { detail::Atomic<T>(emu::CoreRegisters().atomic, where); }
inline void SetAtomicNone() { emu::CoreRegisters().atomic = 0; }
inline void DisableDmaAtomic() { SetAtomicNone(); }

template <SaturationMode mode>
inline void SetSaturationFlag(bool enable) { emu::CoreRegisters().saturate = enable; }
template <SaturationMode mode>
inline bool GetSaturationFlag() { return emu::CoreRegisters().saturate; }

// ------------------------------------------------------------------------------------------------------ scalar values

// A scalar's conversion with a rounding mode, and its older name.
template <typename T, typename U, RoundMode roundMode>
inline U ScalarCast(T value) {
  if constexpr (std::is_integral_v<U>) {
    const float x = static_cast<float>(value);
    switch (roundMode) {
      case RoundMode::CAST_FLOOR: return static_cast<U>(std::floor(x));
      case RoundMode::CAST_CEIL: return static_cast<U>(std::ceil(x));
      case RoundMode::CAST_ROUND: return static_cast<U>(std::round(x));
      case RoundMode::CAST_TRUNC: return static_cast<U>(std::trunc(x));
      default: return static_cast<U>(std::nearbyint(x));
    }
  } else if constexpr (std::is_same_v<U, half> && roundMode == RoundMode::CAST_ODD) {
    const half nearest = static_cast<half>(value);
    uint16_t bits = static_cast<uint16_t>(detail::Bits(nearest));
    const float back = static_cast<float>(nearest), exact = static_cast<float>(value);
    if (std::fabs(back) > std::fabs(exact)) --bits;  // towards zero first
    if (back != exact && !std::isnan(exact)) bits |= 1;
    return detail::FromBits<half>(bits);
  } else {
    return static_cast<U>(value);
  }
}
template <typename T, typename U, RoundMode roundMode>
inline U Cast(T value) { return ScalarCast<T, U, roundMode>(value); }
inline bfloat16_t ToBfloat16(const float& value) { return bfloat16_t(value); }
inline float ToFloat(const bfloat16_t& value) { return static_cast<float>(value); }
inline bfloat16_t Cast(const float& value) { return bfloat16_t(value); }
inline float Cast(const bfloat16_t& value) { return static_cast<float>(value); }

// The limits of a type; half and bfloat16_t included.
template <typename T>
struct NumericLimits {
  static T Max() { return Pick(0x7bff, 0x7f7f, std::numeric_limits<float>::max()); }
  static T Lowest() { return Pick(0xfbff, 0xff7f, std::numeric_limits<float>::lowest()); }
  static T Min() { return Pick(0x0400, 0x0080, std::numeric_limits<float>::min()); }
  static T Infinity() { return Pick(0x7c00, 0x7f80, std::numeric_limits<float>::infinity()); }
  static T NegativeInfinity() { return Pick(0xfc00, 0xff80, -std::numeric_limits<float>::infinity()); }
  static T QuietNaN() { return Pick(0x7e00, 0x7fc0, std::numeric_limits<float>::quiet_NaN()); }
  static T DeNormMin() { return Pick(0x0001, 0x0001, std::numeric_limits<float>::denorm_min()); }

 private:
  static T Pick(uint16_t half_bits, uint16_t bfloat_bits, float wide) {
    if constexpr (std::is_same_v<T, half>) return detail::FromBits<T>(half_bits);
    else if constexpr (std::is_same_v<T, bfloat16_t>) return detail::FromBits<T>(bfloat_bits);
    else if constexpr (std::is_same_v<T, float>) return wide;
    else return wide > 0 && wide >= 1 ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest();
  }
};

}  // namespace AscendC
