// Reductions, comparisons and selection.
#include <cmath>

#include "lanes.h"

namespace atbfn::emulator {

namespace {

// One repeat's elements as floats; what the mask leaves out is absent.
struct Values {
  float value[256];
  bool present[256];
  int64_t count;
};

Values Take(const Walk& walk, const View& view, DType dtype, int64_t repeat) {
  Values values;
  values.count = walk.per_repeat;
  alignas(32) uint8_t scratch[256 * 8];
  const int64_t n = walk.counted ? std::min(walk.per_repeat, walk.total - repeat * walk.per_repeat) : walk.per_repeat;
  const uint8_t* raw = view.load(repeat, n, scratch);
  float floats[256];
  const float* x = LoadFloats(dtype, raw, n, floats);
  for (int64_t e = 0; e < values.count; ++e) {
    values.present[e] = e < n && walk.active(repeat, e);
    values.value[e] = values.present[e] ? x[e] : 0.0f;
  }
  return values;
}

float RoundTo(DType dtype, float value) { return dtype == DType::F16 ? HalfToFloat(FloatToHalf(value)) : value; }

// What saturation mode makes of a result: also of those on the way to another.
float Saturated(DType dtype, bool saturate, float value) {
  return saturate && dtype == DType::F16 ? HalfToFloat(SaturateHalf(FloatToHalf(value))) : value;
}

// A binary tree over neighbours, each sum rounded to the type; absent elements are zero.
float TreeSum(const float* values, int64_t count, DType dtype, bool saturate) {
  float level[256];
  std::copy_n(values, count, level);
  while (count > 1) {
    for (int64_t i = 0; i < count / 2; ++i) 
      level[i] = Saturated(dtype, saturate, RoundTo(dtype, level[2 * i] + level[2 * i + 1]));
    if (count % 2) level[count / 2] = level[count - 1];
    count = (count + 1) / 2;
  }
  return level[0];
}

struct Extreme {
  float value = 0;
  int64_t index = -1;
};

// The first of the largest (or smallest); nan wins over numbers.
bool Better(ReduceOp op, float candidate, float best) {
  if (std::isnan(best)) return false;
  if (std::isnan(candidate)) return true;
  if (candidate == best) return op == ReduceOp::Max ? std::signbit(best) && !std::signbit(candidate)
                                                    : std::signbit(candidate) && !std::signbit(best);
  return op == ReduceOp::Max ? candidate > best : candidate < best;
}

Extreme FindExtreme(ReduceOp op, const Values& values, int64_t begin, int64_t end) {
  Extreme found;
  for (int64_t e = begin; e < end; ++e)
    if (values.present[e] && (found.index < 0 || Better(op, values.value[e], found.value))) found = {values.value[e], e};
  return found;
}

void Put(Instruction& in, const Tensor& dst, int64_t index, float value) {
  const uint64_t bits = ToBits(dst.dtype, value);
  uint64_t stored = bits;
  if (in.core().registers.saturate && dst.dtype == DType::F16) stored = SaturateHalf(static_cast<uint16_t>(bits));
  std::memcpy(in.data(dst) + index * dst.element, &stored, dst.element);
}
void PutIndex(Instruction& in, const Tensor& dst, int64_t position, int64_t index) {
  std::memcpy(in.data(dst) + position * dst.element, &index, dst.element);
}

void CheckReduce(Instruction& in, const Tensor& dst, const Tensor& src) {
  in.dtype_in(src, kFloats, 1);
  in.require(dst.dtype == src.dtype, "dtype", "the destination is %s and the source %s; they must have one type",
             Name(dst.dtype), Name(src.dtype));
  in.lies_in(dst, Bit(Space::UB), 0);
  in.lies_in(src, Bit(Space::UB), 1);
  in.align(src, 32, 1);
}

int64_t ElementsNeeded(int64_t repeats, int64_t per_repeat, int64_t per_block, bool index) {
  const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b * b; };
  const int64_t first = repeats * 2;
  int64_t need = up(first, per_block);
  if (!index) return need;
  const int64_t second = (first + per_repeat - 1) / per_repeat * 2;
  need += up(second, per_block);
  if (second > 2) need += up((second + per_repeat - 1) / per_repeat * 2, per_block);
  return need;
}

}  // namespace

