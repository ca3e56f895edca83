// Copies: checks of each path, the bytes they touch, and the moving itself.
#include "atbfn/copy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "moves.h"
#include "overlap.h"

namespace atbfn::emulator {

namespace {

int Arch() { return CurrentChip().arch; }

// The element types that copies move on this chip.
uint32_t CopyTypes() {
  uint32_t types = Bit(DType::I8) | Bit(DType::U8) | Bit(DType::I16) | Bit(DType::U16) | Bit(DType::F16) |
                   Bit(DType::I32) | Bit(DType::U32) | Bit(DType::F32) | Bit(DType::I64) | Bit(DType::U64) |
                   Bit(DType::F64);
  if (Arch() == 2201 || Arch() == 3510) types |= Bit(DType::BF16) | Bit(DType::I4);
  if (Arch() == 3510) types |= Bit(DType::Other);
  return types;
}

// Fixed cost of a copy in cycles, besides its bytes: issue, and a little for each block.
constexpr double kIssue = 16, kPerBlock = 1;

// Bytes of an element; int4b_t counts in whole bytes wherever parameters state bytes or blocks.
int64_t ElementBytes(const Tensor& tensor) { return tensor.element; }

struct Pieces {
  int64_t count, bytes, src_stride, dst_stride;  // strides from start to start
  // Blocks without gaps on both sides are one block.
  void join() {
    if (count > 1 && src_stride == bytes && dst_stride == bytes) {
      bytes *= count;
      count = 1;
    }
  }
};

void Move(uint8_t* dst, const uint8_t* src, const Pieces& p) {
  for (int64_t i = 0; i < p.count; ++i)
    std::memcpy(dst + i * p.dst_stride, src + i * p.src_stride, static_cast<size_t>(p.bytes));
}

void Store(Instruction& in, uint8_t* dst, const uint8_t* src, const Pieces& p, DType dtype) {
  for (int64_t i = 0; i < p.count; ++i) in.store(dst + i * p.dst_stride, src + i * p.src_stride, p.bytes, dtype);
}

void CheckBlocks(Instruction& in, const Blocks& b, int64_t longest = 65535) {
  Range(in, "blockCount", b.count, 0, 4095);
  Range(in, "blockLen", b.length, 0, longest);
}

// A whole number of blocks from a number of elements.
Blocks FromCount(const char* what, uint32_t count, int64_t element, bool nibbles, int64_t unit, Where where) {
  const int64_t bytes = nibbles ? (static_cast<int64_t>(count) + 1) / 2 : static_cast<int64_t>(count) * element;
  if (bytes % unit != 0)
    Refuse("alignment", where,
           "DataCopy %s: %u elements are %lld bytes, no multiple of %lld: the device drops the rest silently; use "
           "DataCopyPad, or pad the count",
           what, count, static_cast<long long>(bytes), static_cast<long long>(unit));
  // More than a block length holds is one long block here; the device's count form does the same in several steps.
  return {1, static_cast<uint32_t>(bytes / unit), 0, 0};
}

constexpr int64_t kAnyLength = INT64_MAX;

void In(const Tensor& dst, const Global& src, const Blocks& b, int64_t longest, Where where) {
  Instruction in(Pipe::MTE2, "DataCopy", UnitOf(dst.space), where);
  in.moves_blocks();
  in.lies_in(dst, Bit(Space::UB) | Bit(Space::L1), 0);
  in.dtype_in(dst, CopyTypes(), 0);
  in.align(dst, kBlock, 0);
  CheckBlocks(in, b, longest);
  if (b.count == 0 || b.length == 0) return;
  Pieces p{b.count, b.length * kBlock, 0, 0};
  p.src_stride = p.bytes + b.src_gap * kBlock;
  p.dst_stride = p.bytes + b.dst_gap * kBlock;
  p.join();
  const uint8_t* from = in.read(src, 0, p.bytes, 1, p.count, p.src_stride);
  uint8_t* to = in.write(dst, 0, p.bytes, 0, p.count, p.dst_stride);
  Move(to, from, p);
  in.cycles(kIssue + kPerBlock * static_cast<double>(p.count));
}

void Out(const Global& dst, const Tensor& src, const Blocks& b, int64_t longest, Where where) {
  Instruction in(Pipe::MTE3, "DataCopy", UnitOf(src.space), where);
  in.moves_blocks();
  const bool l1 = Arch() == 2201;
  in.require(l1 || src.space != Space::L1, "position", "the %s has no path from L1 to GM; go through UB or L0C",
             CurrentChip().name);
  in.lies_in(src, Bit(Space::UB) | (l1 ? Bit(Space::L1) : 0u), 1);
  in.dtype_in(src, CopyTypes(), 1);
  in.align(src, kBlock, 1);
  CheckBlocks(in, b, longest);
  if (b.count == 0 || b.length == 0) return;
  Pieces p{b.count, b.length * kBlock, 0, 0};
  p.src_stride = p.bytes + b.src_gap * kBlock;
  p.dst_stride = p.bytes + b.dst_gap * kBlock;
  p.join();
  const uint8_t* from = in.read(src, 0, p.bytes, 1, p.count, p.src_stride);
  uint8_t* to = in.write(dst, 0, p.bytes, 0, p.count, p.dst_stride);
  Store(in, to, from, p, dst.dtype);
  in.cycles(kIssue + kPerBlock * static_cast<double>(p.count));
}

// On chip. `longest` bounds the block length as the path counts it.
void Within(const Tensor& dst, const Tensor& src, const Blocks& b, int64_t longest, Where where) {
  const Space from = src.space, to = dst.space;
  const bool unified = CurrentChip().unified;
  if (from == Space::UB && to == Space::UB) {
    Instruction in(Pipe::V, "DataCopy", Unit::Vector, where);
    in.moves_blocks();
    in.dtype_in(dst, CopyTypes(), 0);
    in.align(dst, kBlock, 0);
    in.align(src, kBlock, 1);
    CheckBlocks(in, b, longest);
    if (b.count == 0 || b.length == 0) return;
    Pieces p{b.count, b.length * kBlock, 0, 0};
    p.src_stride = p.bytes + b.src_gap * kBlock;
    p.dst_stride = p.bytes + b.dst_gap * kBlock;
    p.join();
    CheckOverlap(in, EvenTurns(dst, 0, p.count, p.bytes, p.dst_stride), EvenTurns(src, 1, p.count, p.bytes, p.src_stride),
                 Share::Same);
    const uint8_t* source = in.read(src, 0, p.bytes, 1, p.count, p.src_stride);
    uint8_t* target = in.write(dst, 0, p.bytes, 0, p.count, p.dst_stride);
    if (source != target) Move(target, source, p);
    in.cycles(kIssue + static_cast<double>(p.count * p.bytes) / CurrentChip().vector_bytes_per_cycle);
    return;
  }
  if (from == Space::L1 && to == Space::BT) {
    Instruction in(Pipe::MTE1, "DataCopy", Unit::Cube, where);
    const bool a5 = Arch() == 3510;
    in.dtype_in(src, Bit(DType::F16) | Bit(DType::I32) | Bit(DType::F32) | (a5 ? Bit(DType::BF16) : 0u), 1);
    in.dtype_in(dst, Bit(DType::I32) | Bit(DType::F32), 0);
    const bool widen = src.dtype != dst.dtype;
    in.require(!widen || (dst.dtype == DType::F32 && src.element == 2), "dtype",
               "the bias table takes %s as it is or half as float, not %s as %s", Name(dst.dtype), Name(src.dtype),
               Name(dst.dtype));
    in.align(dst, 64, 0);
    in.align(src, kBlock, 1);
    CheckBlocks(in, b, longest);
    in.require(!a5 || b.length % 2 == 0, "range", "blockLen is %u; into the bias table it is even", b.length);
    if (b.count == 0 || b.length == 0) return;
    const int64_t unit = a5 ? 32 : 64, bytes = b.length * unit, grown = widen ? bytes * 2 : bytes;
    const uint8_t* source = in.read_any(src, 0, bytes, 1, b.count, bytes + b.src_gap * kBlock);
    uint8_t* target = in.write(dst, 0, grown, 0, b.count, grown + b.dst_gap * unit);
    for (int64_t i = 0; i < b.count; ++i) {
      const uint8_t* s = source + i * (bytes + b.src_gap * kBlock);
      uint8_t* t = target + i * (grown + b.dst_gap * unit);
      if (!widen) {
        std::memcpy(t, s, static_cast<size_t>(bytes));
        CarryDefined(in, dst, t - target, src, s - source, bytes, src.element);
        continue;
      }
      for (int64_t e = 0; e < bytes / 2; ++e) {
        if (!Defined(in, src, s - source + e * 2, 2)) Undefine(in, dst, t - target + e * 4, 4);
        const float value = static_cast<float>(ToDouble(s + e * 2, src.dtype));
        std::memcpy(t + e * 4, &value, 4);
      }
    }
    in.cycles(kIssue + static_cast<double>(b.count * grown) / 32);
    return;
  }
  if (from == Space::L1 && to == Space::FB) {
    Instruction in(Pipe::FIX, "DataCopy", Unit::Cube, where);
    in.dtype_in(src, Bit(DType::U64), 1);
    in.align(dst, 128, 0);
    in.align(src, kBlock, 1);
    CheckBlocks(in, b, longest);
    if (b.count == 0 || b.length == 0) return;
    // Here, unlike elsewhere, the gaps are from start to start.
    const int64_t unit = Arch() == 3510 ? 64 : 128;
    const Pieces p{b.count, b.length * unit, b.src_gap * kBlock, b.dst_gap * unit};
    const uint8_t* source = in.read_any(src, 0, p.bytes, 1, p.count, p.src_stride);
    uint8_t* target = in.write(dst, 0, p.bytes, 0, p.count, p.dst_stride);
    Move(target, source, p);
    for (int64_t i = 0; i < p.count; ++i)
      CarryDefined(in, dst, i * p.dst_stride, src, i * p.src_stride, p.bytes, 8);
    in.cycles(kIssue + static_cast<double>(p.count * p.bytes) / 32);
    return;
  }
  if (unified && ((from == Space::UB && to == Space::L1) || (from == Space::L1 && to == Space::UB))) {
    Instruction in(from == Space::UB ? Pipe::MTE3 : Pipe::MTE1, "DataCopy", Unit::Any, where);
    in.moves_blocks();
    in.dtype_in(dst, CopyTypes(), 0);
    in.align(dst, kBlock, 0);
    in.align(src, kBlock, 1);
    CheckBlocks(in, b, longest);
    if (b.count == 0 || b.length == 0) return;
    Pieces p{b.count, b.length * kBlock, 0, 0};
    p.src_stride = p.bytes + b.src_gap * kBlock;
    p.dst_stride = p.bytes + b.dst_gap * kBlock;
    p.join();
    const uint8_t* source = in.read(src, 0, p.bytes, 1, p.count, p.src_stride);
    uint8_t* target = in.write(dst, 0, p.bytes, 0, p.count, p.dst_stride);
    Move(target, source, p);
    in.cycles(kIssue + static_cast<double>(p.count * p.bytes) / CurrentChip().mte_bytes_per_cycle);
    return;
  }
  const char* why = "";
  if ((from == Space::UB && to == Space::L1) || (from == Space::L1 && to == Space::UB))
    why = Arch() == 3510 ? "; between the cores of a block this path is not emulated: go through GM"
                         : "; the two lie in different cores: go through GM";
  Refuse("position", where, "DataCopy: the %s has no path from %s to %s%s", CurrentChip().name, Name(from), Name(to), why);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------- DataCopy

void CopyBlocks(const Tensor& dst, const Global& src, const Blocks& b, Where where) { In(dst, src, b, 65535, where); }
void CopyBlocks(const Global& dst, const Tensor& src, const Blocks& b, Where where) { Out(dst, src, b, 65535, where); }
void CopyBlocks(const Tensor& dst, const Tensor& src, const Blocks& b, Where where) {
  Within(dst, src, b, 65535, where);
}

void CopyCount(const Tensor& dst, const Global& src, uint32_t count, Where where) {
  In(dst, src, FromCount("from GM", count, dst.element, dst.dtype == DType::I4, kBlock, where), kAnyLength, where);
}
void CopyCount(const Global& dst, const Tensor& src, uint32_t count, Where where) {
  Out(dst, src, FromCount("to GM", count, src.element, src.dtype == DType::I4, kBlock, where), kAnyLength, where);
}
void CopyCount(const Tensor& dst, const Tensor& src, uint32_t count, Where where) {
  int64_t unit = kBlock;
  if (dst.space == Space::BT) unit = 64;
  if (dst.space == Space::FB) unit = Arch() == 3510 ? 64 : 128;
  Blocks b = FromCount("on chip", count, src.element, src.dtype == DType::I4, unit, where);
  if (dst.space == Space::BT && Arch() == 3510) b.length *= 2;
  Within(dst, src, b, kAnyLength, where);
}

// ----------------------------------------------------------------------------------------------------- layout changes

namespace {

void CheckNdToNz(Instruction& in, const NdToNz& p, const Tensor& dst) {
  Range(in, p.column_major ? "dnNum" : "ndNum", p.matrices, 0, 4095);
  Range(in, "nValue", p.rows, 0, 16384);
  if (Arch() != 3510) Range(in, "dValue", p.columns, 0, 65535);
  if (p.matrices == 0 || p.rows == 0 || p.columns == 0) return;
  if (Arch() != 3510) {
    Range(in, "srcDValue", static_cast<int64_t>(p.src_row_stride), 1, 65535);
  } else {
    in.require(p.src_row_stride > 0, "range", "srcDValue is 0; it is the length of a row in elements");
  }
  Range(in, "dstNzC0Stride", p.dst_c0_stride, 1, 16384);
  Range(in, "dstNzNStride", p.dst_row_stride, 1, 16384);
  if (Arch() != 3510) Range(in, "dstNzMatrixStride", p.dst_matrix_stride, 0, 65535);
  if (p.matrices > 1)
    in.require(p.dst_matrix_stride * ElementBytes(dst) % kBlock == 0, "alignment",
               "dstNzMatrixStride is %u elements, %lld bytes: no multiple of 32", p.dst_matrix_stride,
               static_cast<long long>(p.dst_matrix_stride * ElementBytes(dst)));
  in.require(!p.small_c0, "unsupported", "enableSmallC0 is not emulated");
}

uint32_t NdToNzTypes() {
  uint32_t types = Bit(DType::I8) | Bit(DType::U8) | Bit(DType::I16) | Bit(DType::U16) | Bit(DType::F16) |
                   Bit(DType::I32) | Bit(DType::U32) | Bit(DType::F32);
  if (Arch() == 2201 || Arch() == 3510) types |= Bit(DType::BF16) | Bit(DType::I4);
  if (Arch() == 3510) types |= Bit(DType::Other);
  return types;
}

// Rows of `from`, a row stride of `pitch` bytes apart, to fractal columns of 32 bytes.
void MoveNdToNz(uint8_t* to, const uint8_t* from, int64_t pitch, const NdToNz& p, int64_t element) {
  const int64_t bytes = p.columns * element, whole = bytes / kBlock, rest = bytes % kBlock;
  const int64_t c0 = p.dst_c0_stride * kBlock, row = p.dst_row_stride * kBlock;
  // Columns outside: the writes are then consecutive, and the reads of a tile stay in cache.
  constexpr int64_t kTile = 64;
  for (int64_t r0 = 0; r0 < p.rows; r0 += kTile) {
    const int64_t r1 = std::min<int64_t>(r0 + kTile, p.rows);
    for (int64_t c = 0; c < whole; ++c)
      for (int64_t r = r0; r < r1; ++r) std::memcpy(to + c * c0 + r * row, from + r * pitch + c * kBlock, kBlock);
    if (rest != 0)
      for (int64_t r = r0; r < r1; ++r) {
        uint8_t* block = to + whole * c0 + r * row;
        std::memcpy(block, from + r * pitch + whole * kBlock, static_cast<size_t>(rest));
        std::memset(block + rest, 0, static_cast<size_t>(kBlock - rest));
      }
  }
}

// The same from columns: element (r, c) at c * pitch + r * element.
void MoveDnToNz(uint8_t* to, const uint8_t* from, int64_t pitch, const NdToNz& p, int64_t element) {
  const int64_t per_block = kBlock / element, blocks = CeilDiv(p.columns, per_block);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t r = 0; r < p.rows; ++r) {
      uint8_t* block = to + b * p.dst_c0_stride * kBlock + r * p.dst_row_stride * kBlock;
      std::memset(block, 0, kBlock);
      for (int64_t e = 0; e < per_block && b * per_block + e < p.columns; ++e)
        std::memcpy(block + e * element, from + (b * per_block + e) * pitch + r * element, static_cast<size_t>(element));
    }
}

// That no two blocks of the result land in one place.
void CheckNzApart(Instruction& in, const Tensor& dst, const NdToNz& p, int64_t element) {
  const int64_t blocks = CeilDiv(p.columns * element, kBlock), row = p.dst_row_stride, column = p.dst_c0_stride;
  const int64_t high = (p.rows - int64_t{1}) * row + 1, wide = (blocks - 1) * column + 1;  // in blocks
  const bool one = blocks == 1 || column >= high || row >= wide;
  const int64_t span = (p.rows - int64_t{1}) * row + (blocks - 1) * column + 1, matrix = p.dst_matrix_stride * element / kBlock;
  if (one && (p.matrices <= 1 || matrix >= span)) return;
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < p.matrices; ++i)
    for (int64_t c = 0; c < blocks; ++c)
      for (int64_t r = 0; r < p.rows; ++r) starts.push_back((i * matrix + c * column + r * row) * kBlock);
  CheckApart(in, OperandText(in.core(), dst, in.where(), 0), std::move(starts), kBlock,
             "dstNzC0Stride is at least the number of rows, and dstNzMatrixStride a whole matrix");
}

void WriteNz(Instruction& in, const Tensor& dst, const NdToNz& p, int64_t offset, int64_t element) {
  const int64_t blocks = CeilDiv(p.columns * element, kBlock), row = p.dst_row_stride * kBlock;
  for (int64_t c = 0; c < blocks; ++c) {
    const int64_t at = offset + c * p.dst_c0_stride * kBlock;
    if (p.dst_row_stride == 1) in.write(dst, at, p.rows * kBlock, 0);
    else in.write(dst, at, kBlock, 0, p.rows, row);
  }
}

}  // namespace

void CopyNdToNz(const Tensor& dst, const Global& src, const NdToNz& p, Where where) {
  Instruction in(Pipe::MTE2, "DataCopy", UnitOf(dst.space), where);
  in.lies_in(dst, p.column_major ? Bit(Space::L1) : Bit(Space::UB) | Bit(Space::L1), 0);
  in.dtype_in(dst, NdToNzTypes(), 0);
  in.align(dst, kBlock, 0);
  CheckNdToNz(in, p, dst);
  if (p.matrices == 0 || p.rows == 0 || p.columns == 0) return;
  const int64_t element = ElementBytes(dst), pitch = static_cast<int64_t>(p.src_row_stride) * element;
  const int64_t src_matrix = static_cast<int64_t>(p.src_matrix_stride) * element;
  const int64_t dst_matrix = p.dst_matrix_stride * element;
  for (int64_t i = 0; i < p.matrices; ++i) {
    if (p.column_major) in.read(src, i * src_matrix, p.rows * element, 1, p.columns, pitch);
    else in.read(src, i * src_matrix, p.columns * element, 1, p.rows, pitch);
  }
  CheckNzApart(in, dst, p, element);
  for (int64_t i = 0; i < p.matrices; ++i) WriteNz(in, dst, p, i * dst_matrix, element);
  for (int64_t i = 0; i < p.matrices; ++i)
    (p.column_major ? MoveDnToNz : MoveNdToNz)(in.data(dst) + i * dst_matrix, src.address + i * src_matrix, pitch, p,
                                               element);
  in.cycles(kIssue + kPerBlock * static_cast<double>(p.matrices * p.rows));
}

void CopyNdToNz(const Tensor& dst, const Tensor& src, const NdToNz& p, Where where) {
  if (!CurrentChip().unified)
    Refuse("position", where, "DataCopy from UB to L1: on the %s the two lie in different cores, and %s",
           CurrentChip().name,
           Arch() == 3510 ? "the path between them is not emulated: go through GM"
                          : "the matrix library moves such data through GM; do so with DataCopy and a cross-core flag");
  Instruction in(Pipe::MTE3, "DataCopy", Unit::Any, where);
  in.lies_in(dst, Bit(Space::L1), 0);
  in.lies_in(src, Bit(Space::UB), 1);
  in.dtype_in(dst, NdToNzTypes(), 0);
  in.align(dst, kBlock, 0);
  in.align(src, kBlock, 1);
  CheckNdToNz(in, p, dst);
  Range(in, "ndNum", p.matrices, 1, 1);
  if (p.rows == 0 || p.columns == 0) return;
  const int64_t element = ElementBytes(dst), pitch = static_cast<int64_t>(p.src_row_stride) * element;
  in.read(src, 0, p.columns * element, 1, p.rows, pitch);
  CheckNzApart(in, dst, p, element);
  WriteNz(in, dst, p, 0, element);
  MoveNdToNz(in.data(dst), in.data(src), pitch, p, element);
  in.cycles(kIssue + static_cast<double>(p.rows * p.columns * element) / CurrentChip().mte_bytes_per_cycle);
}

void CopyNzToNd(const Global& dst, const Tensor& src, const NzToNd& p, Where where) {
  Instruction in(Pipe::MTE3, "DataCopy", UnitOf(src.space), where);
  in.moves_blocks();
  in.lies_in(src, Bit(Space::UB), 1);
  uint32_t types = Bit(DType::I16) | Bit(DType::U16) | Bit(DType::F16) | Bit(DType::I32) | Bit(DType::U32) | Bit(DType::F32);
  if (Arch() == 2201 || Arch() == 3510) types |= Bit(DType::BF16);
  if (Arch() == 3510) types |= CopyTypes();
  in.dtype_in(src, types, 1);
  in.align(src, kBlock, 1);
  Range(in, "ndNum", p.matrices, 0, 4095);
  Range(in, "nValue", p.rows, 1, 8192);
  Range(in, "dValue", p.columns, 1, 8192);
  Range(in, "srcNdMatrixStride", p.src_matrix_stride, 1, 512);
  Range(in, "srcNStride", p.src_column_stride, 0, 4096);
  Range(in, "dstDStride", p.dst_row_stride, 1, 65535);
  in.require(p.columns % 16 == 0, "range", "dValue is %u; it is a multiple of 16", p.columns);
  const int64_t element = ElementBytes(src), part = 16 * element;
  const int64_t column = p.src_column_stride * part, src_matrix = p.src_matrix_stride * 256 * element;
  for (int64_t i = 0; i < p.matrices; ++i)
    for (int64_t c = 0; c < p.columns / 16; ++c) in.read(src, i * src_matrix + c * column, p.rows * part, 1);
  if (p.dst_row_stride < p.columns || (p.matrices > 1 && p.dst_matrix_stride < p.rows * p.dst_row_stride)) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < p.matrices; ++i)
      for (int64_t r = 0; r < p.rows; ++r) starts.push_back((i * p.dst_matrix_stride + r * p.dst_row_stride) * element);
    CheckApart(in, GlobalText(dst, in.where(), 0), std::move(starts), p.columns * element, "dstDStride is at least dValue");
  }
  for (int64_t i = 0; i < p.matrices; ++i)
    in.write(dst, i * p.dst_matrix_stride * element, p.columns * element, 0, p.rows, p.dst_row_stride * element);
  for (int64_t i = 0; i < p.matrices; ++i)
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = 0; c < p.columns / 16; ++c)
        in.store(dst.address + (i * p.dst_matrix_stride + r * p.dst_row_stride) * element + c * part,
                 in.data(src) + i * src_matrix + c * column + r * part, part, dst.dtype);
  in.cycles(kIssue + kPerBlock * static_cast<double>(p.matrices * p.rows));
}

