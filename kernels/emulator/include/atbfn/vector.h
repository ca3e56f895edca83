// The vector unit: what the Ascend C headers call. All three call forms of an instruction come down to Lanes.
#pragma once

#include "atbfn/emulator.h"

namespace atbfn::emulator {

// Which elements an instruction works on: the first `count`, or those that a mask selects in each of `repeats` repeats of
// 256 bytes.
struct Lanes {
  enum Form : uint8_t { Count, Mask, Bits } form = Count;
  bool set_mask = true;   // else the register that SetVectorMask set counts
  int64_t count = 0;      // Count: elements; Mask: active elements of a repeat
  uint64_t low = 0, high = 0;
  int64_t repeats = 0;
};
// Distances between blocks of 32 bytes within a repeat, and between repeats, in blocks.
struct Strides {
  uint32_t block = 1, repeat = 8;
};
struct Operand {
  Tensor tensor;
  Strides strides;
};
// A scalar operand, as bits of its type.
struct Scalar {
  DType dtype;
  uint64_t bits;
};

enum class UnaryOp : uint8_t { Exp, Ln, Abs, Sqrt, Rsqrt, Reciprocal, Relu, Not, Neg };
enum class BinaryOp : uint8_t { Add, Sub, Mul, Div, Max, Min, And, Or, AddRelu, SubRelu };
enum class ScalarOp : uint8_t { Adds, Muls, Maxs, Mins, LeakyRelu, ShiftLeft, ShiftRight, ShiftRightRound };
enum class FusedOp : uint8_t { MulAddDst, FusedMulAdd, FusedMulAddRelu };
enum class ReduceOp : uint8_t { Sum, Max, Min };

void Unary(UnaryOp op, const char* name, const Operand& dst, const Operand& src, const Lanes& lanes, Where where);
void Binary(BinaryOp op, const char* name, const Operand& dst, const Operand& a, const Operand& b, const Lanes& lanes,
            Where where);
void WithScalar(ScalarOp op, const char* name, const Operand& dst, const Operand& src, Scalar scalar, const Lanes& lanes,
                Where where);
// dst = a * b + dst, or a * dst + b, and their relu.
void Fused(FusedOp op, const char* name, const Operand& dst, const Operand& a, const Operand& b, const Lanes& lanes,
           Where where);
void Axpy(const Operand& dst, const Operand& src, Scalar scalar, const Lanes& lanes, Where where);
// round: RoundMode's value.
void Cast(const char* name, const Operand& dst, const Operand& src, int round, const Lanes& lanes, Where where);
void BinaryCast(BinaryOp op, const char* name, const Operand& dst, const Operand& a, const Operand& b, const Lanes& lanes,
                Where where);
void Duplicate(const Operand& dst, Scalar scalar, const Lanes& lanes, Where where);
void VectorIndex(const Operand& dst, Scalar first, const Lanes& lanes, Where where);
void Broadcast(const Tensor& dst, const Tensor& src, int repeats, uint32_t block, uint32_t repeat, Where where);
void CopyVector(const Operand& dst, const Operand& src, const Lanes& lanes, Where where);

// mode: CMPMODE's value. Without dst the result goes to the compare register.
void Compare(const char* name, const Tensor* dst, const Operand& a, const Operand* b, Scalar scalar, int mode,
             const Lanes& lanes, Where where);
// mode: SELMODE's value. Without b the scalar takes its place; without a mask tensor the compare register.
void Select(const Operand& dst, const Tensor* mask, const Operand& a, const Operand* b, Scalar scalar, int mode,
            const Lanes& lanes, Where where);
void GetCompareMask(const Tensor& dst, Where where);
void SetCompareMask(const Tensor& src, Where where);

// One result a repeat, or block, or pair. dst_stride counts results of a repeat (see the documentation of each).
// order: ReduceOrder's value.
void ReduceRepeats(ReduceOp op, const char* name, const Tensor& dst, const Tensor& src, const Lanes& lanes,
                   int64_t dst_stride, int64_t block_stride, int64_t repeat_stride, int order, Where where);
void ReduceBlocks(ReduceOp op, const char* name, const Tensor& dst, const Tensor& src, const Lanes& lanes,
                  int64_t dst_stride, int64_t block_stride, int64_t repeat_stride, Where where);
void ReducePairs(const char* name, const Tensor& dst, const Tensor& src, const Lanes& lanes, int64_t dst_stride,
                 int64_t block_stride, int64_t repeat_stride, Where where);
// All to one.
void ReduceAll(ReduceOp op, const char* name, const Tensor& dst, const Tensor& src, const Tensor& scratch,
               const Lanes& lanes, int64_t repeat_stride, bool index, Where where);

void GatherElements(const Tensor& dst, const Tensor& src, const Tensor& offsets, uint32_t base, const Lanes& lanes,
                    uint32_t repeat_stride, Where where);
void GatherBlocks(const Tensor& dst, const Tensor& src, const Tensor& offsets, int repeats, uint32_t block,
                  uint32_t repeat, Where where);
void ScatterElements(const Tensor& dst, const Tensor& src, const Tensor& offsets, uint32_t base, const Lanes& lanes,
                     uint32_t repeat_stride, Where where);
struct GatherMaskShape {
  uint32_t block_stride, repeats, repeat_stride, pattern_stride;
};
// Without a pattern tensor, `pattern` is a number from 1 to 7. Returns how many elements were kept.
uint64_t GatherByMask(const Tensor& dst, const Tensor& src, const Tensor* pattern, int number, bool reduce_mode,
                      uint32_t mask, GatherMaskShape shape, Where where);

void Transpose16(const Tensor& dst, const Tensor& src, Where where);
struct TransposeShape {
  uint32_t n, c, h, w;
  int type;
};
void TransposeShaped(const Tensor& dst, const Tensor& src, const Tensor& scratch, TransposeShape shape, Where where);
struct To5HD {
  bool dst_high, src_high;
  uint32_t repeats, dst_stride, src_stride;
};
// Addresses as LocalTensor::GetPhyAddr packs them.
void TransposeBlocks(const uint64_t dst[16], const uint64_t src[16], DType dtype, To5HD shape, Where where);
Tensor Unpack(uint64_t address, DType dtype, uint8_t element);

void SortRegions(const Tensor& dst, const Tensor& src, const Tensor& index, int repeats, Where where);
struct Merge {
  uint16_t lengths[4];
  bool stop_when_one_ends;
  uint16_t valid;
  uint16_t repeats;
};
void MergedCounts(uint16_t (&taken)[4]);  // of the last MergeSorted, by list
void MergeSorted(const Tensor& dst, const Tensor (&src)[4], Merge merge, Where where);

uint64_t ToBits(DType dtype, double value);

}  // namespace atbfn::emulator