void ReduceRepeats(ReduceOp op, const char* name, const Tensor& dst, const Tensor& src, const Lanes& lanes,
                   int64_t dst_stride, int64_t block_stride, int64_t repeat_stride, int order, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  CheckReduce(in, dst, src);
  const bool both = op != ReduceOp::Sum && order <= 1;
  in.align(dst, op != ReduceOp::Sum && order == 3 ? 4 : static_cast<uint32_t>(dst.element) * (both ? 2 : 1), 0);
  const Walk walk = Resolve(in, lanes, src.element);
  const Operand from{src, {static_cast<uint32_t>(block_stride), static_cast<uint32_t>(repeat_stride)}};
  View view(in, from, walk, 1);
  view.declare(false);
  // An index alone has 32 bits, whatever the type: two halves.
  const int64_t elements = both ? 2 : op != ReduceOp::Sum && order == 3 ? 4 / dst.element : 1;
  const int64_t step = dst_stride * elements;
  if (walk.repeats > 0)
    CheckOverlap(in, EvenTurns(dst, 0, walk.repeats, elements * dst.element, step * dst.element), view.turns(), Share::Tolerated);
  for (int64_t r = 0; r < walk.repeats; ++r) in.write(dst, r * step * dst.element, elements * dst.element, 0);
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(14 + static_cast<double>(walk.repeats) * 2);
  Registers& registers = in.core().registers;
  std::vector<std::pair<Extreme, float>> results;
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const Values values = Take(walk, view, src.dtype, r);
    results.push_back({op == ReduceOp::Sum ? Extreme{} : FindExtreme(op, values, 0, values.count),
                       op == ReduceOp::Sum ? TreeSum(values.value, values.count, src.dtype, registers.saturate) : 0});
  }
  Extreme best;
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const auto& [extreme, sum] = results[static_cast<size_t>(r)];
    if (op == ReduceOp::Sum) {
      Put(in, dst, r * step, sum);
      registers.accumulated = ToBits(src.dtype, sum);
      continue;
    }
    switch (order) {
      case 0: Put(in, dst, r * step, extreme.value); PutIndex(in, dst, r * step + 1, extreme.index); break;
      case 1: PutIndex(in, dst, r * step, extreme.index); Put(in, dst, r * step + 1, extreme.value); break;
      case 2: Put(in, dst, r * step, extreme.value); break;
      default: {
        const uint32_t index = static_cast<uint32_t>(extreme.index);
        std::memcpy(in.data(dst) + r * step * dst.element, &index, 4);
      }
    }
    if (extreme.index >= 0 && (best.index < 0 || Better(op, extreme.value, best.value)))
      best = {extreme.value, r * walk.per_repeat + extreme.index};
  }
  if (best.index >= 0) {  // the register holds that of all repeats
    registers.extreme[0] = ToBits(src.dtype, best.value);
    registers.extreme[1] = static_cast<uint64_t>(best.index);
  }
}

void ReduceBlocks(ReduceOp op, const char* name, const Tensor& dst, const Tensor& src, const Lanes& lanes,
                  int64_t dst_stride, int64_t block_stride, int64_t repeat_stride, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  CheckReduce(in, dst, src);
  in.align(dst, src.element == 2 ? 16 : 32, 0);
  const Walk walk = Resolve(in, lanes, src.element);
  const Operand from{src, {static_cast<uint32_t>(block_stride), static_cast<uint32_t>(repeat_stride)}};
  View view(in, from, walk, 1);
  view.declare(false);
  const int64_t per_block = 32 / src.element;
  if (walk.repeats > 0)
    CheckOverlap(in, EvenTurns(dst, 0, walk.repeats, 8 * dst.element, dst_stride * 8 * dst.element), view.turns(),
                 Share::Tolerated);
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t b = 0; b < 8; ++b) {
      bool any = false;
      for (int64_t e = 0; e < per_block; ++e) any |= walk.active(r, b * per_block + e);
      if (any) in.write(dst, (r * dst_stride * 8 + b) * dst.element, dst.element, 0);
    }
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(14 + static_cast<double>(walk.repeats));
  const bool saturate = in.core().registers.saturate;
  std::vector<std::pair<int64_t, float>> results;
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const Values values = Take(walk, view, src.dtype, r);
    for (int64_t b = 0; b < 8; ++b) {
      const Extreme extreme = FindExtreme(op == ReduceOp::Sum ? ReduceOp::Max : op, values, b * per_block, (b + 1) * per_block);
      if (extreme.index < 0) continue;  // no lane of the block is active
      results.push_back({r * dst_stride * 8 + b,
                         op == ReduceOp::Sum ? TreeSum(values.value + b * per_block, per_block, src.dtype, saturate)
                                             : extreme.value});
    }
  }
  for (const auto& [index, value] : results) Put(in, dst, index, value);
}

