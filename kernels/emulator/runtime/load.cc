// Loads into L0A and L0B. They move fractals of 512 bytes: 16 rows of 32 bytes.
#include <algorithm>
#include <cstring>
#include <vector>

#include "atbfn/cube.h"
#include "moves.h"
#include "transpose.h"

namespace atbfn::emulator {

namespace {

int Arch() { return CurrentChip().arch; }

constexpr double kIssue = 16;

// Bytes per cycle of the paths out of L1, as published for the chip.
double Bandwidth(Space to) { return to == Space::L0A || Arch() == 3510 ? 256 : 128; }

uint32_t FractalTypes(bool nibbles) {
  uint32_t types = Bit(DType::I8) | Bit(DType::U8) | Bit(DType::I16) | Bit(DType::U16) | Bit(DType::F16);
  if (Arch() == 2201 || Arch() == 3510) types |= Bit(DType::BF16) | Bit(DType::I32) | Bit(DType::U32) | Bit(DType::F32);
  if (Arch() == 3510) types |= Bit(DType::Other);
  if (nibbles && (Arch() == 2201 || Arch() == 2002)) types |= Bit(DType::I4);
  return types;
}

int BitsOf(const Tensor& tensor) { return tensor.dtype == DType::I4 ? 4 : tensor.element * 8; }

// Moves a square of 16, 32 or 64 elements a side: the fractals of its rows, or for 32 bits those of its columns.
void MoveSquare(Instruction& in, const Tensor& dst, const int64_t* to, const Tensor& src, const int64_t* from) {
  const int bits = BitsOf(dst), fractals = bits == 16 ? 1 : bits == 4 ? 4 : 2;
  alignas(64) uint8_t square[4 * kFractal], result[4 * kFractal];
  bool defined = true;
  for (int f = 0; f < fractals; ++f) {
    std::memcpy(square + f * kFractal, in.data(src) + from[f], kFractal);
    defined = defined && Defined(in, src, from[f], kFractal);
  }
  TransposeSquare(result, square, bits);
  for (int f = 0; f < fractals; ++f) std::memcpy(in.data(dst) + to[f], result + f * kFractal, kFractal);
  if (defined) return;
  // The marks take the same way as the values: bytes of ones where a value is defined.
  for (int f = 0; f < fractals; ++f)
    for (int64_t i = 0; i < kFractal; ++i)
      square[f * kFractal + i] = Defined(in, src, from[f] + i, 1) ? 0xff : 0;
  TransposeSquare(result, square, bits);
  for (int f = 0; f < fractals; ++f)
    for (int64_t i = 0; i < kFractal; ++i)
      if (result[f * kFractal + i] != 0xff) Undefine(in, dst, to[f] + i, 1);
}

void MoveFractal(Instruction& in, const Tensor& dst, int64_t to, const Tensor& src, int64_t from, bool transpose) {
  if (transpose) return MoveSquare(in, dst, &to, src, &from);
  std::memcpy(in.data(dst) + to, in.data(src) + from, kFractal);
  CarryDefined(in, dst, to, src, from, kFractal);
}

void CheckLoad(Instruction& in, const Tensor& dst, const Tensor& src, uint32_t types) {
  in.lies_in(dst, Bit(Space::L0A) | Bit(Space::L0B), 0);
  in.lies_in(src, Bit(Space::L1), 1);
  in.dtype_in(dst, types, 0);
  in.align(dst, kFractal, 0);
  in.align(src, kBlock, 1);
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ in two D

void LoadFractals(const Tensor& dst, const Tensor& src, const Load2D& p, Where where) {
  Instruction in(Pipe::MTE1, "LoadData", Unit::Cube, where);
  CheckLoad(in, dst, src, FractalTypes(true));
  in.require(!p.transpose || BitsOf(dst) == 16, "dtype", "ifTranspose moves types of 16 bits, %s has %d; use %s",
             Name(dst.dtype), BitsOf(dst), "LoadDataWithTranspose");
  Range(in, "repeatTimes", p.repeats, 0, 255);
  if (p.repeats == 0) return;
  const int64_t src_stride = p.src_stride * kFractal, dst_stride = (p.dst_gap + 1) * kFractal;
  // The 950 counts the start in strides.
  const int64_t start = (Arch() == 3510 ? p.start * std::max<int64_t>(p.src_stride, 1) : p.start) * kFractal;
  in.read_any(src, start, kFractal, 1, p.repeats, src_stride);
  if (p.dst_gap == 0) in.write(dst, 0, kFractal * p.repeats, 0);
  else in.write(dst, 0, kFractal, 0, p.repeats, dst_stride);
  for (int64_t i = 0; i < p.repeats; ++i)
    MoveFractal(in, dst, i * dst_stride, src, start + i * src_stride, p.transpose);
  in.cycles(kIssue + static_cast<double>(p.repeats) * kFractal / Bandwidth(dst.space));
}

void LoadFractals(const Tensor& dst, const Global& src, const Load2D& p, Where where) {
  Instruction in(Pipe::MTE2, "LoadData", Unit::Cube, where);
  in.lies_in(dst, Bit(Space::L1) | (Arch() == 3510 ? 0u : Bit(Space::L0A) | Bit(Space::L0B)), 0);
  in.dtype_in(dst, FractalTypes(false), 0);
  in.align(dst, dst.space == Space::L1 ? kBlock : kFractal, 0);
  in.require(!p.transpose, "unsupported", "ifTranspose works from L1 only");
  Range(in, "repeatTimes", p.repeats, 0, 255);
  if (p.repeats == 0) return;
  const int64_t dst_stride = (p.dst_gap + 1) * kFractal, start = p.start * kFractal;
  const int64_t src_stride = (p.backwards && dst.space == Space::L1 ? -kFractal : kFractal) * p.src_stride;
  for (int64_t i = 0; i < p.repeats; ++i) in.read(src, start + i * src_stride, kFractal, 1);
  in.write(dst, 0, kFractal, 0, p.repeats, dst_stride);
  for (int64_t i = 0; i < p.repeats; ++i)
    std::memcpy(in.data(dst) + i * dst_stride, src.address + start + i * src_stride, kFractal);
  in.cycles(kIssue);
}

void LoadFractals(const Tensor& dst, const Tensor& src, const Load2DV2& p, Where where) {
  Instruction in(Pipe::MTE1, "LoadData", Unit::Cube, where);
  in.require(Arch() == 3510, "unsupported", "the %s has no LoadData with LoadData2DParamsV2; use LoadData2DParams",
             CurrentChip().name);
  CheckLoad(in, dst, src, FractalTypes(false));
  Range(in, "mStep", p.m_step, 0, 255);
  Range(in, "kStep", p.k_step, 0, 255);
  if (p.m_step == 0 || p.k_step == 0) return;
  const int bits = BitsOf(dst), group = bits == 8 ? 2 : 1;  // fractals of a square, along m
  const int64_t stride = p.src_stride;
  const auto source = [&](int64_t m, int64_t k) {
    return (std::abs(stride) * p.k_start + p.m_start + k * stride + m) * kFractal;
  };
  for (int64_t k = 0; k < p.k_step; ++k) in.read_any(src, source(0, k), p.m_step * kFractal, 1);
  if (!p.transpose) {
    for (int64_t k = 0; k < p.k_step; ++k) in.write(dst, k * p.dst_stride * kFractal, p.m_step * kFractal, 0);
    for (int64_t k = 0; k < p.k_step; ++k)
      for (int64_t m = 0; m < p.m_step; ++m)
        MoveFractal(in, dst, (k * p.dst_stride + m) * kFractal, src, source(m, k), false);
  } else {
    in.require(p.m_step % group == 0, "range", "mStep is %u; to transpose 8 bits it is even", p.m_step);
    in.require(bits != 32 || p.k_step % 2 == 0, "range", "kStep is %u; to transpose 32 bits it is even", p.k_step);
    const int64_t rows = bits == 8 ? 2 * p.k_step : bits == 32 ? p.k_step / 2 : p.k_step;
    const int64_t columns = bits == 8 ? p.m_step / 2 : bits == 32 ? 2 * p.m_step : p.m_step;
    for (int64_t c = 0; c < columns; ++c) in.write(dst, c * p.dst_stride * kFractal, rows * kFractal, 0);
    for (int64_t k = 0; k < p.k_step; k += bits == 32 ? 2 : 1)
      for (int64_t m = 0; m < p.m_step; m += group) {
        int64_t from[2], to[2];
        if (bits == 8) {
          from[0] = source(m, k);
          from[1] = source(m + 1, k);
          to[0] = (m / 2 * p.dst_stride + 2 * k) * kFractal;
          to[1] = to[0] + kFractal;
        } else if (bits == 32) {
          from[0] = source(m, k);
          from[1] = source(m, k + 1);
          to[0] = (2 * m * p.dst_stride + k / 2) * kFractal;
          to[1] = to[0] + p.dst_stride * kFractal;
        } else {
          from[0] = source(m, k);
          to[0] = (m * p.dst_stride + k) * kFractal;
        }
        MoveSquare(in, dst, to, src, from);
      }
  }
  in.cycles(kIssue + static_cast<double>(p.m_step) * p.k_step * kFractal / Bandwidth(dst.space));
}

void LoadFractals(const Tensor& dst, const Global& src, const Load2DV2& p, Where where) {
  Instruction in(Pipe::MTE2, "LoadData", Unit::Cube, where);
  in.require(Arch() == 3510, "unsupported", "the %s has no LoadData with LoadData2DParamsV2; use LoadData2DParams",
             CurrentChip().name);
  in.lies_in(dst, Bit(Space::L1), 0);
  in.align(dst, kBlock, 0);
  in.require(!p.transpose, "unsupported", "ifTranspose works from L1 only");
  if (p.m_step == 0 || p.k_step == 0) return;
  const int64_t stride = p.src_stride, start = std::abs(stride) * p.k_start + p.m_start;
  for (int64_t k = 0; k < p.k_step; ++k) in.read(src, (start + k * stride) * kFractal, p.m_step * kFractal, 1);
  for (int64_t k = 0; k < p.k_step; ++k) in.write(dst, k * p.dst_stride * kFractal, p.m_step * kFractal, 0);
  for (int64_t k = 0; k < p.k_step; ++k)
    std::memcpy(in.data(dst) + k * p.dst_stride * kFractal, src.address + (start + k * stride) * kFractal,
                static_cast<size_t>(p.m_step * kFractal));
  in.cycles(kIssue);
}

// ------------------------------------------------------------------------------------------------------ with transpose

void LoadTransposed(const Tensor& dst, const Tensor& src, const LoadTranspose& p, Where where) {
  Instruction in(Pipe::MTE1, "LoadDataWithTranspose", Unit::Cube, where);
  in.require(Arch() == 2201 || Arch() == 3510, "unsupported", "the %s has no LoadDataWithTranspose", CurrentChip().name);
  in.require(!p.fine || Arch() == 3510, "unsupported", "LoadData2dTransposeParamsV2 is for the 950; use LoadData2dTransposeParams");
  in.require(Arch() != 3510 || dst.space == Space::L0B, "position", "on the 950 it loads L0B only; use LoadData2DParamsV2 for L0A");
  const uint32_t types = Bit(DType::I8) | Bit(DType::U8) | Bit(DType::F16) | Bit(DType::BF16) | Bit(DType::I32) |
                         Bit(DType::U32) | Bit(DType::F32) |
                         (Arch() == 2201 && dst.space == Space::L0B ? Bit(DType::I4) : 0u);
  CheckLoad(in, dst, src, types);
  Range(in, "repeatTimes", p.repeats, 0, 255);
  if (p.repeats == 0) return;
  const int bits = BitsOf(dst);
  const int64_t fractals = bits == 16 ? 1 : bits == 4 ? 4 : 2, unit = (p.fine ? 1 : fractals) * kFractal;
  const int64_t start = p.start * unit, step = (p.backwards ? -unit : unit) * p.src_stride;
  const int64_t inner = (1 + p.src_fractal_gap) * kFractal, outer = (1 + p.dst_fractal_gap) * kFractal;
  const int64_t jump = (p.dst_gap + 1) * kFractal;
  for (int64_t i = 0; i < p.repeats; ++i) in.read_any(src, start + i * step, kFractal, 1, fractals, inner);
  for (int64_t i = 0; i < p.repeats; ++i) in.write(dst, i * jump, kFractal, 0, fractals, outer);
  for (int64_t i = 0; i < p.repeats; ++i) {
    int64_t from[4], to[4];
    for (int64_t f = 0; f < fractals; ++f) {
      from[f] = start + i * step + f * inner;
      to[f] = i * jump + f * outer;
    }
    MoveSquare(in, dst, to, src, from);
  }
  in.cycles(kIssue + static_cast<double>(p.repeats * fractals * kFractal) / (dst.space == Space::L0A ? 256 : 128));
}

// --------------------------------------------------------------------------------------------------- from a feature map

void SetImage(int which, uint16_t height, uint16_t width, const uint8_t* padding) {
  Registers& r = CoreRegisters();
  r.fmatrix_h[which] = height;
  r.fmatrix_w[which] = width;
  std::memcpy(r.fmatrix_pad[which], padding, 4);
}

namespace {

// Rows of the matrix that a feature map unfolds to. A row is 32 bytes: a position of the window, one C0 of channels.
struct Unfold {
  int64_t height, width, left, right, top, bottom;
  int64_t stride_w, stride_h, filter_w, filter_h, dilation_w, dilation_h;
  int64_t out_w = 0, out_h = 0;

  void prepare() {
    out_w = (width + left + right - (filter_w - 1) * dilation_w - 1) / stride_w + 1;
    out_h = (height + top + bottom - (filter_h - 1) * dilation_h - 1) / stride_h + 1;
  }
  static constexpr int64_t kPadding = -1, kNothing = -2;
  // The byte in the feature map of output position m, block k of channels and window points.
  int64_t row(int64_t m, int64_t k) const {
    if (m >= out_w * out_h) return kNothing;
    const int64_t window = filter_w * filter_h, c1 = k / window, point = k % window;
    const int64_t y = m / out_w * stride_h - top + point / filter_w * dilation_h;
    const int64_t x = m % out_w * stride_w - left + point % filter_w * dilation_w;
    if (y < 0 || y >= height || x < 0 || x >= width) return kPadding;
    return ((c1 * height + y) * width + x) * kBlock;
  }
};

Unfold UnfoldFrom(Instruction& in, int which, int64_t stride_w, int64_t stride_h, int64_t filter_w, int64_t filter_h,
                  int64_t dilation_w, int64_t dilation_h) {
  const Registers& r = CoreRegisters();
  const uint8_t* pad = r.fmatrix_pad[which];
  Unfold u{r.fmatrix_h[which], r.fmatrix_w[which], pad[0], pad[1], pad[2], pad[3],
           stride_w, stride_h, filter_w, filter_h, dilation_w, dilation_h};
  Range(in, "l1H", u.height, 0, 32767);
  Range(in, "l1W", u.width, 0, 32767);
  Range(in, "strideW", stride_w, 1, 63);
  Range(in, "strideH", stride_h, 1, 63);
  Range(in, "dilationFilterW", dilation_w, 1, 255);
  Range(in, "dilationFilterH", dilation_h, 1, 255);
  if (u.height == 0 || u.width == 0 || filter_w == 0 || filter_h == 0) return u;
  u.prepare();
  in.require(u.out_w > 0 && u.out_h > 0, "range",
             "the window of %lld x %lld does not fit into the feature map of %lld x %lld with its padding",
             static_cast<long long>((filter_h - 1) * dilation_h + 1), static_cast<long long>((filter_w - 1) * dilation_w + 1),
             static_cast<long long>(u.height), static_cast<long long>(u.width));
  return u;
}

// Reads the rows of one block k for positions in `positions`, in runs.
void ReadRows(Instruction& in, const Tensor& src, const int64_t* rows, int64_t count) {
  for (int64_t i = 0; i < count;) {
    if (rows[i] < 0) {
      ++i;
      continue;
    }
    int64_t end = i + 1;
    while (end < count && rows[end] == rows[end - 1] + kBlock) ++end;
    in.read_any(src, rows[i], (end - i) * kBlock, 1);
    i = end;
  }
}

}  // namespace

void LoadImage(const Tensor& dst, const Tensor& src, const Load3D& p, bool strided, const char* name, Where where) {
  Instruction in(Pipe::MTE1, name, Unit::Cube, where);
  const bool a5 = Arch() == 3510;
  in.require(Arch() != 1001, "unsupported", "the %s loads feature maps with LoadData3DParamsV1", CurrentChip().name);
  in.require(!strided || a5, "unsupported", "the %s has no LoadDataWithStride; use LoadData", CurrentChip().name);
  const bool right = dst.space == Space::L0B;
  uint32_t types = Bit(DType::F16);
  if (Arch() != 2002) types |= Bit(DType::BF16) | Bit(DType::F32) | Bit(DType::I32) | Bit(DType::U32);
  if (!right || a5 || Arch() == 2002) types |= Bit(DType::I8) | Bit(DType::U8);
  if (!right && !a5) types |= Bit(DType::I4);
  CheckLoad(in, dst, src, types);
  const int bits = BitsOf(dst);
  const int64_t c0 = 256 / bits;
  const Unfold u = UnfoldFrom(in, p.right ? 1 : 0, p.stride_w, p.stride_h, p.filter_w, p.filter_h, p.dilation_w, p.dilation_h);
  const Registers& registers = CoreRegisters();
  const int64_t repeats = registers.load_repeat_set ? registers.load_repeat >> 16 & 0xff : 1;
  const int64_t repeat_stride = registers.load_repeat & 0xffff;
  const bool along_k = registers.load_repeat_set && (registers.load_repeat >> 24 & 1);
  if (u.height == 0 || u.width == 0 || p.channels == 0 || p.k_extension == 0 || p.m_extension == 0 || p.filter_w == 0 ||
      p.filter_h == 0 || repeats == 0)
    return;
  in.require(p.k_start % c0 == 0, "range", "kStartPt is %u; for %s it is a multiple of %lld", p.k_start, Name(dst.dtype),
             static_cast<long long>(c0));
  in.require(bits == 32 || dst.dtype == DType::BF16 || p.m_start % 16 == 0, "range",
             "mStartPt is %u; for %s it is a multiple of 16", p.m_start, Name(dst.dtype));
  Range(in, "mStartPt", p.m_start, 0, 32767);
  in.require(p.channels % c0 == 0, "unsupported", "channelSize %u is no multiple of %lld: a partial C0 of channels is not emulated",
             p.channels, static_cast<long long>(c0));
  const int64_t k_total = p.channels / c0 * p.filter_w * p.filter_h;  // in blocks
  const int64_t k_blocks = CeilDiv(p.k_extension, c0), m_rows = RoundUp(p.m_extension, 16);
  // The blocks and positions of all repeats, as one matrix.
  std::vector<int64_t> ks, ms;
  for (int64_t i = 0; i < (along_k ? repeats : 1); ++i)
    for (int64_t k = 0; k < k_blocks; ++k) ks.push_back(p.k_start / c0 + i * repeat_stride + k);
  for (int64_t i = 0; i < (along_k ? 1 : repeats); ++i)
    for (int64_t m = 0; m < m_rows; ++m)
      ms.push_back(m < p.m_extension ? p.m_start + i * repeat_stride * 16 + m : u.out_w * u.out_h);
  in.require(ks.back() < k_total, "range",
             "kStartPt %u and kExtension %u reach block %lld of the unfolded matrix, which has %lld blocks of %lld columns",
             p.k_start, p.k_extension, static_cast<long long>(ks.back()), static_cast<long long>(k_total),
             static_cast<long long>(c0));
  const int64_t K = static_cast<int64_t>(ks.size()), M = static_cast<int64_t>(ms.size()), M1 = M / 16;
  std::vector<int64_t> rows(static_cast<size_t>(K * M));
  const int64_t limit = registers.load_boundary;
  for (int64_t k = 0; k < K; ++k)
    for (int64_t m = 0; m < M; ++m) {
      int64_t row = u.row(ms[static_cast<size_t>(m)], ks[static_cast<size_t>(k)]);
      // Past the boundary, L1 is read from its start.
      if (row >= 0 && limit != 0 && src.address + row >= limit) row -= limit;
      rows[static_cast<size_t>(k * M + m)] = row;
    }
  const auto row_of = [&](int64_t k, int64_t m) { return rows[static_cast<size_t>(k * M + m)]; };
  for (int64_t k = 0; k < K; ++k) ReadRows(in, src, &rows[static_cast<size_t>(k * M)], M);

  const bool transpose = right || p.transpose;
  in.require(!transpose || bits >= 16 || a5, "dtype", "enTranspose moves types of 16 and 32 bits on the %s", CurrentChip().name);
  alignas(64) uint8_t padding[kBlock];
  for (int64_t i = 0; i < kBlock; i += std::max(1, bits / 8))
    std::memcpy(padding + i, &registers.load_padding, static_cast<size_t>(std::max(1, bits / 8)));
  // Without transposing: fractal (m1, k). Transposed: rows are channels, 16 a fractal, and columns positions, C0 a fractal.
  const int64_t KR = transpose ? CeilDiv(K * c0, 16) : K, MC = transpose ? M / c0 : M1;
  const int64_t stride = a5 && registers.load_dst_stride != 0 ? registers.load_dst_stride : 0;
  const auto fractal = [&](int64_t kr, int64_t mc) {
    if (!transpose) return a5 ? kr * (stride ? stride : MC) + mc : mc * KR + kr;
    if (right) return mc * (stride ? stride : KR) + kr;
    return a5 ? mc * (stride ? stride : KR) + kr : kr * MC + mc;
  };
  const bool half_row = transpose && K * c0 % 16 != 0;  // the last fractal row is half empty
  for (int64_t kr = 0; kr < KR; ++kr)
    for (int64_t mc = 0; mc < MC; ++mc)
      in.write(dst, fractal(kr, mc) * kFractal, half_row && kr == KR - 1 ? kFractal / 2 : kFractal, 0);
  alignas(64) uint8_t square[2 * kFractal], marks[2 * kFractal], result[2 * kFractal];
  // Gathers 16 rows of block k from position m on; false when some bytes hold nothing.
  const auto gather = [&](uint8_t* to, uint8_t* mark, int64_t k, int64_t m) {
    bool all = true;
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t row = row_of(k, m + r);
      std::memset(mark + r * kBlock, 0xff, kBlock);
      if (row == Unfold::kPadding) {
        std::memcpy(to + r * kBlock, padding, kBlock);
      } else if (row == Unfold::kNothing) {
        std::memset(to + r * kBlock, 0, kBlock);
        std::memset(mark + r * kBlock, 0, kBlock);
        all = false;
      } else {
        std::memcpy(to + r * kBlock, in.data(src) + row, kBlock);
        if (!Defined(in, src, row, kBlock)) {
          for (int64_t i = 0; i < kBlock; ++i)
            if (!Defined(in, src, row + i, 1)) mark[r * kBlock + i] = 0;
          all = false;
        }
      }
    }
    return all;
  };
  const auto put = [&](int64_t to, const uint8_t* from, const uint8_t* mark, bool all, int64_t bytes) {
    std::memcpy(in.data(dst) + to, from, static_cast<size_t>(bytes));
    if (!all)
      for (int64_t i = 0; i < bytes; ++i)
        if (mark[i] != 0xff) Undefine(in, dst, to + i, 1);
  };
  if (!transpose) {
    for (int64_t k = 0; k < K; ++k)
      for (int64_t m1 = 0; m1 < M1; ++m1) {
        const int64_t first = row_of(k, m1 * 16), to = fractal(k, m1) * kFractal;
        bool run = first >= 0;
        for (int64_t r = 1; run && r < 16; ++r) run = row_of(k, m1 * 16 + r) == first + r * kBlock;
        if (run) {
          std::memcpy(in.data(dst) + to, in.data(src) + first, kFractal);
          CarryDefined(in, dst, to, src, first, kFractal);
        } else {
          const bool all = gather(square, marks, k, m1 * 16);
          put(to, square, marks, all, kFractal);
        }
      }
  } else if (bits == 16) {
    for (int64_t k = 0; k < K; ++k)
      for (int64_t m1 = 0; m1 < M1; ++m1) {
        const bool all = gather(square, marks, k, m1 * 16);
        TransposeSquare(result, square, 16);
        if (!all) {
          std::memcpy(square, marks, kFractal);
          TransposeSquare(marks, square, 16);
        }
        put(fractal(k, m1) * kFractal, result, marks, all, kFractal);
      }
  } else if (bits == 32) {
    for (int64_t kr = 0; kr < KR; ++kr)
      for (int64_t m1 = 0; m1 < M1; ++m1) {
        bool all = gather(square, marks, 2 * kr, m1 * 16);
        const bool both = 2 * kr + 1 < K;
        if (both) all = gather(square + kFractal, marks + kFractal, 2 * kr + 1, m1 * 16) && all;
        TransposeSquare(result, square, 32);
        if (!all) {
          std::memcpy(square, marks, 2 * kFractal);
          TransposeSquare(marks, square, 32);
        }
        for (int64_t h = 0; h < 2; ++h)
          put(fractal(kr, 2 * m1 + h) * kFractal, result + h * kFractal, marks + h * kFractal, all,
              both ? kFractal : kFractal / 2);
      }
  } else {
    in.require(M1 % 2 == 0, "range", "mExtension is %u; to transpose 8 bits it is a multiple of 32", p.m_extension);
    for (int64_t k = 0; k < K; ++k)
      for (int64_t m2 = 0; m2 < M1 / 2; ++m2) {
        bool all = gather(square, marks, k, m2 * 32);
        all = gather(square + kFractal, marks + kFractal, k, m2 * 32 + 16) && all;
        TransposeSquare(result, square, 8);
        if (!all) {
          std::memcpy(square, marks, 2 * kFractal);
          TransposeSquare(marks, square, 8);
        }
        for (int64_t h = 0; h < 2; ++h)
          put(fractal(2 * k + h, m2) * kFractal, result + h * kFractal, marks + h * kFractal, all, kFractal);
      }
  }
  // Published bandwidth by the stride of the window and whether it moves over more than one line.
  const double lines = u.out_w >= 16 ? 1 : static_cast<double>(CeilDiv(16, u.out_w));
  double bandwidth = Bandwidth(dst.space);
  const double extra = right && !a5 ? 2 : 0;
  if (p.stride_w == 1) {
    if (lines > 1) bandwidth = std::max(512 / (lines + 2 + extra), right && !a5 ? 512.0 / 18 : 32.0);
  } else if (p.stride_w == 2 || p.stride_w == 4 || p.stride_w == 8) {
    bandwidth = std::max(512 / (p.stride_w * 2 + extra + (lines > 1 ? lines : 0)), right && !a5 ? 512.0 / 18 : 32.0);
  } else {
    bandwidth = right && !a5 ? 512.0 / 18 : 32;
  }
  in.cycles(kIssue + static_cast<double>(K * M * kBlock) / bandwidth);
}

void LoadImage(const Tensor& dst, const Tensor& src, const Load3DV1& p, Where where) {
  Instruction in(Pipe::MTE1, "LoadData", Unit::Cube, where);
  in.require(Arch() == 1001 || Arch() == 2002, "unsupported",
             "the %s has no LoadData with LoadData3DParamsV1; use LoadData3DParamsV2", CurrentChip().name);
  in.require(dst.space == Space::L0A, "unsupported", "LoadData3DParamsV1 is emulated into L0A only");
  CheckLoad(in, dst, src, Bit(DType::U8) | Bit(DType::I8) | Bit(DType::F16));
  Range(in, "c1Index", p.c1, 0, 4095);
  Range(in, "leftTopW", p.left, -255, 32767);
  Range(in, "leftTopH", p.top, -255, 32767);
  Range(in, "filterW", p.filter_w, 1, 255);
  Range(in, "filterH", p.filter_h, 1, 255);
  Range(in, "fetchFilterW", p.fetch_w, 0, p.filter_w - 1);
  Range(in, "fetchFilterH", p.fetch_h, 0, p.filter_h - 1);
  Range(in, "jumpStride", p.jump, 1, 127);
  Range(in, "repeatMode", p.mode, 0, 1);
  Range(in, "repeatTime", p.repeats, 1, 255);
  in.require(p.c_size == 0, "unsupported", "cSize 1 (4 channels a point) is not emulated");
  const Unfold u = UnfoldFrom(in, 0, p.stride_w, p.stride_h, p.filter_w, p.filter_h, p.dilation_w, p.dilation_h);
  in.require(u.out_w > 0, "range", "l1H and l1W must be above 0");
  const int64_t m = (p.top + u.top) / p.stride_h * u.out_w + (p.left + u.left) / p.stride_w;
  const int64_t k = (p.c1 * p.filter_h + p.fetch_h) * p.filter_w + p.fetch_w;
  const Registers& registers = CoreRegisters();
  alignas(64) uint8_t padding[kBlock];
  for (int64_t i = 0; i < kBlock; i += dst.element) std::memcpy(padding + i, &registers.load_padding, dst.element);
  std::vector<int64_t> rows(static_cast<size_t>(16 * p.repeats));
  for (int64_t i = 0; i < p.repeats; ++i)
    for (int64_t r = 0; r < 16; ++r)
      rows[static_cast<size_t>(i * 16 + r)] = u.row(m + r + (p.mode == 1 ? i * 16 : 0), k + (p.mode == 0 ? i : 0));
  for (int64_t i = 0; i < p.repeats; ++i) ReadRows(in, src, &rows[static_cast<size_t>(i * 16)], 16);
  in.write(dst, 0, kFractal, 0, p.repeats, p.jump * kFractal);
  for (int64_t i = 0; i < p.repeats; ++i)
    for (int64_t r = 0; r < 16; ++r) {
      const int64_t row = rows[static_cast<size_t>(i * 16 + r)], to = i * p.jump * kFractal + r * kBlock;
      if (row >= 0) {
        std::memcpy(in.data(dst) + to, in.data(src) + row, kBlock);
        CarryDefined(in, dst, to, src, row, kBlock);
      } else if (row == Unfold::kPadding) {
        std::memcpy(in.data(dst) + to, padding, kBlock);
      } else {
        Undefine(in, dst, to, kBlock);
      }
    }
  in.cycles(kIssue + static_cast<double>(p.repeats) * kFractal / 256);
}

// ------------------------------------------------------------------------------------------------------------ constants

void FillConstant(const Tensor& dst, uint32_t repeats, uint32_t blocks, uint32_t gap, uint64_t value, Where where) {
  const bool l1 = dst.space == Space::L1;
  Instruction in(l1 ? Pipe::MTE2 : Pipe::MTE1, "Fill", Unit::Cube, where);
  in.lies_in(dst, Bit(Space::L1) | (Arch() == 3510 ? 0u : Bit(Space::L0A) | Bit(Space::L0B)), 0);
  uint32_t types = Bit(DType::F16) | Bit(DType::I16) | Bit(DType::U16);
  if (Arch() == 2201 || Arch() == 3510) types |= Bit(DType::BF16) | Bit(DType::I32) | Bit(DType::U32) | Bit(DType::F32);
  in.dtype_in(dst, types, 0);
  in.align(dst, l1 ? kBlock : kFractal, 0);
  Range(in, "repeatTimes", repeats, 0, 32767);
  Range(in, "blockNum", blocks, 0, 32767);
  Range(in, "dstGap", gap, 0, 32767);
  const bool simple = CurrentChip().unified;  // these fill 512 bytes a repeat, and know no gaps
  const int64_t unit = l1 && !simple ? kBlock : kFractal, bytes = (simple ? 1 : blocks) * unit;
  if (repeats == 0 || bytes == 0) return;
  const int64_t stride = bytes + (simple ? 0 : gap) * unit;
  in.write(dst, 0, bytes, 0, repeats, stride);
  for (int64_t i = 0; i < repeats; ++i)
    for (int64_t b = 0; b < bytes; b += dst.element)
      std::memcpy(in.data(dst) + i * stride + b, &value, dst.element);
  in.cycles(kIssue + static_cast<double>(repeats * bytes) / Bandwidth(dst.space));
}

}  // namespace atbfn::emulator