// ------------------------------------------------------------------------------------------------------------ slices

namespace {

struct SlicePlan {
  int64_t blocks, block_bytes, stride_bytes;  // along the innermost dimension
  std::vector<int64_t> starts;                // bytes
};

SlicePlan Plan(const char* side, const Slice* s, uint32_t dimensions, int64_t element, Where where) {
  SlicePlan plan;
  const int64_t length = s[0].burst * kBlock / element, span = static_cast<int64_t>(s[0].end) - s[0].start + 1;
  for (uint32_t d = 0; d < dimensions; ++d) {
    if (s[d].start > s[d].end || s[d].end >= s[d].shape)
      Refuse("size", where, "DataCopy: the %s slice of dimension %u runs from %u to %u, the shape there is %u", side, d,
             s[d].start, s[d].end, s[d].shape);
    if (d > 0 && s[d].burst != 1)
      Refuse("range", where, "DataCopy: burstLen of dimension %u of the %s slice is %u; above the first it is 1", d, side,
             s[d].burst);
  }
  plan.blocks = length == 0 ? 0 : (span + s[0].stride) / (length + s[0].stride);
  if (length == 0 || (plan.blocks - 1) * s[0].stride + plan.blocks * length != span)
    Refuse("size", where,
           "DataCopy: the %s slice has %lld elements from start to end, which N pieces of %lld elements (burstLen %u) with "
           "%u between them do not fill",
           side, static_cast<long long>(span), static_cast<long long>(length), s[0].burst, s[0].stride);
  plan.block_bytes = s[0].burst * kBlock;
  plan.stride_bytes = plan.block_bytes + s[0].stride * element;
  plan.starts = {s[0].start * element};
  int64_t size = element;
  for (uint32_t d = 1; d < dimensions; ++d) {
    size *= s[d - 1].shape;
    std::vector<int64_t> next;
    for (int64_t i = s[d].start; i <= s[d].end; i += 1 + s[d].stride)
      for (const int64_t start : plan.starts) next.push_back(start + i * size);
    plan.starts = std::move(next);
  }
  return plan;
}

void CheckPlans(const SlicePlan& a, const SlicePlan& b, Where where) {
  if (a.blocks != b.blocks || a.block_bytes != b.block_bytes || a.starts.size() != b.starts.size())
    Refuse("size", where,
           "DataCopy: the slices differ: %zu times %lld pieces of %lld bytes to be written, %zu times %lld of %lld to be read",
           a.starts.size(), static_cast<long long>(a.blocks), static_cast<long long>(a.block_bytes), b.starts.size(),
           static_cast<long long>(b.blocks), static_cast<long long>(b.block_bytes));
}

void CheckOnChip(Instruction& in, const Tensor& tensor, const SlicePlan& plan, int argument) {
  in.lies_in(tensor, Bit(Space::UB), argument);
  in.dtype_in(tensor, CopyTypes(), argument);
  in.align(tensor, kBlock, argument);
  in.require(plan.blocks == 1 || plan.stride_bytes % kBlock == 0, "alignment",
             "pieces of the slice in UB are %lld bytes apart: no multiple of 32", static_cast<long long>(plan.stride_bytes));
  for (const int64_t start : plan.starts)
    in.require(start % kBlock == 0, "alignment", "a piece of the slice starts at byte %lld of the tensor in UB: no multiple of 32",
               static_cast<long long>(start));
}

}  // namespace