void ReducePairs(const char* name, const Tensor& dst, const Tensor& src, const Lanes& lanes, int64_t dst_stride,
                 int64_t block_stride, int64_t repeat_stride, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  CheckReduce(in, dst, src);
  in.align(dst, 32, 0);
  const Walk walk = Resolve(in, lanes, src.element);
  const Operand from{src, {static_cast<uint32_t>(block_stride), static_cast<uint32_t>(repeat_stride)}};
  View view(in, from, walk, 1);
  view.declare(false);
  const int64_t half = walk.per_repeat / 2;
  if (walk.repeats > 0)
    CheckOverlap(in, EvenTurns(dst, 0, walk.repeats, half * dst.element, dst_stride * half * dst.element), view.turns(),
                 Share::Tolerated);
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t p = 0; p < half; ++p)
      if (walk.active(r, 2 * p) || walk.active(r, 2 * p + 1)) in.write(dst, (r * dst_stride * half + p) * dst.element, dst.element, 0);
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(14 + static_cast<double>(walk.repeats));
  std::vector<std::pair<int64_t, float>> results;
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const Values values = Take(walk, view, src.dtype, r);
    for (int64_t p = 0; p < half; ++p)
      if (values.present[2 * p] || values.present[2 * p + 1])
        results.push_back({r * dst_stride * half + p, RoundTo(src.dtype, values.value[2 * p] + values.value[2 * p + 1])});
  }
  for (const auto& [index, value] : results) Put(in, dst, index, value);
}

void ReduceAll(ReduceOp op, const char* name, const Tensor& dst, const Tensor& src, const Tensor& scratch,
               const Lanes& lanes, int64_t repeat_stride, bool index, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  CheckReduce(in, dst, src);
  in.align(dst, static_cast<uint32_t>(dst.element), 0);
  // This form repeats as often as it is asked to: it is several instructions on the device.
  Lanes one = lanes;
  if (lanes.form != Lanes::Count) one.repeats = std::min<int64_t>(lanes.repeats, 255);
  Walk walk = Resolve(in, one, src.element);
  if (lanes.form != Lanes::Count && !walk.counted && walk.repeats > 0) walk.repeats = lanes.repeats;
  if (walk.repeats == 0) return;
  const Operand from{src, {1, static_cast<uint32_t>(repeat_stride)}};
  View view(in, from, walk, 1);
  view.declare(false);
  const int64_t per_block = 32 / src.element;
  const bool counted = lanes.form == Lanes::Count;
  if (op != ReduceOp::Sum || (!counted && walk.repeats > 1)) {
    const int64_t need = op == ReduceOp::Sum ? (walk.repeats + per_block - 1) / per_block * per_block
                                             : ElementsNeeded(walk.repeats, walk.per_repeat, per_block, index);
    in.lies_in(scratch, Bit(Space::UB), 2);
    in.align(scratch, 32, 2);
    if (scratch.address != src.address)
      in.require(static_cast<int64_t>(scratch.size) * scratch.element >= std::min(need, walk.repeats * 2) * src.element, "size",
                 "sharedTmpBuffer has %u elements, this call needs %lld", scratch.size, static_cast<long long>(need));
    const int64_t bytes = std::min<int64_t>(need * src.element, static_cast<int64_t>(scratch.size) * scratch.element);
    if (walk.repeats > 1) {
      const int64_t one = src.element * (op == ReduceOp::Sum ? 1 : 2);
      CheckOverlap(in, EvenTurns(scratch, 2, walk.repeats, one, one), view.turns(), Share::Any);
      in.write(scratch, 0, bytes, 2);
    }
  }
  in.write(dst, 0, dst.element * (index ? 2 : 1), 0);
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(30 + static_cast<double>(walk.repeats) * 2);
  Registers& registers = in.core().registers;
  if (op == ReduceOp::Sum) {
    std::vector<float> sums;
    for (int64_t r = 0; r < walk.repeats; ++r) {
      const Values values = Take(walk, view, src.dtype, r);
      sums.push_back(TreeSum(values.value, values.count, src.dtype, registers.saturate));
    }
    float total = sums[0];
    if (counted) {  // one repeat after the other
      for (size_t r = 1; r < sums.size(); ++r)
        total = Saturated(src.dtype, registers.saturate, RoundTo(src.dtype, total + sums[r]));
    } else {  // and again a tree, a repeat's worth at a time
      while (sums.size() > 1) {
        std::vector<float> next;
        for (size_t at = 0; at < sums.size(); at += static_cast<size_t>(walk.per_repeat)) {
          float level[256] = {};
          const size_t n = std::min(sums.size() - at, static_cast<size_t>(walk.per_repeat));
          std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(at), n, level);
          next.push_back(TreeSum(level, walk.per_repeat, src.dtype, registers.saturate));
        }
        sums = next;
      }
      total = sums[0];
    }
    Put(in, dst, 0, total);
    registers.accumulated = ToBits(src.dtype, total);
    return;
  }
  Extreme best;
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const Values values = Take(walk, view, src.dtype, r);
    Extreme found = FindExtreme(op, values, 0, values.count);
    found.value = Saturated(src.dtype, registers.saturate, found.value);
    if (found.index >= 0 && (best.index < 0 || Better(op, found.value, best.value)))
      best = {found.value, r * walk.per_repeat + found.index};
  }
  Put(in, dst, 0, best.value);
  if (index) PutIndex(in, dst, 1, best.index);
  registers.extreme[0] = ToBits(src.dtype, best.value);
  registers.extreme[1] = static_cast<uint64_t>(best.index);
}

