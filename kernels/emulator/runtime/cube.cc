// Mmad and Fixpipe: the matrix unit and the way out of L0C.
#include "atbfn/cube.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "moves.h"
#include "multiply.h"
#include "overlap.h"

namespace atbfn::emulator {

namespace {

int Arch() { return CurrentChip().arch; }

constexpr int64_t kResultFractal = 1024;  // 16 x 16 of 4 bytes in L0C
constexpr int64_t kUnit = 512;            // what a unit flag guards

// Cycles before the first product, from the published timings of Mmad (60 over 8 instructions).
constexpr double kHead = 7.5;

int64_t K0(DType dtype, int element) { return dtype == DType::I4 ? 64 : kBlock / element; }

// Products of a cycle along k, besides 16 x 16 of m and n.
double CubeK(DType dtype, bool hf32) {
  switch (dtype) {
    case DType::I4: return 64;
    case DType::I8: case DType::U8: return 32;
    case DType::F32: return hf32 ? 8 : Arch() == 3510 ? 1 : 4;
    default: return 16;
  }
}

// ------------------------------------------------------------------------------------------------------------ unit flags

void UseUnitFlags(Instruction& in, uint8_t flag, const Tensor& l0c, int64_t bytes, bool set, const char* other) {
  Range(in, "unitFlag", flag, 0, 3);
  in.require(flag != 1, "range", "unitFlag is 1; it is 0, 2 or 3");
  if (flag == 0) return;
  uint64_t* flags = CoreRegisters().unit_flags;
  const int64_t first = l0c.address / kUnit, last = (l0c.address + bytes - 1) / kUnit;
  for (int64_t u = first; u <= last; ++u) {
    const bool is = flags[u / 64] >> (u % 64) & 1;
    if (is == set)
      in.fail("unit-flag", set ? "%s waits for ever: the unit flag of byte %lld of L0C is set, which only a %s with unitFlag 3 "
                                 "clears"
                               : "%s waits for ever: the unit flag of byte %lld of L0C is clear, which only a %s with unitFlag 3 "
                                 "sets",
              in.name(), static_cast<long long>(u * kUnit), other);
    if (flag == 3) flags[u / 64] ^= uint64_t{1} << (u % 64);
  }
  if (flag == 3 && set) in.core().unit_flag_set = in.where();
}

// --------------------------------------------------------------------------------------------------------------- scratch

// Memory of one core's thread that lasts, aligned for vector loads.
template <class T>
T* Scratch(std::vector<T>& memory, int64_t count) {
  if (memory.size() < static_cast<size_t>(count) + 16) memory.resize(static_cast<size_t>(count) + 16);
  const uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<T*>((at + 63) & ~uintptr_t{63});
}

// Rounds a float to the mantissa of HF32: 11 bits, on the 950 10.
float ToHf32(float value, bool to_even) {
  uint32_t word;
  std::memcpy(&word, &value, 4);
  if ((word & 0x7f800000) == 0x7f800000) return value;
  const int drop = Arch() == 3510 ? 13 : 12;
  const uint32_t half = 1u << (drop - 1);
  word += to_even ? half - 1 + (word >> drop & 1) : half - 1;  // halves go to even, or towards zero
  word &= ~((1u << drop) - 1);
  std::memcpy(&value, &word, 4);
  return value;
}

struct Operands {
  int64_t m, n, k, k0, m1, n1, k1;
  int64_t a_k1;      // fractals of a row of A in L0A
  bool gemv, nz;     // A is one row; A's fractals run down columns
};

// A piece of an operand: `count` times `bytes`, `stride` apart.
struct Span {
  int64_t offset, bytes, count, stride;
};

// The bytes of an operand that the matrix lies in; what is beside them in the fractals is not looked at. `lines` are the
// rows of A or the columns of B, 32 bytes of each in a fractal.
std::vector<Span> SpansOfA(const Operands& o, int64_t bits) {
  const auto bytes = [&](int64_t elements) { return CeilDiv(elements * bits, 8); };
  const int64_t tail = o.k % o.k0, full = o.k / o.k0;
  std::vector<Span> spans;
  if (o.gemv) {
    spans.push_back({0, bytes(o.k), 1, 0});
  } else if (o.nz) {
    if (full > 0) spans.push_back({0, o.m * kBlock, full, o.m1 * kFractal});
    if (tail > 0) spans.push_back({full * o.m1 * kFractal, bytes(tail), o.m, kBlock});
  } else {
    const int64_t rest = o.m % 16, rows = o.m / 16;
    if (full > 0) {
      if (full == o.a_k1) spans.push_back({0, rows * full * kFractal, 1, 0});
      else spans.push_back({0, full * kFractal, rows, o.a_k1 * kFractal});
      if (rest > 0) spans.push_back({rows * o.a_k1 * kFractal, rest * kBlock, full, kFractal});
    }
    if (tail > 0)
      for (int64_t r = 0; r < o.m1; ++r)
        spans.push_back({(r * o.a_k1 + full) * kFractal, bytes(tail), std::min<int64_t>(16, o.m - 16 * r), kBlock});
  }
  return spans;
}

std::vector<Span> SpansOfB(const Operands& o, int64_t bits, int64_t k) {
  const int64_t tail = k % o.k0, full = k / o.k0;
  std::vector<Span> spans;
  if (full > 0) {
    if (o.n % 16 == 0) spans.push_back({0, full * o.n1 * kFractal, 1, 0});
    else spans.push_back({0, o.n * kBlock, full, o.n1 * kFractal});
  }
  if (tail > 0) spans.push_back({full * o.n1 * kFractal, CeilDiv(tail * bits, 8), o.n, kBlock});
  return spans;
}

// Where the 32 bytes of row `row` of A lie for fractal k1.
int64_t PlaceInA(const Operands& o, int64_t row, int64_t k1) {
  return (o.nz ? k1 * o.m1 + row / 16 : row / 16 * o.a_k1 + k1) * kFractal + row % 16 * kBlock;
}
int64_t PlaceInB(const Operands& o, int64_t column, int64_t k1) {
  return (k1 * o.n1 + column / 16) * kFractal + column % 16 * kBlock;
}

// Reads an operand. Programs may multiply whole fractals whose last rows nothing was loaded into, as long as they do not
// use what comes of them: such rows are marked in `undefined`. When there are no others, it is an error here.
template <class Place>
void ReadOperand(Instruction& in, const Tensor& tensor, const std::vector<Span>& spans, int argument, int64_t lines,
                 int64_t k, int64_t k0, int64_t bits, bool straight, Place place, std::vector<char>& undefined) {
  bool defined = true;
  for (const Span& span : spans) {
    in.read_any(tensor, span.offset, span.bytes, argument, span.count, span.stride);
    for (int64_t i = 0; defined && i < span.count; ++i)
      defined = Defined(in, tensor, span.offset + i * span.stride, span.bytes);
  }
  undefined.clear();
  if (defined) return;
  undefined.assign(static_cast<size_t>(lines), 0);
  int64_t good = 0;
  for (int64_t line = 0; line < lines && !straight; ++line) {
    for (int64_t x = 0; x * k0 < k && !undefined[static_cast<size_t>(line)]; ++x)
      if (!Defined(in, tensor, place(line, x), CeilDiv(std::min(k0, k - x * k0) * bits, 8)))
        undefined[static_cast<size_t>(line)] = 1;
    good += !undefined[static_cast<size_t>(line)];
  }
  if (good == 0)
    for (const Span& span : spans) in.read(tensor, span.offset, span.bytes, argument, span.count, span.stride);
}

void ReadOperands(Instruction& in, const Tensor& a, const Tensor& b, const Operands& o, DType dtype, int64_t b_k,
                  std::vector<char>& rows, std::vector<char>& columns) {
  const int64_t bits = dtype == DType::I4 ? 4 : a.element * 8;
  ReadOperand(in, a, SpansOfA(o, bits), 1, o.m, o.k, o.k0, bits, o.gemv,
              [&](int64_t line, int64_t x) { return PlaceInA(o, line, x); }, rows);
  ReadOperand(in, b, SpansOfB(o, bits, b_k), 2, o.n, b_k, o.k0, bits, false,
              [&](int64_t line, int64_t x) { return PlaceInB(o, line, x); }, columns);
}

// The row of a fractal of A: 32 bytes.
const uint8_t* RowOfA(const uint8_t* a, const Operands& o, int64_t row, int64_t k1) { return a + PlaceInA(o, row, k1); }

int32_t Saturate(int64_t value) {
  return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
}

void CheckMatrixOperands(Instruction& in, const Tensor& c, const Tensor& a, const Tensor& b, const Multiply& p) {
  in.lies_in(c, Bit(Space::L0C), 0);
  in.lies_in(a, Bit(Space::L0A), 1);
  in.lies_in(b, Bit(Space::L0B), 2);
  in.align(c, c.element == 2 ? kFractal : kResultFractal, 0);
  in.align(a, kFractal, 1);
  in.align(b, kFractal, 2);
  Range(in, "m", p.m, 0, 4095);
  Range(in, "n", p.n, 0, 4095);
  Range(in, "k", p.k, 0, 4095);
}

// Where the results of one instruction start from.
struct Start {
  bool zero, table;
  const uint8_t* bias;
  std::vector<int64_t> undefined;  // elements of the result, by byte, whose start holds nothing
};

// That results are ordered behind those of the instruction before.
void OrderResults(Instruction& in, const Multiply& p) {
  // From ten fractals of results on, the unit itself keeps one Mmad behind the other; below, a PipeBarrier must.
  if ((p.m / 16) * (p.n / 16) >= 10) in.ordered_after(Pipe::M);
  if (p.unit_flag != 0) in.ordered_after(Pipe::FIX);
}

Start ReadStart(Instruction& in, const Tensor& c, const Tensor* bias, const Multiply& p, const Operands& o,
                std::vector<char>& columns) {
  Start start{p.start_at_zero, p.source_is_bias_table, nullptr, {}};
  if (bias != nullptr) {
    in.lies_in(*bias, Bit(Space::BT) | Bit(Space::L0C), 3);
    start.table = bias->space == Space::BT;
    in.require(!p.start_at_zero, "bias",
               "cmatrixInitVal is true, its default: the result starts from zero and the bias is not added; set it to false");
    in.dtype_in(*bias, c.dtype == DType::I32 ? Bit(DType::I32) : Bit(DType::F32), 3);
    in.require(start.table || bias->address == c.address, "position",
               "a bias in L0C is what the result holds already: it must be the tensor that is written");
  }
  if (start.zero) return start;
  if (start.table) {
    Tensor table;
    table.space = Space::BT;
    if (bias != nullptr) table = *bias;
    in.align(table, 64, 3);
    const int argument = bias != nullptr ? 3 : -1;
    start.bias = in.read_any(table, 0, o.n * 4, argument);
    if (!Defined(in, table, 0, o.n * 4)) {
      columns.resize(static_cast<size_t>(o.n), 0);
      int64_t good = 0;
      for (int64_t n = 0; n < o.n; ++n) {
        if (!Defined(in, table, n * 4, 4)) columns[static_cast<size_t>(n)] = 1;
        good += !columns[static_cast<size_t>(n)];
      }
      if (good == 0) in.read(table, 0, o.n * 4, argument);
    }
  } else {
    const int64_t column = o.m1 * 256 * c.element, bytes = o.m * 16 * c.element;
    in.read_any(c, 0, bytes, 0, o.n1, column);
    int64_t good = 0;
    for (int64_t n1 = 0; n1 < o.n1; ++n1) {
      if (Defined(in, c, n1 * column, bytes)) {
        ++good;
        continue;
      }
      for (int64_t i = n1 * column; i < n1 * column + bytes; i += c.element) {
        if (!Defined(in, c, i, c.element)) start.undefined.push_back(i);
        else ++good;
      }
    }
    if (good == 0) in.read(c, 0, bytes, 0, o.n1, column);
  }
  return start;
}

// Takes the mark away from results that come of operands which hold nothing.
void UndefineResults(Instruction& in, const Tensor& c, const Operands& o, const Start& start, const std::vector<char>& rows,
                     const std::vector<char>& columns) {
  const int64_t element = c.element, column = o.m1 * 256 * element;
  for (const int64_t at : start.undefined) Undefine(in, c, at, element);
  for (int64_t r = 0; r < static_cast<int64_t>(rows.size()); ++r)
    if (rows[static_cast<size_t>(r)])
      for (int64_t n1 = 0; n1 < o.n1; ++n1) Undefine(in, c, n1 * column + r * 16 * element, 16 * element);
  for (int64_t n = 0; n < static_cast<int64_t>(columns.size()); ++n)
    if (columns[static_cast<size_t>(n)])
      for (int64_t r = 0; r < o.m; ++r) Undefine(in, c, n / 16 * column + (r * 16 + n % 16) * element, element);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------------------- Mmad

void Mmad(const Tensor& c, const Tensor& a, const Tensor& b, const Tensor* bias, const Multiply& p, Where where) {
  Instruction in(Pipe::M, "Mmad", Unit::Cube, where);
  CheckMatrixOperands(in, c, a, b, p);
  const bool old = CurrentChip().unified;
  struct Combination {
    DType c, a, b;
    bool here, with_bias;
  };
  const Combination combinations[] = {
      {DType::I32, DType::I8, DType::I8, true, true},
      {DType::F32, DType::F16, DType::F16, true, true},
      {DType::F32, DType::F32, DType::F32, !old, true},
      {DType::F32, DType::BF16, DType::BF16, !old, true},
      {DType::I32, DType::I4, DType::I4, Arch() == 2201 || Arch() == 2002, false},
      {DType::F16, DType::F16, DType::F16, old, false},
      {DType::I32, DType::U8, DType::I8, old, false},
      {DType::I32, DType::U8, DType::U8, Arch() == 2002, false},
      {DType::U32, DType::U8, DType::U8, Arch() == 1001, false},
  };
  bool legal = false;
  for (const Combination& x : combinations)
    legal = legal || (x.here && x.c == c.dtype && x.a == a.dtype && x.b == b.dtype && (bias == nullptr || x.with_bias));
  in.require(legal, "dtype",
             "%s times %s%s into %s is no combination of the %s; %s", Name(a.dtype), Name(b.dtype),
             bias != nullptr ? " plus a bias" : "", Name(c.dtype), CurrentChip().name,
             old ? "it has int8 into int32, and half into float or half"
                 : "it has half, bfloat16 and float into float, and int8 into int32 (without a bias also int4)");
  in.require(!old || (bias == nullptr && !p.source_is_bias_table), "unsupported", "the %s has no bias table", CurrentChip().name);
  in.require(a.dtype != DType::I4 || p.k % 2 == 0, "range", "k is %u; for int4 it is even", p.k);
  in.require(!p.k_aligned || Arch() == 2201, "unsupported", "kDirectionAlign is for the 910B");
  if (p.m == 0 || p.n == 0 || p.k == 0) return;

  Operands o{};
  o.m = p.m;
  o.n = p.n;
  o.k = p.k;
  o.k0 = K0(a.dtype, a.element);
  o.m1 = CeilDiv(o.m, 16);
  o.n1 = CeilDiv(o.n, 16);
  o.k1 = CeilDiv(o.k, o.k0);
  o.a_k1 = p.k_aligned && a.dtype == DType::F32 ? RoundUp(o.k1, 2) : o.k1;
  o.gemv = p.m == 1 && p.gemv;
  o.nz = Arch() == 3510 && !o.gemv;
  const int64_t fractal = 256 * c.element, column = o.m1 * fractal;
  OrderResults(in, p);
  std::vector<char> no_rows, no_columns;
  ReadOperands(in, a, b, o, a.dtype, o.k, no_rows, no_columns);
  const Start start = ReadStart(in, c, bias, p, o, no_columns);
  uint8_t* result = in.write(c, 0, o.n1 * column, 0);
  UndefineResults(in, c, o, start, no_rows, no_columns);
  UseUnitFlags(in, p.unit_flag, c, o.n1 * column, true, "Fixpipe");

  const uint8_t* left = in.data(a);
  const uint8_t* right = in.data(b);
  const bool integer = c.dtype == DType::I32 || c.dtype == DType::U32;
  const Registers& registers = CoreRegisters();
  // The padding of the last fractals: rows and columns beyond the matrix. It holds zero here.
  const int64_t rows = o.m1 * 16;
  if (integer) {
    thread_local std::vector<int32_t> left_memory, right_memory, sum_memory;
    const int64_t pairs = o.k1 * o.k0 / 2;
    int32_t* lefts = Scratch(left_memory, o.m * pairs);
    int32_t* rights = Scratch(right_memory, pairs * 16);
    int32_t* sums = Scratch(sum_memory, rows * 16);
    for (int64_t r = 0; r < o.m; ++r) {
      std::fill(lefts + r * pairs, lefts + (r + 1) * pairs, 0);
      if (o.gemv) {
        ToPairs(lefts, left, o.k, a.dtype);
        continue;
      }
      for (int64_t x = 0; x < o.k1; ++x)
        ToPairs(lefts + r * pairs + x * o.k0 / 2, RowOfA(left, o, r, x), std::min(o.k0, o.k - x * o.k0), a.dtype);
    }
    for (int64_t n1 = 0; n1 < o.n1; ++n1) {
      for (int64_t x = 0; x < o.k1; ++x) FractalToPairs(rights + x * o.k0 / 2 * 16, right + (x * o.n1 + n1) * kFractal, b.dtype);
      std::fill(sums, sums + rows * 16, 0);
      MultiplyColumns(sums, 16, lefts, pairs, rights, CeilDiv(o.k, 2), o.m);
      int32_t* out = reinterpret_cast<int32_t*>(result + n1 * column);
      for (int64_t i = 0; i < rows * 16; ++i) {
        const int64_t j = n1 * 16 + i % 16, r = i / 16;
        const bool inside = r < o.m && j < o.n;
        int64_t before = 0;
        if (inside && start.bias != nullptr) {
          int32_t value;
          std::memcpy(&value, start.bias + j * 4, 4);
          before = value;
        } else if (inside && !start.zero) {
          before = out[i];
        }
        out[i] = inside ? Saturate(before + sums[i]) : 0;
      }
    }
  } else {
    thread_local std::vector<float> left_memory, right_memory, sum_memory;
    const int64_t pitch = o.k1 * o.k0;
    const bool hf32 = registers.hf32 && a.dtype == DType::F32;
    float* lefts = Scratch(left_memory, std::max(o.m, int64_t{1}) * pitch + 16);
    float* rights = Scratch(right_memory, pitch * 16);
    if (o.gemv) {
      ToFloats(lefts, left, o.k, a.dtype);
    } else {
      for (int64_t r = 0; r < o.m; ++r)
        for (int64_t x = 0; x < o.k1; ++x)
          ToFloats(lefts + r * pitch + x * o.k0, RowOfA(left, o, r, x), std::min(o.k0, o.k - x * o.k0), a.dtype);
    }
    if (hf32)
      for (int64_t r = 0; r < o.m; ++r)
        for (int64_t x = 0; x < o.k; ++x) lefts[r * pitch + x] = ToHf32(lefts[r * pitch + x], registers.hf32_to_even);
    for (int64_t n1 = 0; n1 < o.n1; ++n1) {
      for (int64_t x = 0; x < o.k1; ++x) FractalToFloats(rights + x * o.k0 * 16, right + (x * o.n1 + n1) * kFractal, b.dtype);
      if (hf32)
        for (int64_t i = 0; i < o.k * 16; ++i) rights[i] = ToHf32(rights[i], registers.hf32_to_even);
      float* sums = c.element == 4 ? reinterpret_cast<float*>(result + n1 * column) : Scratch(sum_memory, rows * 16);
      uint8_t* halves = result + n1 * column;
      if (start.zero) {
        std::fill(sums, sums + rows * 16, 0.0f);
      } else if (start.bias != nullptr) {
        float row[16] = {};
        std::memcpy(row, start.bias + n1 * 64, static_cast<size_t>(std::min<int64_t>(16, o.n - n1 * 16) * 4));
        for (int64_t r = 0; r < rows; ++r) std::memcpy(sums + r * 16, row, sizeof(row));
      } else if (c.element == 2) {
        ToFloats(sums, halves, rows * 16, DType::F16);
      }
      MultiplyColumns(sums, 16, lefts, pitch, rights, o.k, o.m, a.dtype == DType::F16);
      const int64_t valid = std::min<int64_t>(16, o.n - n1 * 16);
      if (valid < 16)
        for (int64_t r = 0; r < rows; ++r) std::fill(sums + r * 16 + valid, sums + r * 16 + 16, 0.0f);
      if (o.m < rows) std::fill(sums + o.m * 16, sums + rows * 16, 0.0f);
      if (registers.saturate)
        for (int64_t i = 0; i < o.m * 16; ++i) {
          if (std::isnan(sums[i])) sums[i] = 0;
          else if (std::isinf(sums[i])) sums[i] = std::copysign(FLT_MAX, sums[i]);
        }
      if (c.element == 2) ToHalves(reinterpret_cast<uint16_t*>(halves), sums, rows * 16);
    }
  }
  in.cube_macs(static_cast<uint64_t>(o.m) * static_cast<uint64_t>(o.n) * static_cast<uint64_t>(o.k));
  in.cycles(kHead + static_cast<double>(o.m1 * o.n1 * o.k1 * o.k0) / CubeK(a.dtype, registers.hf32));
}

// ------------------------------------------------------------------------------------------------------- 4:2 sparsity

namespace {

// The index that LoadDataWithSparse loads beside L0B: 2 bits for each element there. Not addressable by programs.
struct SparseIndex {
  const Core* core = nullptr;
  std::vector<uint8_t> bytes;
  std::vector<uint8_t> written;  // by fractal
};
SparseIndex& IndexOf(const Core& core) {
  thread_local SparseIndex index;
  if (index.core != &core) {
    index.core = &core;
    index.bytes.assign(CurrentChip().l0b / 4, 0);
    index.written.assign(CurrentChip().l0b / kFractal, 0);
  }
  return index;
}

}  // namespace

void LoadSparse(const Tensor& dst, const Tensor& src, const Tensor& index, uint32_t start, uint32_t repeats, Where where) {
  Instruction in(Pipe::MTE1, "LoadDataWithSparse", Unit::Cube, where);
  in.require(Arch() == 2201, "unsupported", "the %s has no LoadDataWithSparse", CurrentChip().name);
  in.lies_in(dst, Bit(Space::L0B), 0);
  in.lies_in(src, Bit(Space::L1), 1);
  in.lies_in(index, Bit(Space::L1), 2);
  in.align(dst, kFractal, 0);
  in.align(src, kBlock, 1);
  in.align(index, kBlock, 2);
  Range(in, "repeatTimes", repeats, 0, 255);
  if (repeats == 0) return;
  const int64_t bytes = repeats * kFractal, from = start * kFractal;
  in.read_any(src, from, bytes, 1);
  in.read(index, from / 4, bytes / 4, 2);
  in.write(dst, 0, bytes, 0);
  std::memcpy(in.data(dst), in.data(src) + from, static_cast<size_t>(bytes));
  CarryDefined(in, dst, 0, src, from, bytes);
  SparseIndex& kept = IndexOf(in.core());
  std::memcpy(kept.bytes.data() + dst.address / 4, in.data(index) + from / 4, static_cast<size_t>(bytes / 4));
  std::fill_n(kept.written.begin() + dst.address / kFractal, repeats, uint8_t{1});
  in.cycles(16 + static_cast<double>(bytes) / 128);
}

void MmadSparse(const Tensor& c, const Tensor& a, const Tensor& b, const Multiply& p, Where where) {
  Instruction in(Pipe::M, "MmadWithSparse", Unit::Cube, where);
  in.require(Arch() == 2201, "unsupported", "the %s has no MmadWithSparse", CurrentChip().name);
  CheckMatrixOperands(in, c, a, b, p);
  in.require(!p.k_aligned, "range", "kDirectionAlign is false here");
  if (p.m == 0 || p.n == 0 || p.k == 0) return;
  Operands o{};
  o.m = p.m;
  o.n = p.n;
  o.k = p.k;
  o.k0 = 32;
  o.m1 = CeilDiv(o.m, 16);
  o.n1 = CeilDiv(o.n, 16);
  o.k1 = o.a_k1 = CeilDiv(o.k, 32);
  // A has all k columns, B half as many rows: of each four elements of A, two are picked.
  const int64_t kept = CeilDiv(o.k, 2), column = o.m1 * kResultFractal;
  OrderResults(in, p);
  std::vector<char> no_rows, no_columns;
  ReadOperands(in, a, b, o, DType::I8, kept, no_rows, no_columns);
  const Start start = ReadStart(in, c, nullptr, p, o, no_columns);
  uint8_t* result = in.write(c, 0, o.n1 * column, 0);
  UndefineResults(in, c, o, start, no_rows, no_columns);
  UseUnitFlags(in, p.unit_flag, c, o.n1 * column, true, "Fixpipe");
  const SparseIndex& index = IndexOf(in.core());
  for (int64_t f = 0; f < CeilDiv(kept, 32) * o.n1; ++f)
    in.require(index.written[static_cast<size_t>(b.address / kFractal + f)] != 0, "uninitialised",
               "fractal %lld of the right matrix came without an index; load it with LoadDataWithSparse",
               static_cast<long long>(f));
  const uint8_t* left = in.data(a);
  const uint8_t* right = in.data(b);
  const uint8_t* picks = index.bytes.data() + b.address / 4;
  std::vector<int64_t> sums(static_cast<size_t>(o.m1 * 16));
  for (int64_t n1 = 0; n1 < o.n1; ++n1)
    for (int64_t j = 0; j < 16; ++j) {
      std::fill(sums.begin(), sums.end(), 0);
      const int64_t n = n1 * 16 + j;
      if (n < o.n)
        for (int64_t x = 0; x < kept; ++x) {
          const int64_t fractal = x / 32 * o.n1 + n1, at = fractal * kFractal + j * 32 + x % 32;
          const int value = static_cast<int8_t>(right[at]);
          const int pick = picks[at / 4] >> (at % 4 * 2) & 3;
          in.require(pick < 3, "range", "an index is 3; it is 0, 1 or 2");
          const int64_t from = x / 2 * 4 + x % 2 + pick;
          if (value == 0 || from >= o.k) continue;
          for (int64_t r = 0; r < o.m; ++r)
            sums[static_cast<size_t>(r)] += value * static_cast<int8_t>(RowOfA(left, o, r, from / 32)[from % 32]);
        }
      for (int64_t r = 0; r < o.m1 * 16; ++r) {
        int32_t* out = reinterpret_cast<int32_t*>(result + n1 * column) + r * 16 + j;
        int64_t before = 0;
        if (start.bias != nullptr && n < o.n) {
          int32_t value;
          std::memcpy(&value, start.bias + n * 4, 4);
          before = value;
        } else if (!start.zero) {
          before = *out;
        }
        *out = r < o.m && n < o.n ? Saturate(before + sums[static_cast<size_t>(r)]) : 0;
      }
    }
  in.cube_macs(static_cast<uint64_t>(o.m) * static_cast<uint64_t>(o.n) * static_cast<uint64_t>(kept));
  in.cycles(kHead + static_cast<double>(o.m1 * o.n1 * RoundUp(kept, 32)) / 32);
}

// --------------------------------------------------------------------------------------------------------------- Fixpipe

namespace {

enum Quant : uint8_t {
  kNone = 0, kHalf = 1, kVReq8 = 8, kReq8 = 9, kVDeqHalf = 10, kDeqHalf = 11, kBrain = 16, kVQuant8 = 23, kQuant8 = 24,
  kVQuantHalf = 32, kQuantHalf = 33, kVQuantBrain = 34, kQuantBrain = 35, kVDeqBrain = 36, kDeqBrain = 37,
  kVQuantFloat = 38, kQuantFloat = 39,
};

struct Mode {
  uint8_t quant;
  const char* name;
  DType from;
  uint32_t to;
  bool vector;
  bool a5;  // the 950 only
};
const Mode kModes[] = {
    {kNone, "NoQuant", DType::F32, Bit(DType::F32), false, false},
    {kNone, "NoQuant", DType::I32, Bit(DType::I32), false, false},
    {kHalf, "F322F16", DType::F32, Bit(DType::F16), false, false},
    {kBrain, "F322BF16", DType::F32, Bit(DType::BF16), false, false},
    {kDeqHalf, "DEQF16", DType::I32, Bit(DType::F16), false, false},
    {kVDeqHalf, "VDEQF16", DType::I32, Bit(DType::F16), true, false},
    {kQuant8, "QF322B8_PRE", DType::F32, Bit(DType::I8) | Bit(DType::U8), false, false},
    {kVQuant8, "VQF322B8_PRE", DType::F32, Bit(DType::I8) | Bit(DType::U8), true, false},
    {kReq8, "REQ8", DType::I32, Bit(DType::I8) | Bit(DType::U8), false, false},
    {kVReq8, "VREQ8", DType::I32, Bit(DType::I8) | Bit(DType::U8), true, false},
    {kQuantHalf, "QF322F16_PRE", DType::F32, Bit(DType::F16), false, true},
    {kVQuantHalf, "VQF322F16_PRE", DType::F32, Bit(DType::F16), true, true},
    {kQuantBrain, "QF322BF16_PRE", DType::F32, Bit(DType::BF16), false, true},
    {kVQuantBrain, "VQF322BF16_PRE", DType::F32, Bit(DType::BF16), true, true},
    {kDeqBrain, "QS322BF16_PRE", DType::I32, Bit(DType::BF16), false, true},
    {kVDeqBrain, "VQS322BF16_PRE", DType::I32, Bit(DType::BF16), true, true},
    {kQuantFloat, "QF322F32_PRE", DType::F32, Bit(DType::F32), false, true},
    {kVQuantFloat, "VQF322F32_PRE", DType::F32, Bit(DType::F32), true, true},
};

const Mode& FindMode(Instruction& in, uint8_t quant, DType from, DType to) {
  std::string fitting;
  for (const Mode& mode : kModes) {
    if (mode.from != from || !(mode.to >> static_cast<int>(to) & 1u) || (mode.a5 && Arch() != 3510)) continue;
    if (mode.quant == quant) return mode;
    fitting += (fitting.empty() ? "" : ", ") + std::string(mode.name);
  }
  const char* given = "that mode";
  for (const Mode& mode : kModes)
    if (mode.quant == quant) given = mode.name;
  if (fitting.empty())
    in.fail("dtype", "%s: %s in L0C does not go out as %s on the %s", in.name(), Name(from), Name(to), CurrentChip().name);
  in.fail("quant", "%s: quantPre is %s (%d), which is not for %s to %s; use %s", in.name(), given, quant, Name(from), Name(to),
          fitting.c_str());
}

// A scale of a quantising mode: a float whose mantissa the unit cuts to 10 bits, and the fields above it.
struct Scale {
  float factor;
  int shift;      // 0: none
  int offset;     // -256 to 255
  bool is_signed;

  explicit Scale(uint64_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) & 0xffffe000u;
    std::memcpy(&factor, &word, 4);
    shift = Arch() != 3510 && (bits >> 36 & 1) ? static_cast<int>(bits >> 32 & 15) + 1 : 0;
    offset = static_cast<int>(bits >> 37 & 511);
    if (offset >= 256) offset -= 512;
    is_signed = bits >> 46 & 1;
  }
};

int RoundToEven(float value, int low, int high) {
  if (std::isnan(value)) return 0;
  if (value <= static_cast<float>(low)) return low;
  if (value >= static_cast<float>(high)) return high;
  return static_cast<int>(std::nearbyint(value));
}

uint8_t To8(float scaled, const Scale& s) {
  const int value = RoundToEven(scaled, -256, 255) + s.offset;
  return s.is_signed ? static_cast<uint8_t>(static_cast<int8_t>(std::clamp(value, -128, 127)))
                     : static_cast<uint8_t>(std::clamp(value, 0, 255));
}

float FromInteger(int32_t value, const Scale& s) {
  if (s.shift != 0) value = std::clamp(value >> s.shift, -32768, 32767);
  return static_cast<float>(value);
}

void SaturateHalves(uint16_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if ((values[i] & 0x7c00) == 0x7c00)
      values[i] = (values[i] & 0x3ff) ? 0 : static_cast<uint16_t>((values[i] & 0x8000) | 0x7bff);
}
void SaturateBrains(uint16_t* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if ((values[i] & 0x7f80) == 0x7f80)
      values[i] = (values[i] & 0x7f) ? 0 : static_cast<uint16_t>((values[i] & 0x8000) | 0x7f7f);
}

// Up to 16 results of a row on their way out. `scales` are those of their columns.
void Convert(uint8_t* to, const uint8_t* from, int64_t count, const Mode& mode, const Scale* scales, bool relu, bool clip,
             int element) {
  const Registers& registers = CoreRegisters();
  float values[16];
  int32_t integers[16];
  if (mode.from == DType::I32) std::memcpy(integers, from, static_cast<size_t>(count) * 4);
  else std::memcpy(values, from, static_cast<size_t>(count) * 4);
  switch (mode.quant) {
    case kNone:
      if (mode.from == DType::I32) {
        if (relu)
          for (int64_t i = 0; i < count; ++i) integers[i] = std::max(integers[i], 0);
        std::memcpy(to, integers, static_cast<size_t>(count) * 4);
        return;
      }
      [[fallthrough]];
    case kHalf:
    case kBrain:
      if (relu)
        for (int64_t i = 0; i < count; ++i) values[i] = values[i] < 0 ? 0.0f : values[i];
      break;
    default:
      for (int64_t i = 0; i < count; ++i) {
        const float x = mode.from == DType::I32 ? FromInteger(integers[i], scales[i]) : values[i];
        values[i] = x * (relu && !(x >= 0) ? 0.0f : scales[i].factor);
      }
  }
  if (element == 1) {
    for (int64_t i = 0; i < count; ++i) to[i] = To8(values[i], scales[i]);
    return;
  }
  if (element == 4) {
    std::memcpy(to, values, static_cast<size_t>(count) * 4);
    return;
  }
  uint16_t bits[16];
  if (mode.to == Bit(DType::BF16)) {
    ToBrains(bits, values, count);
    if (registers.saturate) SaturateBrains(bits, count);
  } else {
    ToHalves(bits, values, count);
    if (registers.saturate) SaturateHalves(bits, count);
    if (clip) {
      float limit, value;
      const uint16_t most = static_cast<uint16_t>(registers.fixpipe_relu);
      ToFloats(&limit, reinterpret_cast<const uint8_t*>(&most), 1, DType::F16);
      for (int64_t i = 0; i < count; ++i) {
        ToFloats(&value, reinterpret_cast<const uint8_t*>(bits + i), 1, DType::F16);
        if (value > limit) bits[i] = most;
      }
    }
  }
  std::memcpy(to, bits, static_cast<size_t>(count) * 2);
}

// One place for both destinations: `write` declares a piece, `put` stores bytes at an offset, `forget` says that those at an
// offset hold nothing.
template <class WriteFn, class PutFn, class ForgetFn>
void Run(Instruction& in, const Tensor& src, const Tensor* workspace, const Fix& p, DType to, int element, bool to_gm,
         WriteFn write, PutFn put, ForgetFn forget) {
  in.lies_in(src, Bit(Space::L0C), 1);
  in.align(src, 64, 1);
  const Mode& mode = FindMode(in, p.quant, src.dtype, to);
  FixLayout layout = p.layout;
  if (!to_gm && Arch() == 2201) layout = FixLayout::NZ;  // the path into L1 knows no other
  const bool nz = layout == FixLayout::NZ;
  in.require(to_gm || Arch() == 3510 || mode.quant != kNone, "quant", "results go to L1 converted: NoQuant is for GM");
  Range(in, "nSize", p.n, 0, 4095);
  Range(in, "mSize", p.m, 0, layout == FixLayout::Rows && Arch() == 2201 ? 8192 : 65535);
  if (p.channel_split) {
    in.require(nz && src.dtype == DType::F32 && to == DType::F32 && to_gm, "unsupported",
               "a channel split takes float to float in GM, in NZ layout");
    in.require(p.unit_flag == 0, "unsupported", "a channel split and unitFlag exclude each other");
    in.require(p.n % 8 == 0, "range", "nSize is %u; with a channel split it is a multiple of 8", p.n);
  } else if (nz) {
    in.require(p.n % 16 == 0, "range", "nSize is %u; in NZ layout it is a multiple of 16", p.n);
  }
  const bool many = !nz && p.matrices > 1;
  if (p.n == 0 || p.m == 0 || p.matrices == 0) return;
  in.require(p.dst_stride > 0, "range", "dstStride is 0; it is the distance of %s", nz ? "two columns of fractals" : "two rows");
  if (many) {
    if (Arch() == 2201) Range(in, "srcNdStride", p.src_matrix_stride, 1, 512);
    in.require(p.dst_matrix_stride > 0, "range", "the distance of two results is 0");
  }
  in.require(!p.clip || Arch() != 2201, "unsupported", "clipReluPre is not for the %s", CurrentChip().name);

  const int64_t matrices = nz ? 1 : p.matrices, blocks = CeilDiv(p.n, 16), row = 64;
  const int64_t row_step = layout == FixLayout::Columns ? std::max<int64_t>(p.src_row_stride, 1) * row : row;
  const int64_t src_column = p.src_stride * row, src_matrix = p.src_matrix_stride * (p.elements ? row : kResultFractal);
  if (p.unit_flag != 0) in.ordered_after(Pipe::M);
  const auto place = [&](int64_t i, int64_t m, int64_t n) { return i * src_matrix + n / 16 * src_column + m * row_step + n % 16 * 4; };
  for (int64_t i = 0; i < matrices; ++i)
    for (int64_t b = 0; b < blocks; ++b) {
      if (row_step == row) in.read_any(src, place(i, 0, b * 16), p.m * row, 1);
      else in.read_any(src, place(i, 0, b * 16), row, 1, p.m, row_step);
    }
  // Padding at the end of the last fractals may go out as it is; anything else that holds nothing may not.
  std::vector<std::pair<int64_t, int64_t>> limits(static_cast<size_t>(matrices), {p.m, p.n});
  for (int64_t i = 0; i < matrices; ++i) {
    bool defined = true;
    for (int64_t b = 0; defined && b < blocks; ++b) {
      const int64_t bytes = std::min<int64_t>(16, p.n - b * 16) * 4;
      if (row_step == row && bytes == row) defined = Defined(in, src, place(i, 0, b * 16), p.m * row);
      else for (int64_t m = 0; defined && m < p.m; ++m) defined = Defined(in, src, place(i, m, b * 16), bytes);
    }
    if (defined) continue;
    const auto has = [&](int64_t m, int64_t n) { return Defined(in, src, place(i, m, n), 4); };
    const auto refuse = [&](int64_t m, int64_t n) {
      in.fail("uninitialised", "%s stores row %lld, column %lld of the results in %s, byte %lld of L0C, which nothing has written",
              in.name(), static_cast<long long>(m), static_cast<long long>(n),
              OperandText(in.core(), src, in.where(), 1).c_str(), static_cast<long long>(src.address + place(i, m, n)));
    };
    int64_t rows = 0, columns = 0;
    while (rows < p.m && has(rows, 0)) ++rows;
    while (columns < p.n && has(0, columns)) ++columns;
    // Padding ends what is stored, and lies in a fractal that holds results too.
    if (RoundUp(rows, 16) < p.m) refuse(rows, 0);
    if (RoundUp(columns, 16) < p.n) refuse(0, columns);
    for (int64_t m = rows; m < p.m; ++m)
      if (has(m, 0)) refuse(rows, 0);
    for (int64_t n = columns; n < p.n; ++n)
      if (has(0, n)) refuse(0, columns);
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t n = 0; n < columns; ++n)
        if (!has(m, n)) refuse(m, n);
    limits[static_cast<size_t>(i)] = {rows, columns};
  }
  std::vector<Scale> scales;
  if (mode.vector) {
    const uint8_t* from;
    const int64_t bytes = p.n * 8;
    if (workspace != nullptr) {
      in.lies_in(*workspace, Bit(Space::L1), 2);
      in.align(*workspace, kBlock, 2);
      from = in.read(*workspace, 0, bytes, 2);
    } else {
      const Tensor& table = CoreRegisters().fixpipe_quant_tensor;
      in.require(table.space == Space::FB, "quant", "%s takes its scales from the fixpipe buffer; call SetFixPipeConfig first%s",
                 mode.name, p.name[0] == 'F' ? ", or pass them in L1" : "");
      in.ordered_after(Pipe::FIX);  // the copy that filled it is of this pipe, which keeps the two in order
      from = in.read(table, 0, bytes, -1);
    }
    for (int64_t i = 0; i < p.n; ++i) {
      uint64_t bits;
      std::memcpy(&bits, from + i * 8, 8);
      scales.emplace_back(bits);
    }
  } else {
    in.require(workspace == nullptr, "quant", "scales for each column are given, but %s takes none", mode.name);
    scales.assign(static_cast<size_t>(p.n), Scale(p.scale));
  }

  // Bytes of the result: of a column of fractals, and of the step from one to the next.
  const int64_t wide = element == 1 ? 32 : p.channel_split ? 8 : 16;  // columns of a fractal
  const int64_t step = nz ? p.dst_stride * (p.elements ? element : kBlock) : 0;
  {
    // The pieces of the result: rows, columns, or columns of fractals.
    const bool by_rows = layout == FixLayout::Rows;
    const int64_t count = nz ? CeilDiv(p.n, wide) : by_rows ? p.m : p.n;
    const int64_t bytes = nz ? p.m * std::min<int64_t>(wide, p.n) * element : (by_rows ? p.n : p.m) * element;
    const int64_t stride = nz ? step : int64_t{p.dst_stride} * element, matrix = int64_t{p.dst_matrix_stride} * element;
    if ((count > 1 && stride < bytes) || (matrices > 1 && matrix < (count - 1) * stride + bytes)) {
      std::vector<int64_t> starts;
      for (int64_t i = 0; i < matrices; ++i)
        for (int64_t x = 0; x < count; ++x) starts.push_back(i * matrix + x * stride);
      const std::string operand = ArgumentText(in.where(), 0);
      CheckApart(in, operand.empty() ? "the result" : "`" + operand + "`", std::move(starts), bytes,
                 nz ? "dstStride is at least the rows of a column of fractals" : by_rows ? "dstStride is at least nSize"
                                                                                         : "dstStride is at least mSize");
    }
  }
  for (int64_t i = 0; i < matrices; ++i) {
    if (layout == FixLayout::Rows) {
      write(i * p.dst_matrix_stride * element, p.n * element, p.m, p.dst_stride * element);
    } else if (layout == FixLayout::Columns) {
      write(i * p.dst_matrix_stride * element, p.m * element, p.n, p.dst_stride * element);
    } else {
      for (int64_t n = 0; n < p.n; n += wide) write(n / wide * step, p.m * std::min(wide, p.n - n) * element, 1, 0);
    }
  }
  // The units that the rows read lie in, column by column.
  for (int64_t i = 0; i < matrices; ++i)
    for (int64_t b = 0; b < blocks; ++b) {
      Tensor part = src;
      part.address += static_cast<uint32_t>(i * src_matrix + b * src_column);
      UseUnitFlags(in, p.unit_flag, part, RoundUp(p.m * row, kUnit), false, "Mmad");
    }
  const uint8_t* source = in.data(src);
  alignas(64) uint8_t line[4096 * 4];
  for (int64_t i = 0; i < matrices; ++i) {
    if (layout == FixLayout::Columns) {
      for (int64_t n = 0; n < p.n; ++n)
        for (int64_t m = 0; m < p.m; ++m) {
          Convert(line, source + place(i, m, n), 1, mode,
                  &scales[static_cast<size_t>(n)], p.relu, p.clip, element);
          put((i * p.dst_matrix_stride + n * p.dst_stride + m) * element, line, element);
        }
      continue;
    }
    for (int64_t m = 0; m < p.m; ++m) {
      for (int64_t b = 0; b < blocks; ++b)
        Convert(line + b * 16 * element, source + place(i, m, b * 16),
                std::min<int64_t>(16, p.n - b * 16), mode, &scales[static_cast<size_t>(b * 16)], p.relu, p.clip, element);
      if (layout == FixLayout::Rows) {
        put((i * p.dst_matrix_stride + m * p.dst_stride) * element, line, p.n * element);
        continue;
      }
      for (int64_t n = 0; n < p.n; n += wide) {
        const int64_t width = std::min(wide, p.n - n) * element, at = n / wide * step + m * width;
        put(at, line + n * element, width);
        const auto [rows, columns] = limits[static_cast<size_t>(i)];
        const int64_t good = m >= rows ? 0 : std::clamp<int64_t>((columns - n) * element, 0, width);
        if (good < width) forget(at + good, width - good);
      }
    }
  }
  in.cycles(16 + static_cast<double>(matrices * blocks * 16 * p.m) / (element == 4 ? 32 : 64));
}

}  // namespace

void Fixpipe(const Global& dst, const Tensor& src, const Tensor* workspace, const Fix& p, Where where) {
  // Before the way to GM, Fixpipe waits for what its pipe did before.
  if (std::strcmp(p.name, "Fixpipe") == 0 && Arch() == 2201) Barrier(Pipe::FIX, where);
  Instruction in(Pipe::FIX, p.name, Unit::Cube, where);
  in.require(!CurrentChip().unified, "unsupported", "the %s has no Fixpipe; copy L0C to UB with DataCopy", CurrentChip().name);
  in.require(p.layout != FixLayout::Columns || Arch() == 3510, "unsupported", "CFG_COLUMN_MAJOR is for the 950");
  in.require(p.layout != FixLayout::NZ || reinterpret_cast<uintptr_t>(dst.address) % kBlock == 0, "alignment",
             "a result in NZ layout starts at a multiple of 32 bytes of GM");
  Run(
      in, src, workspace, p, dst.dtype, dst.element, true,
      [&](int64_t offset, int64_t bytes, int64_t count, int64_t stride) { in.write(dst, offset, bytes, 0, count, stride); },
      [&](int64_t offset, const uint8_t* from, int64_t bytes) { in.store(dst.address + offset, from, bytes, dst.dtype); },
      [](int64_t, int64_t) {});
}

void Fixpipe(const Tensor& dst, const Tensor& src, const Tensor* workspace, const Fix& p, Where where) {
  if (std::strcmp(p.name, "Fixpipe") == 0 && Arch() == 2201 && workspace != nullptr) Barrier(Pipe::FIX, where);
  Instruction in(Pipe::FIX, p.name, Unit::Cube, where);
  in.require(!CurrentChip().unified, "unsupported", "the %s has no Fixpipe; copy L0C to UB with DataCopy", CurrentChip().name);
  in.require(dst.space != Space::UB, "position", Arch() == 3510 ? "the path from L0C to another core's UB is not emulated: go through GM"
                                                                : "there is no path from L0C to UB: go through GM");
  in.lies_in(dst, Bit(Space::L1), 0);
  in.align(dst, kBlock, 0);
  Run(
      in, src, workspace, p, dst.dtype, dst.element, false,
      [&](int64_t offset, int64_t bytes, int64_t count, int64_t stride) { in.write(dst, offset, bytes, 0, count, stride); },
      [&](int64_t offset, const uint8_t* from, int64_t bytes) {
        std::memcpy(in.data(dst) + offset, from, static_cast<size_t>(bytes));
      },
      [&](int64_t offset, int64_t bytes) { Undefine(in, dst, offset, bytes); });
}

}  // namespace atbfn::emulator