void CopySlices(const Tensor& dst, const Global& src, const Slice* to, const Slice* from, uint32_t dimensions,
                Where where) {
  const SlicePlan a = Plan("written", to, dimensions, dst.element, where);
  const SlicePlan b = Plan("read", from, dimensions, src.element, where);
  CheckPlans(a, b, where);
  Instruction in(Pipe::MTE2, "DataCopy", UnitOf(dst.space), where);
  in.moves_blocks();
  CheckOnChip(in, dst, a, 0);
  for (const int64_t start : b.starts) in.read(src, start, b.block_bytes, 1, b.blocks, b.stride_bytes);
  for (const int64_t start : a.starts) in.write(dst, start, a.block_bytes, 0, a.blocks, a.stride_bytes);
  for (size_t i = 0; i < a.starts.size(); ++i)
    Move(in.data(dst) + a.starts[i], src.address + b.starts[i], {a.blocks, a.block_bytes, b.stride_bytes, a.stride_bytes});
  in.cycles(kIssue * static_cast<double>(a.starts.size()));
}

void CopySlices(const Global& dst, const Tensor& src, const Slice* to, const Slice* from, uint32_t dimensions,
                Where where) {
  const SlicePlan a = Plan("written", to, dimensions, dst.element, where);
  const SlicePlan b = Plan("read", from, dimensions, src.element, where);
  CheckPlans(a, b, where);
  Instruction in(Pipe::MTE3, "DataCopy", UnitOf(src.space), where);
  in.moves_blocks();
  CheckOnChip(in, src, b, 1);
  for (const int64_t start : b.starts) in.read(src, start, b.block_bytes, 1, b.blocks, b.stride_bytes);
  for (const int64_t start : a.starts) in.write(dst, start, a.block_bytes, 0, a.blocks, a.stride_bytes);
  for (size_t i = 0; i < a.starts.size(); ++i)
    Store(in, dst.address + a.starts[i], in.data(src) + b.starts[i],
          {a.blocks, a.block_bytes, b.stride_bytes, a.stride_bytes}, dst.dtype);
  in.cycles(kIssue * static_cast<double>(a.starts.size()));
}