// ------------------------------------------------------------------------------------------------ compare and select

namespace {

template <class T>
bool Compares(int mode, T a, T b) {
  switch (mode) {
    case 0: return a < b;
    case 1: return a > b;
    case 2: return a == b;
    case 3: return a <= b;
    case 4: return a >= b;
    default:  // a nan is not even unequal, but on the newest chip
      return a != b && (CurrentChip().arch == 3510 || !(std::isnan(static_cast<double>(a)) || std::isnan(static_cast<double>(b))));
  }
}

}  // namespace

void Compare(const char* name, const Tensor* dst, const Operand& a, const Operand* b, Scalar scalar, int mode,
             const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  const DType dtype = a.tensor.dtype;
  in.dtype_in(a.tensor, Legal(kFloats | Bit(DType::I32)), dst != nullptr ? 1 : 0);
  in.require(mode >= 0 && mode <= 5, "range", "the comparison is %d, it must be one of CMPMODE", mode);
  in.require(dtype != DType::I32 || mode == 2 || CurrentChip().arch == 3510, "dtype", "int32_t is compared with CMPMODE::EQ only");
  const Walk walk = Resolve(in, lanes, a.tensor.element);
  if (lanes.form == Lanes::Count && lanes.set_mask)
    in.require(lanes.count * a.tensor.element % 256 == 0, "count",
               "%lld elements are %lld bytes; comparisons take whole repeats of 256 bytes, the rest would not be computed",
               static_cast<long long>(lanes.count), static_cast<long long>(lanes.count * a.tensor.element));
  in.align(a.tensor, 32, 1);
  View va(in, a, walk, dst != nullptr ? 1 : 0);
  va.declare(false);
  const Operand& other = b != nullptr ? *b : a;
  View vb(in, other, walk, dst != nullptr ? 2 : 1);
  if (b != nullptr) {
    in.require(b->tensor.dtype == dtype, "dtype", "operands are %s and %s; they must have one type", Name(dtype), Name(b->tensor.dtype));
    in.align(b->tensor, 32, 2);
    vb.declare(false);
  }
  // A bit for each element; every repeat gives a whole number of bytes.
  const int64_t bytes_per_repeat = walk.per_repeat / 8;
  if (dst != nullptr) {
    in.dtype_in(*dst, Bit(DType::U8) | Bit(DType::I8) | Bit(DType::U16) | Bit(DType::U32) | Bit(DType::U64), 0);
    in.lies_in(*dst, Bit(Space::UB), 0);
    in.align(*dst, 32, 0);
    if (walk.repeats > 0) {
      const Turns bits = EvenTurns(*dst, 0, walk.repeats, bytes_per_repeat, bytes_per_repeat);
      CheckOverlap(in, bits, va.turns(), Share::Tolerated);
      if (b != nullptr) CheckOverlap(in, bits, vb.turns(), Share::Tolerated);
      in.write(*dst, 0, bytes_per_repeat * walk.repeats, 0);
    }
  }
  Cost(in, walk, a.tensor.element, 256);
  alignas(32) uint8_t sa[256 * 8], sb[256 * 8];
  uint8_t bits[32];
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const int64_t n = walk.per_repeat;
    const uint8_t* x = va.load(r, n, sa);
    const uint8_t* y = b != nullptr ? vb.load(r, n, sb) : reinterpret_cast<const uint8_t*>(&scalar.bits);
    std::memset(bits, 0, sizeof(bits));
    for (int64_t e = 0; e < n; ++e) {
      if (!walk.active(r, e)) continue;
      const double left = ToDouble(x + e * a.tensor.element, dtype);
      const double right = ToDouble(b != nullptr ? y + e * a.tensor.element : y, dtype);
      if (Compares(mode, left, right)) bits[e / 8] |= static_cast<uint8_t>(1u << (e % 8));
    }
    if (dst == nullptr) in.compare_register(true);
    if (dst != nullptr) {
      std::memcpy(in.data(*dst) + r * bytes_per_repeat, bits, static_cast<size_t>(bytes_per_repeat));
    } else {
      std::memcpy(in.core().registers.compare_mask, bits, 16);
    }
  }
}

