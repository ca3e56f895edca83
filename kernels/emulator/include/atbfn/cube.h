// The matrix unit, as the Ascend C headers call it. Parameters arrive as the program states them; runtime/cube.cc knows the
// layouts and limits of each chip.
#pragma once

#include "atbfn/emulator.h"

namespace atbfn::emulator {

struct Load2D {
  uint32_t start, repeats, src_stride, dst_gap;
  bool transpose, backwards;
};
void LoadFractals(const Tensor& dst, const Tensor& src, const Load2D& p, Where where);
void LoadFractals(const Tensor& dst, const Global& src, const Load2D& p, Where where);

struct Load2DV2 {
  uint32_t m_start, k_start, m_step, k_step;
  int32_t src_stride;
  uint32_t dst_stride;
  bool transpose;
};
void LoadFractals(const Tensor& dst, const Tensor& src, const Load2DV2& p, Where where);
void LoadFractals(const Tensor& dst, const Global& src, const Load2DV2& p, Where where);

struct LoadTranspose {
  uint32_t start, repeats, src_stride, dst_gap, dst_fractal_gap, src_fractal_gap;
  bool backwards;
  bool fine;  // src strides count fractals, not squares
};
void LoadTransposed(const Tensor& dst, const Tensor& src, const LoadTranspose& p, Where where);
void LoadSparse(const Tensor& dst, const Tensor& src, const Tensor& index, uint32_t start, uint32_t repeats, Where where);

struct Load3D {
  uint32_t channels, k_extension, m_extension, k_start, m_start;
  uint32_t stride_w, stride_h, filter_w, filter_h, dilation_w, dilation_h;
  bool transpose, right;
};
void SetImage(int which, uint16_t height, uint16_t width, const uint8_t* padding);
void LoadImage(const Tensor& dst, const Tensor& src, const Load3D& p, bool strided, const char* name, Where where);

struct Load3DV1 {
  uint32_t c1, fetch_w, fetch_h, stride_w, stride_h, filter_w, filter_h, dilation_w, dilation_h;
  int32_t left, top;
  uint32_t jump, mode, repeats, c_size;
};
void LoadImage(const Tensor& dst, const Tensor& src, const Load3DV1& p, Where where);

void FillConstant(const Tensor& dst, uint32_t repeats, uint32_t blocks, uint32_t gap, uint64_t value, Where where);

struct Multiply {
  uint32_t m, n, k;
  uint8_t unit_flag;
  bool k_aligned, source_is_bias_table, start_at_zero, gemv;
};
void Mmad(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* bias, const Multiply& p, Where where);
void MmadSparse(const Tensor& c, const Tensor& a, const Tensor& b, const Multiply& p, Where where);

enum class FixLayout : uint8_t { NZ, Rows, Columns };
struct Fix {
  uint32_t n, m, src_stride, dst_stride;
  uint8_t quant;           // QuantMode_t
  uint64_t scale;          // of the scalar modes
  bool relu;
  uint8_t unit_flag;
  bool channel_split;
  FixLayout layout;
  uint32_t matrices, src_matrix_stride, dst_matrix_stride;
  uint32_t src_row_stride;   // NZ to columns: rows of the source, in C0
  bool elements;             // strides of an NZ result in elements instead of 32 bytes, of matrices in C0
  bool clip;                 // after relu: no more than SetFixPipeClipRelu's value
  const char* name;
};
// `workspace` in L1 holds a scale for each column (the vector modes); null: the scales are where SetFixPipeConfig said.
void Fixpipe(const Global& dst, const Tensor& src, const Tensor* workspace, const Fix& p, Where where);
void Fixpipe(const Tensor& dst, const Tensor& src, const Tensor* workspace, const Fix& p, Where where);

}  // namespace atbfn::emulator