// -------------------------------------------------------------------------------------------------------- DataCopyPad

namespace {

void CheckPad(Instruction& in, const Blocks& b, const Tensor& tensor) {
  CheckBlocks(in, b, 2097151);
  in.require(b.length % tensor.element == 0, "range", "blockLen is %u bytes, no multiple of %u, the size of %s", b.length,
             tensor.element, Name(tensor.dtype));
}

void FillPattern(uint8_t* to, int64_t bytes, uint64_t value, int64_t element) {
  for (int64_t i = 0; i < bytes; i += element)
    std::memcpy(to + i, &value, static_cast<size_t>(std::min(element, bytes - i)));
}

// Calls `body(source bytes, result bytes)` for each turn of the two outer loops that SetLoopModePara set.
template <class Body>
void Loops(const Registers::Loop& loop, Body body) {
  const uint32_t inner = std::max(loop.size[0], 1u), outer = std::max(loop.size[1], 1u);
  for (uint32_t o = 0; o < outer; ++o)
    for (uint32_t i = 0; i < inner; ++i)
      body(static_cast<int64_t>(o * loop.src_stride[1] + i * loop.src_stride[0]),
           static_cast<int64_t>(o * loop.dst_stride[1] + i * loop.dst_stride[0]));
}

}  // namespace