void Select(const Operand& dst, const Tensor* mask, const Operand& a, const Operand* b, Scalar scalar, int mode,
            const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, "Select", Unit::Vector, where);
  in.dtype_in(a.tensor, Legal(kFloats), mask != nullptr ? 2 : 1);
  const int size = a.tensor.element;
  const Walk walk = Resolve(in, lanes, size);
  in.align(dst.tensor, 32, 0);
  in.align(a.tensor, 32, 2);
  // VSEL_CMPMASK_SPR takes the same bits in every repeat, the other modes the next bits.
  const bool repeat_mask = mode == 0;
  uint8_t held[32] = {};
  if (mask != nullptr) {
    in.lies_in(*mask, Bit(Space::UB), 1);
    in.align(*mask, 32, 1);
    const int64_t bytes = repeat_mask ? walk.per_repeat / 8 : (walk.elements() + 7) / 8;
    if (walk.repeats > 0) {
      const View to(in, dst, walk, 0);
      CheckOverlap(in, to.turns(), EvenTurns(*mask, 1, walk.repeats, walk.per_repeat / 8, repeat_mask ? 0 : walk.per_repeat / 8),
                   Share::Tolerated);
      in.read(*mask, 0, walk.counted || repeat_mask ? bytes : walk.repeats * walk.per_repeat / 8, 1);
    }
  } else {
    in.compare_register(false);
    std::memcpy(held, in.core().registers.compare_mask, 16);
  }
  const uint8_t* bits = mask != nullptr ? in.data(*mask) : held;
  if (b == nullptr) in.require(mode != 0 || mask == nullptr, "range", "VSEL_CMPMASK_SPR selects between two tensors");
  Cost(in, walk, size, 128);
  const std::vector<uint8_t> kept(bits, bits + (repeat_mask ? 32 : (walk.repeats * walk.per_repeat + 7) / 8));
  int64_t repeat = 0, done = 0;
  const bool chunked = walk.dense;
  RunLanes(in, walk, dst, b != nullptr ? std::initializer_list<const Operand*>{&a, b} : std::initializer_list<const Operand*>{&a},
           false, [&](uint8_t* out, const uint8_t** from, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t element = done + i;
      const int64_t bit = repeat_mask ? element % walk.per_repeat : element;
      const bool first = kept[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1u;
      const uint8_t* source = first ? from[0] + i * size : b != nullptr ? from[1] + i * size : reinterpret_cast<const uint8_t*>(&scalar.bits);
      uint8_t value[8];
      std::memcpy(value, source, static_cast<size_t>(size));
      std::memcpy(out + i * size, value, static_cast<size_t>(size));
    }
    ++repeat;
    done = chunked ? done + n : repeat * walk.per_repeat;
  });
}

void GetCompareMask(const Tensor& dst, Where where) {
  Instruction in(Pipe::V, "GetCmpMask", Unit::Vector, where);
  in.align(dst, 16, 0);
  in.compare_register(false);
  std::memcpy(in.write(dst, 0, 16, 0), in.core().registers.compare_mask, 16);
  in.cycles(10);
}
void SetCompareMask(const Tensor& src, Where where) {
  Instruction in(Pipe::V, "SetCmpMask", Unit::Vector, where);
  in.align(src, 16, 0);
  in.compare_register(true);
  std::memcpy(in.core().registers.compare_mask, in.read(src, 0, 16, 0), 16);
  in.cycles(10);
}

}  // namespace atbfn::emulator
