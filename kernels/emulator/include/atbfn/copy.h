// Data movement, as the Ascend C headers call it. Parameters arrive as the program states them; runtime/copy.cc knows the
// units and limits of each path.
#pragma once

#include "atbfn/emulator.h"

namespace atbfn::emulator {

// `count` blocks of `length`, with gaps between them.
struct Blocks {
  uint32_t count, length;
  int64_t src_gap, dst_gap;
};

// Rows of a matrix to fractal columns of 32 bytes. Strides of the source in elements, of the result in 32 bytes, between
// matrices in elements.
struct NdToNz {
  uint32_t matrices, rows, columns;
  uint64_t src_matrix_stride, src_row_stride;
  uint32_t dst_c0_stride, dst_row_stride, dst_matrix_stride;
  bool column_major;  // the source is stored by columns (Dn2Nz)
  bool small_c0;      // fractal columns of 4 elements
};

// Columns of 16 elements to rows. The source's strides in 256 and 16 elements, the result's in elements.
struct NzToNd {
  uint32_t matrices, rows, columns;
  uint32_t src_matrix_stride, src_column_stride, dst_row_stride, dst_matrix_stride;
};

struct Padding {
  bool given;               // `value` is meant; otherwise that of SetPadValue
  uint32_t left, right;     // elements
  uint64_t value;           // bits
};

struct Slice {
  uint32_t start, end, stride, burst, shape;
};

// Blocks in bytes, gaps in the unit of the path: 32 bytes on chip, bytes in GM.
void CopyCount(const Tensor& dst, const Global& src, uint32_t count, Where where);
void CopyCount(const Global& dst, const Tensor& src, uint32_t count, Where where);
void CopyCount(const Tensor& dst, const Tensor& src, uint32_t count, Where where);
void CopyBlocks(const Tensor& dst, const Global& src, const Blocks& blocks, Where where);
void CopyBlocks(const Global& dst, const Tensor& src, const Blocks& blocks, Where where);
void CopyBlocks(const Tensor& dst, const Tensor& src, const Blocks& blocks, Where where);
void CopyNdToNz(const Tensor& dst, const Global& src, const NdToNz& p, Where where);
void CopyNdToNz(const Tensor& dst, const Tensor& src, const NdToNz& p, Where where);
void CopyNzToNd(const Global& dst, const Tensor& src, const NzToNd& p, Where where);
void CopySlices(const Tensor& dst, const Global& src, const Slice* to, const Slice* from, uint32_t dimensions,
                Where where);
void CopySlices(const Global& dst, const Tensor& src, const Slice* to, const Slice* from, uint32_t dimensions,
                Where where);
void CopyPad(const Tensor& dst, const Global& src, const Blocks& blocks, const Padding& padding, bool compact,
             Where where);
void CopyPad(const Global& dst, const Tensor& src, const Blocks& blocks, bool compact, Where where);
void CopyPad(const Tensor& dst, const Tensor& src, const Blocks& blocks, const NdToNz& p, Where where);

// Several dimensions at once with padding around each (chips with NDDMA). Index 0 is the innermost dimension.
struct Dimension {
  uint64_t src_stride;
  uint32_t dst_stride, size;
  uint8_t left, right;
};
void CopyDimensions(const Tensor& dst, const Global& src, const Dimension* dimensions, int count, uint64_t constant,
                    bool nearest, Where where);

// L0C to UB or back, on chips whose cube and vector units share a core.
struct Enhanced {
  uint8_t mode;   // BlockMode
  uint8_t scale;  // DeqScale
  uint64_t value; // of the scale
  uint8_t store_mode;
  bool relu;
};
void CopyEnhanced(const Tensor& dst, const Tensor& src, const Blocks& blocks, const Enhanced& enhanced, Where where);

// Fills GM with a value of `element` bytes, as the vector core that runs it does.
void FillGlobal(const Global& dst, uint64_t count, uint64_t value, const char* name, Where where);

// GM accesses of the scalar unit that are atomic between cores. `how`: 1 add, 2 max, 3 min, 4 exchange, 5 compare.
uint64_t ScalarAtomic(const Global& at, uint64_t value, uint64_t expected, int how, const char* name, Where where);
// Reads or writes one element of GM past the data cache.
uint64_t ScalarLoad(const Global& at, const char* name, Where where);
void ScalarStore(const Global& at, uint64_t value, const char* name, Where where);

}  // namespace atbfn::emulator