void CopyPad(const Tensor& dst, const Global& src, const Blocks& b, const Padding& padding, bool compact, Where where) {
  Instruction in(Pipe::MTE2, "DataCopyPad", UnitOf(dst.space), where);
  in.require(Arch() == 2201 || Arch() == 3510, "unsupported", "the %s has no DataCopyPad", CurrentChip().name);
  in.lies_in(dst, Bit(Space::UB) | (Arch() == 3510 ? Bit(Space::L1) : 0u), 0);
  in.dtype_in(dst, CopyTypes(), 0);
  in.align(dst, kBlock, 0);
  CheckPad(in, b, dst);
  const int64_t element = dst.element;
  int64_t left = compact ? 0 : padding.left * element, right = compact ? 0 : padding.right * element;
  in.require(left <= kBlock && right <= kBlock, "range",
             "leftPadding is %u and rightPadding %u elements, %lld and %lld bytes; either may be 32 bytes", padding.left,
             padding.right, static_cast<long long>(left), static_cast<long long>(right));
  Registers& registers = CoreRegisters();
  if (padding.given) {
    in.require(element != 8 || padding.value == 0, "range", "paddingValue of a 64-bit type is 0 and nothing else");
    registers.pad_value = padding.value;
    registers.pad_set = true;
  }
  if (b.count == 0 || b.length == 0) return;
  const int64_t length = b.length;
  if (Arch() == 3510) {
    Range(in, "srcStride", b.src_gap, -length, (int64_t{1} << 40) - 1);
    Range(in, "dstStride", b.dst_gap, 0, 65535);
  }
  // What an undefined padding holds on the device is not known: all ones is what no program can want.
  const uint64_t value = registers.pad_set ? registers.pad_value : ~uint64_t{0};
  const int64_t src_stride = length + b.src_gap;
  const int64_t whole = compact ? RoundUp(length * b.count, kBlock) : RoundUp(left + length + right, kBlock);
  const int64_t dst_stride = whole + b.dst_gap * kBlock;
  Loops(registers.copy_loops[1], [&](int64_t from, int64_t) { in.read(src, from, length, 1, b.count, src_stride); });
  Loops(registers.copy_loops[1], [&](int64_t, int64_t to) {
    if (compact) in.write(dst, to, whole, 0);
    else if (b.dst_gap == 0) in.write(dst, to, whole * b.count, 0);
    else in.write(dst, to, whole, 0, b.count, dst_stride);
  });
  Loops(registers.copy_loops[1], [&](int64_t from, int64_t to) {
    const uint8_t* s = src.address + from;
    uint8_t* d = in.data(dst) + to;
    for (int64_t i = 0; i < b.count; ++i, s += src_stride) {
      uint8_t* block = compact ? d + i * length : d + i * dst_stride;
      std::memcpy(block + left, s, static_cast<size_t>(length));
      if (compact) continue;
      const int64_t rest = whole - left - length;
      FillPattern(block, left, value, element);
      if (left == 0 && right == 0) {  // the rest of the last block repeats the first element
        uint64_t first = 0;
        std::memcpy(&first, s, static_cast<size_t>(element));
        FillPattern(block + length, rest, first, element);
      } else {
        FillPattern(block + left + length, rest, value, element);
      }
    }
    if (compact) FillPattern(d + length * b.count, whole - length * b.count, value, element);
  });
  in.cycles(kIssue + kPerBlock * b.count);
}

void CopyPad(const Global& dst, const Tensor& src, const Blocks& b, bool compact, Where where) {
  Instruction in(Pipe::MTE3, "DataCopyPad", UnitOf(src.space), where);
  in.require(Arch() == 2201 || Arch() == 3510, "unsupported", "the %s has no DataCopyPad", CurrentChip().name);
  in.lies_in(src, Bit(Space::UB), 1);
  in.dtype_in(src, CopyTypes(), 1);
  in.align(src, kBlock, 1);
  CheckPad(in, b, src);
  if (b.count == 0 || b.length == 0) return;
  const int64_t length = b.length, dst_stride = length + b.dst_gap;
  const int64_t src_stride = compact ? length : RoundUp(length, kBlock) + b.src_gap * kBlock;
  if (Arch() == 3510) {
    Range(in, "srcStride", b.src_gap, 0, 65535);
    Range(in, "dstStride", b.dst_gap, 0, (int64_t{1} << 40) - 1);
  }
  Pieces p{b.count, length, src_stride, dst_stride};
  p.join();
  const Registers::Loop& loop = CoreRegisters().copy_loops[0];
  Loops(loop, [&](int64_t from, int64_t) { in.read(src, from, p.bytes, 1, p.count, p.src_stride); });
  Loops(loop, [&](int64_t, int64_t to) { in.write(dst, to, p.bytes, 0, p.count, p.dst_stride); });
  Loops(loop, [&](int64_t from, int64_t to) { Store(in, dst.address + to, in.data(src) + from, p, dst.dtype); });
  in.cycles(kIssue + kPerBlock * b.count);
}

void CopyPad(const Tensor& dst, const Tensor&, const Blocks&, const NdToNz&, Where where) {
  Refuse("position", where, "DataCopyPad from UB to %s: on the %s the two lie in different cores; move the data through GM "
         "with DataCopyPad, a cross-core flag, and DataCopy with Nd2NzParams", Name(dst.space), CurrentChip().name);
}

void CopyDimensions(const Tensor& dst, const Global& src, const Dimension* dimensions, int count, uint64_t constant,
                    bool nearest, Where where) {
  Instruction in(Pipe::MTE2, "DataCopy", UnitOf(dst.space), where);
  in.lies_in(dst, Bit(Space::UB), 0);
  in.dtype_in(dst, CopyTypes(), 0);
  in.align(dst, kBlock, 0);
  const int64_t element = dst.element;
  Dimension d[5] = {};
  for (int i = 0; i < 5; ++i) d[i] = i < count ? dimensions[i] : Dimension{0, 0, 1, 0, 0};
  int64_t elements = 1;
  for (const Dimension& dimension : d) elements *= dimension.size;
  if (elements == 0) return;
  int64_t index[5];
  const auto each = [&](int first, auto body) {  // over the dimensions from `first` on, with their padding
    for (int i = 0; i < first; ++i) index[i] = 0;
    const auto extent = [&](int i) { return static_cast<int64_t>(d[i].left) + d[i].size + d[i].right; };
    for (int i = first; i < 5; ++i) index[i] = 0;
    for (;;) {
      body();
      int i = first;
      while (i < 5 && ++index[i] == extent(i)) index[i++] = 0;
      if (i == 5) return;
    }
  };
  const auto source = [&](int first, bool& inside) {
    int64_t at = 0;
    inside = true;
    for (int i = first; i < 5; ++i) {
      int64_t x = index[i] - d[i].left;
      if (x < 0 || x >= d[i].size) inside = false;
      x = std::clamp<int64_t>(x, 0, d[i].size - 1);
      at += x * static_cast<int64_t>(d[i].src_stride);
    }
    return at * element;
  };
  const auto target = [&] {
    int64_t at = 0;
    for (int i = 0; i < 5; ++i) at += index[i] * static_cast<int64_t>(d[i].dst_stride);
    return at * element;
  };
  const int64_t row = static_cast<int64_t>(d[0].left) + d[0].size + d[0].right;
  each(1, [&] {
    bool inside;
    const int64_t from = source(1, inside);
    if (inside) in.read(src, from, element, 1, d[0].size, static_cast<int64_t>(d[0].src_stride) * element);
  });
  each(1, [&] {
    if (d[0].dst_stride == 1) in.write(dst, target(), row * element, 0);
    else in.write(dst, target(), element, 0, row, d[0].dst_stride * element);
  });
  each(0, [&] {
    bool inside;
    const int64_t from = source(0, inside);
    const void* value = inside || nearest ? static_cast<const void*>(src.address + from) : &constant;
    std::memcpy(in.data(dst) + target(), value, static_cast<size_t>(element));
  });
  in.cycles(kIssue + static_cast<double>(elements) / 8);
}

// ------------------------------------------------------------------------------------------- L0C and UB on one core

namespace {

// A half from a float, to nearest even; saturating where the core is told to.
uint16_t ToHalf(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  if (CoreRegisters().saturate && (bits & 0x7c00) == 0x7c00) bits = (bits & 0x3ff) ? 0 : (bits & 0x8000) | 0x7bff;
  return bits;
}

}  // namespace

void CopyEnhanced(const Tensor& dst, const Tensor& src, const Blocks& b, const Enhanced& e, Where where) {
  const bool out = src.space == Space::L0C && dst.space == Space::UB, in_l0c = src.space == Space::UB && dst.space == Space::L0C;
  if (!out && !in_l0c) return CopyBlocks(dst, src, b, where);
  if (!CurrentChip().unified)
    Refuse("position", where, "DataCopy: the %s has no path from %s to %s; use Fixpipe to GM", CurrentChip().name,
           Name(src.space), Name(dst.space));
  Instruction in(Pipe::V, "DataCopy", Unit::Any, where);
  in.moves_blocks();
  in.align(dst, kBlock, 0);
  in.align(src, kBlock, 1);
  CheckBlocks(in, b);
  in.require(e.mode == 1 || e.mode == 2, "unsupported", "only the matrix and vector modes of the blocks are emulated");
  if (b.count == 0 || b.length == 0) return;
  // A block is a fractal of 256 elements, or in vector mode its first row of 16.
  const int64_t elements = e.mode == 1 ? 256 : 16;
  const Tensor& l0c = out ? src : dst;
  const Tensor& ub = out ? dst : src;
  const int64_t l0c_fractal = 256 * l0c.element, l0c_bytes = elements * l0c.element, ub_bytes = elements * ub.element;
  const int64_t l0c_gap = (out ? b.src_gap : b.dst_gap) * l0c_fractal, ub_gap = (out ? b.dst_gap : b.src_gap) * kBlock;
  const int64_t l0c_block = b.length * l0c_fractal + l0c_gap, ub_block = b.length * ub_bytes + ub_gap;
  for (int64_t i = 0; i < b.count; ++i) {
    if (out) in.read(l0c, i * l0c_block, l0c_bytes, 1, b.length, l0c_fractal);
    else in.read(ub, i * ub_block, b.length * ub_bytes, 1);
  }
  for (int64_t i = 0; i < b.count; ++i) {
    if (out) in.write(ub, i * ub_block, b.length * ub_bytes, 0);
    else in.write(l0c, i * l0c_block, l0c_bytes, 0, b.length, l0c_fractal);
  }
  // The scale of an integer result: half bits in the low 16 of deqValue.
  _Float16 half_scale;
  const uint16_t low = static_cast<uint16_t>(e.value);
  std::memcpy(&half_scale, &low, 2);
  const float scale = e.scale == 0 ? 1.0f : static_cast<float>(half_scale);
  const bool same = src.dtype == dst.dtype;
  in.require(same || (src.dtype == DType::F32 && dst.dtype == DType::F16) ||
                 (src.dtype == DType::F16 && dst.dtype == DType::F32) ||
                 (src.dtype == DType::I32 && dst.dtype == DType::F16),
             "dtype", "a conversion from %s to %s is not emulated", Name(src.dtype), Name(dst.dtype));
  for (int64_t i = 0; i < b.count; ++i)
    for (int64_t f = 0; f < b.length; ++f) {
      const uint8_t* s = in.data(src) + (out ? i * l0c_block + f * l0c_fractal : i * ub_block + f * ub_bytes);
      uint8_t* d = in.data(dst) + (out ? i * ub_block + f * ub_bytes : i * l0c_block + f * l0c_fractal);
      for (int64_t x = 0; x < elements; ++x) {
        if (same && !e.relu) {
          std::memcpy(d + x * dst.element, s + x * src.element, src.element);
          continue;
        }
        if (same && src.dtype == DType::I32) {
          int32_t value;
          std::memcpy(&value, s + x * 4, 4);
          value = std::max(value, 0);
          std::memcpy(d + x * 4, &value, 4);
          continue;
        }
        float value = static_cast<float>(ToDouble(s + x * src.element, src.dtype)) * scale;
        if (e.relu && value < 0) value = 0;
        if (dst.element == 2) {
          const uint16_t bits = ToHalf(value);
          std::memcpy(d + x * 2, &bits, 2);
        } else {
          std::memcpy(d + x * 4, &value, 4);
        }
      }
    }
  in.cycles(kIssue + static_cast<double>(b.count * b.length * l0c_bytes) / CurrentChip().vector_bytes_per_cycle);
}

// ---------------------------------------------------------------------------------------------- GM without UB tensors

void FillGlobal(const Global& dst, uint64_t count, uint64_t value, const char* name, Where where) {
  Instruction in(Pipe::MTE3, name, Unit::Vector, where);
  in.require(dst.element == 2 || dst.element == 4, "dtype", "the value is %s; it may be of 2 or 4 bytes", Name(dst.dtype));
  if (count == 0) return;
  const int64_t bytes = static_cast<int64_t>(count) * dst.element;
  uint8_t* to = in.write(dst, 0, bytes, 0);
  uint8_t pattern[4096];
  FillPattern(pattern, sizeof(pattern), value, dst.element);
  for (int64_t i = 0; i < bytes; i += static_cast<int64_t>(sizeof(pattern)))
    in.store(to + i, pattern, std::min<int64_t>(sizeof(pattern), bytes - i), dst.dtype);
  in.cycles(kIssue + static_cast<double>(bytes) / CurrentChip().vector_bytes_per_cycle);
}

uint64_t ScalarLoad(const Global& at, const char* name, Where where) {
  Instruction in(Pipe::S, name, Unit::Any, where);
  uint64_t value = 0;
  std::memcpy(&value, in.read(at, 0, at.element, 0), at.element);
  in.cycles(1);
  return value;
}

void ScalarStore(const Global& at, uint64_t value, const char* name, Where where) {
  Instruction in(Pipe::S, name, Unit::Any, where);
  in.store(in.write(at, 0, at.element, 0), &value, at.element, at.dtype);
  in.cycles(1);
}

namespace {

template <class T>
T Combine(T old, T value, T expected, int how) {
  switch (how) {
    case 1: return static_cast<T>(old + value);
    case 2: return std::max(old, value);
    case 3: return std::min(old, value);
    case 4: return value;
    default: return old == expected ? value : old;
  }
}

template <class T>
uint64_t AtomicOn(uint8_t* at, uint64_t value, uint64_t expected, int how) {
  T old, operand, compare;
  std::memcpy(&old, at, sizeof(T));
  std::memcpy(&operand, &value, sizeof(T));
  std::memcpy(&compare, &expected, sizeof(T));
  const T result = Combine(old, operand, compare, how);
  std::memcpy(at, &result, sizeof(T));
  uint64_t bits = 0;
  std::memcpy(&bits, &old, sizeof(T));
  return bits;
}

}  // namespace

uint64_t ScalarAtomic(const Global& at, uint64_t value, uint64_t expected, int how, const char* name, Where where) {
  Instruction in(Pipe::S, name, Unit::Any, where);
  in.require(Arch() == 3510, "unsupported", "the scalar unit of the %s has no atomics; use SetAtomicAdd and DataCopy",
             CurrentChip().name);
  const uint32_t types = how <= 3 ? Bit(DType::I32) | Bit(DType::U32) | Bit(DType::F32) | Bit(DType::I64) | Bit(DType::U64)
                                  : Bit(DType::U32) | Bit(DType::U64);
  in.require(types >> static_cast<int>(at.dtype) & 1u, "dtype", "%s is no type of this operation", Name(at.dtype));
  uint8_t* to = in.write(at, 0, at.element, 0);
  in.core().accesses.back().kind = GmAccess::Atomic;
  in.cycles(1);
  std::lock_guard<std::mutex> lock(in.core().launch->mutex);
  switch (at.dtype) {
    case DType::I32: return AtomicOn<int32_t>(to, value, expected, how);
    case DType::U32: return AtomicOn<uint32_t>(to, value, expected, how);
    case DType::F32: return AtomicOn<float>(to, value, expected, how);
    case DType::I64: return AtomicOn<int64_t>(to, value, expected, how);
    default: return AtomicOn<uint64_t>(to, value, expected, how);
  }
}

}  // namespace atbfn::emulator
