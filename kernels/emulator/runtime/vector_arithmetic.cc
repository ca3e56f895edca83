// Elementwise arithmetic. Halves are computed in float and rounded once, which is the correctly rounded result of every
// single operation here.
#include <cmath>
#include <type_traits>

#include "lanes.h"

namespace atbfn::emulator {

namespace {

template <class T>
bool IsNan(T x) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(x);
  else return false;
}

struct Add {
  template <class T>
  static T apply(T a, T b, bool saturate) {
    if constexpr (std::is_floating_point_v<T>) return a + b;
    else return Fit<T>(static_cast<int64_t>(a) + b, saturate);
  }
  // Integers wrap around, or stop at their limits in saturation mode.
  template <class T>
  static T Fit(int64_t value, bool saturate) {
    if (saturate)
      value = std::min<int64_t>(std::max<int64_t>(value, std::numeric_limits<T>::min()), std::numeric_limits<T>::max());
    return static_cast<T>(static_cast<std::make_unsigned_t<T>>(value));
  }
};
struct Sub {
  template <class T>
  static T apply(T a, T b, bool saturate) {
    if constexpr (std::is_floating_point_v<T>) return a - b;
    else return Add::Fit<T>(static_cast<int64_t>(a) - b, saturate);
  }
};
struct Mul {
  template <class T>
  static T apply(T a, T b, bool saturate) {
    if constexpr (std::is_floating_point_v<T>) return a * b;
    else return Add::Fit<T>(static_cast<int64_t>(a) * b, saturate);
  }
};
struct Div {
  template <class T>
  static T apply(T a, T b, bool) {
    if constexpr (std::is_floating_point_v<T>) return a / b;
    else return b == 0 ? static_cast<T>(-1) : static_cast<T>(static_cast<int64_t>(a) / b);
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b, bool) {
    if constexpr (std::is_floating_point_v<T>) {
      if (IsNan(a) || IsNan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a > b ? a : b;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b, bool) {
    if constexpr (std::is_floating_point_v<T>) {
      if (IsNan(a) || IsNan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
  }
};
template <class T>
T ReluOf(T x) {
  if constexpr (std::is_floating_point_v<T>) return IsNan(x) ? x : x > 0 ? x : T{0};
  else return std::max<T>(x, 0);
}
struct AddRelu {
  template <class T>
  static T apply(T a, T b, bool saturate) { return ReluOf<T>(Add::apply<T>(a, b, saturate)); }
};
struct SubRelu {
  template <class T>
  static T apply(T a, T b, bool saturate) { return ReluOf<T>(Sub::apply<T>(a, b, saturate)); }
};
struct LeakyRelu {
  template <class T>
  static T apply(T x, T slope, bool) {
    if constexpr (std::is_floating_point_v<T>) return IsNan(x) || !std::signbit(x) ? x : x * slope;
    else return x >= 0 ? x : static_cast<T>(x * slope);
  }
};

// out[i] = Op(a[i], b[i]); a scalar b is the same for all.
template <class Op, class T>
void Loop(T* out, const T* a, const T* b, bool scalar, int64_t n, bool saturate) {
  if (scalar) {
    const T s = *b;
    for (int64_t i = 0; i < n; ++i) out[i] = Op::template apply<T>(a[i], s, saturate);
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = Op::template apply<T>(a[i], b[i], saturate);
  }
}

template <class Op>
void Apply(DType dtype, void* out, const void* a, const void* b, bool scalar, int64_t n, bool saturate) {
  switch (dtype) {
    case DType::F16: case DType::BF16: {
      float x[kChunk], y[kChunk];
      LoadFloats(dtype, a, n, x);
      LoadFloats(dtype, b, scalar ? 1 : n, y);
      Loop<Op, float>(x, x, y, scalar, n, saturate);
      StoreFloats(dtype, out, x, n, saturate);
      break;
    }
    case DType::F32: Loop<Op, float>(static_cast<float*>(out), static_cast<const float*>(a), static_cast<const float*>(b), scalar, n, saturate); break;
    case DType::I16: Loop<Op, int16_t>(static_cast<int16_t*>(out), static_cast<const int16_t*>(a), static_cast<const int16_t*>(b), scalar, n, saturate); break;
    case DType::I32: Loop<Op, int32_t>(static_cast<int32_t*>(out), static_cast<const int32_t*>(a), static_cast<const int32_t*>(b), scalar, n, saturate); break;
    case DType::U16: Loop<Op, uint16_t>(static_cast<uint16_t*>(out), static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), scalar, n, saturate); break;
    case DType::U32: Loop<Op, uint32_t>(static_cast<uint32_t*>(out), static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), scalar, n, saturate); break;
    default: break;
  }
}

void Bitwise(bool both, void* out, const void* a, const void* b, int64_t bytes) {
  const uint8_t *x = static_cast<const uint8_t*>(a), *y = static_cast<const uint8_t*>(b);
  uint8_t* z = static_cast<uint8_t*>(out);
  for (int64_t i = 0; i < bytes; ++i) z[i] = both ? x[i] & y[i] : x[i] | y[i];
}

double Evaluate(UnaryOp op, double x) {
  switch (op) {
    case UnaryOp::Exp: return std::exp(x);
    case UnaryOp::Ln: return std::log(x);
    case UnaryOp::Sqrt: return std::sqrt(x);
    case UnaryOp::Rsqrt: return 1.0 / std::sqrt(x);
    case UnaryOp::Reciprocal: return 1.0 / x;
    default: return x;
  }
}

// The device's Rsqrt and Reciprocal are approximate; on request the emulator's are too, by up to the documented error.
float Approximate(float value, DType dtype) {
  uint32_t h = Bits<uint32_t>(value) * 2654435761u;
  h ^= h >> 15;
  const float unit = static_cast<float>(h & 0xffffu) / 32768.0f - 1.0f;
  return value * (1.0f + unit * (dtype == DType::F16 ? 1e-3f : 1e-4f));
}

void SameTypes(Instruction& in, std::initializer_list<const Operand*> operands) {
  const Operand& first = **operands.begin();
  for (const Operand* operand : operands)
    in.require(operand->tensor.dtype == first.tensor.dtype, "dtype", "operands are %s and %s; they must have one type",
               Name(first.tensor.dtype), Name(operand->tensor.dtype));
}

void Aligned(Instruction& in, std::initializer_list<const Operand*> operands) {
  int argument = 0;
  for (const Operand* operand : operands) {
    in.lies_in(operand->tensor, Bit(Space::UB), argument);
    in.align(operand->tensor, 32, argument++);
  }
}

}  // namespace

void Unary(UnaryOp op, const char* name, const Operand& dst, const Operand& src, const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  const DType dtype = src.tensor.dtype;
  in.dtype_in(src.tensor, Legal(op == UnaryOp::Not ? kWords
                                : op == UnaryOp::Relu || op == UnaryOp::Neg ? kFloats | Bit(DType::I32) : kFloats), 1);
  SameTypes(in, {&dst, &src});
  Aligned(in, {&dst, &src});
  const Walk walk = Resolve(in, lanes, src.tensor.element);
  const bool slow = op == UnaryOp::Exp || op == UnaryOp::Ln || op == UnaryOp::Sqrt;
  Cost(in, walk, src.tensor.element, slow ? (dtype == DType::F16 ? 64 : 128) : 256);
  const bool saturate = in.core().registers.saturate;
  const bool approximate = GlobalOptions().approximate && (op == UnaryOp::Rsqrt || op == UnaryOp::Reciprocal);
  RunLanes(in, walk, dst, {&src}, false, [&](uint8_t* out, const uint8_t** from, int64_t n) {
    if (op == UnaryOp::Not) {
      for (int64_t i = 0; i < n * 2; ++i) out[i] = static_cast<uint8_t>(~from[0][i]);
      return;
    }
    if (dtype == DType::I32) {
      const int32_t* x = reinterpret_cast<const int32_t*>(from[0]);
      int32_t* y = reinterpret_cast<int32_t*>(out);
      for (int64_t i = 0; i < n; ++i) y[i] = op == UnaryOp::Relu ? ReluOf(x[i]) : static_cast<int32_t>(-static_cast<uint32_t>(x[i]));
      return;
    }
    float scratch[kChunk], result[kChunk];
    const float* x = LoadFloats(dtype, from[0], n, scratch);
    switch (op) {
      case UnaryOp::Abs: for (int64_t i = 0; i < n; ++i) result[i] = std::fabs(x[i]); break;
      case UnaryOp::Relu: for (int64_t i = 0; i < n; ++i) result[i] = ReluOf(x[i]); break;
      case UnaryOp::Neg: for (int64_t i = 0; i < n; ++i) result[i] = -x[i]; break;
      case UnaryOp::Sqrt:
        if (dtype == DType::F32) {
          for (int64_t i = 0; i < n; ++i) result[i] = std::sqrt(x[i]);
          break;
        }
        [[fallthrough]];
      default: for (int64_t i = 0; i < n; ++i) result[i] = static_cast<float>(Evaluate(op, x[i]));
    }
    if (approximate)
      for (int64_t i = 0; i < n; ++i) result[i] = Approximate(result[i], dtype);
    StoreFloats(dtype, out, result, n, saturate);
  });
}

void Binary(BinaryOp op, const char* name, const Operand& dst, const Operand& a, const Operand& b, const Lanes& lanes,
            Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  const DType dtype = a.tensor.dtype;
  uint32_t legal = kFloats | kInts;
  if (op == BinaryOp::And || op == BinaryOp::Or) legal = kWords;
  if (op == BinaryOp::Div) legal = kFloats;
  if (op == BinaryOp::AddRelu || op == BinaryOp::SubRelu) legal = kFloats | Bit(DType::I16);
  in.dtype_in(a.tensor, Legal(legal), 1);
  SameTypes(in, {&a, &b, &dst});
  Aligned(in, {&dst, &a, &b});
  const Walk walk = Resolve(in, lanes, a.tensor.element);
  Cost(in, walk, a.tensor.element, op == BinaryOp::Div ? 64 : 256);
  const bool saturate = in.core().registers.saturate;
  // Accumulating over repeats is documented for these, where one of the two stays where it is.
  const bool chained = op != BinaryOp::Div && op != BinaryOp::And && op != BinaryOp::Or && dtype != DType::I16 &&
                       (b.strides.repeat == 0 || dst.strides.repeat == 0);
  RunLanes(in, walk, dst, {&a, &b}, false, [&](uint8_t* out, const uint8_t** from, int64_t n) {
    switch (op) {
      case BinaryOp::Add: Apply<Add>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::Sub: Apply<Sub>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::Mul: Apply<Mul>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::Div: Apply<Div>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::Max: Apply<Max>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::Min: Apply<Min>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::AddRelu: Apply<AddRelu>(dtype, out, from[0], from[1], false, n, saturate); break;
      case BinaryOp::SubRelu: Apply<SubRelu>(dtype, out, from[0], from[1], false, n, saturate); break;
      default: Bitwise(op == BinaryOp::And, out, from[0], from[1], n * dst.tensor.element);
    }
  }, chained ? 2 : -1);
}

void WithScalar(ScalarOp op, const char* name, const Operand& dst, const Operand& src, Scalar scalar, const Lanes& lanes,
                Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  const DType dtype = src.tensor.dtype;
  const bool shift = op == ScalarOp::ShiftLeft || op == ScalarOp::ShiftRight || op == ScalarOp::ShiftRightRound;
  in.dtype_in(src.tensor, Legal(shift ? kWords | Bit(DType::I32) | Bit(DType::U32)
                                : op == ScalarOp::LeakyRelu ? kFloats : kFloats | kInts), 1);
  SameTypes(in, {&dst, &src});
  Aligned(in, {&dst, &src});
  const Walk walk = Resolve(in, lanes, src.tensor.element);
  Cost(in, walk, src.tensor.element, 256);
  const bool saturate = in.core().registers.saturate;
  if (shift) {
    const int bits = src.tensor.element * 8;
    const int64_t distance = bits == 16 ? static_cast<int16_t>(scalar.bits) : static_cast<int32_t>(scalar.bits);
    in.require(distance >= 0 && distance <= bits, "range", "the shift is by %lld bits, it must be from 0 to %d",
               static_cast<long long>(distance), bits);
    const bool is_signed = dtype == DType::I16 || dtype == DType::I32;
    RunLanes(in, walk, dst, {&src}, false, [&](uint8_t* out, const uint8_t** from, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        uint64_t raw = 0;
        std::memcpy(&raw, from[0] + i * (bits / 8), static_cast<size_t>(bits / 8));
        int64_t value = static_cast<int64_t>(raw);
        if (is_signed) value = bits == 16 ? static_cast<int16_t>(raw) : static_cast<int32_t>(raw);
        int64_t result = op == ScalarOp::ShiftLeft ? static_cast<int64_t>(static_cast<uint64_t>(value) << distance)
                                                   : value >> distance;
        if (op == ScalarOp::ShiftRightRound && distance > 0) result += value >> (distance - 1) & 1;
        std::memcpy(out + i * (bits / 8), &result, static_cast<size_t>(bits / 8));
      }
    });
    return;
  }
  RunLanes(in, walk, dst, {&src}, false, [&](uint8_t* out, const uint8_t** from, int64_t n) {
    switch (op) {
      case ScalarOp::Adds: Apply<Add>(dtype, out, from[0], &scalar.bits, true, n, saturate); break;
      case ScalarOp::Muls: Apply<Mul>(dtype, out, from[0], &scalar.bits, true, n, saturate); break;
      case ScalarOp::Maxs: Apply<Max>(dtype, out, from[0], &scalar.bits, true, n, saturate); break;
      case ScalarOp::Mins: Apply<Min>(dtype, out, from[0], &scalar.bits, true, n, saturate); break;
      default: Apply<LeakyRelu>(dtype, out, from[0], &scalar.bits, true, n, saturate);
    }
  });
}

namespace {

// a times b (or the scalar), plus what is in the destination; or a times the destination, plus b. Operands of one type
// round, and saturate, the product before the sum. The destination may be wider than the sources (float of halves): then
// the product is exact.
struct Formula {
  bool times_destination = false;
  bool relu = false;
  float scalar = 0;
};
void MultiplyAdd(Instruction& in, const Operand& dst, std::initializer_list<const Operand*> sources, const Lanes& lanes,
                 Formula formula) {
  const DType wide = dst.tensor.dtype;
  const Operand& first = **sources.begin();
  in.dtype_in(dst.tensor, Legal(kFloats), 0);
  in.require(first.tensor.dtype == wide || (first.tensor.dtype == DType::F16 && wide == DType::F32), "dtype",
             "the destination is %s and the source %s; they must be the same, or a float destination of half sources",
             Name(wide), Name(first.tensor.dtype));
  const Walk walk = Resolve(in, lanes, dst.tensor.element);
  Cost(in, walk, dst.tensor.element, 256);
  const bool saturate = in.core().registers.saturate;
  const bool two = sources.size() == 2;
  RunLanes(in, walk, dst, sources, true, [&](uint8_t* out, const uint8_t** from, int64_t n) {
    float d[kChunk], a[kChunk], b[kChunk];
    const float* dd = LoadFloats(wide, out, n, d);
    const float* aa = LoadFloats(first.tensor.dtype, from[0], n, a);
    const float* bb = two ? LoadFloats(first.tensor.dtype, from[1], n, b) : nullptr;
    float result[kChunk];
    for (int64_t i = 0; i < n; ++i) {
      const float other = two ? bb[i] : formula.scalar;
      result[i] = aa[i] * (formula.times_destination ? dd[i] : other);
    }
    if (first.tensor.dtype == wide && wide != DType::F32) {
      uint16_t rounded[kChunk];
      StoreFloats(wide, rounded, result, n, saturate);
      LoadFloats(wide, rounded, n, result);
    }
    for (int64_t i = 0; i < n; ++i) result[i] += formula.times_destination ? bb[i] : dd[i];
    if (formula.relu)
      for (int64_t i = 0; i < n; ++i) result[i] = ReluOf(result[i]);
    StoreFloats(wide, out, result, n, saturate);
  });
}

}  // namespace

void Fused(FusedOp op, const char* name, const Operand& dst, const Operand& a, const Operand& b, const Lanes& lanes,
           Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  SameTypes(in, {&a, &b});
  Aligned(in, {&dst, &a, &b});
  MultiplyAdd(in, dst, {&a, &b}, lanes, {op != FusedOp::MulAddDst, op == FusedOp::FusedMulAddRelu, 0});
}

void Axpy(const Operand& dst, const Operand& src, Scalar scalar, const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, "Axpy", Unit::Vector, where);
  Aligned(in, {&dst, &src});
  MultiplyAdd(in, dst, {&src}, lanes, {false, false, ScalarFloat(scalar)});
}

void Duplicate(const Operand& dst, Scalar scalar, const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, "Duplicate", Unit::Vector, where);
  in.dtype_in(dst.tensor, k16 | k32 | (CurrentChip().arch == 3510 ? Bit(DType::I8) | Bit(DType::U8) : 0), 0);
  Aligned(in, {&dst});
  const int size = dst.tensor.element;
  const Walk walk = Resolve(in, lanes, size);
  Cost(in, walk, size, 256);
  RunLanes(in, walk, dst, {}, false, [&](uint8_t* out, const uint8_t**, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(out + i * size, &scalar.bits, static_cast<size_t>(size));
  });
}

void VectorIndex(const Operand& dst, Scalar first, const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, "CreateVecIndex", Unit::Vector, where);
  in.dtype_in(dst.tensor, kFloats | kInts, 0);
  Aligned(in, {&dst});
  const int size = dst.tensor.element;
  const DType dtype = dst.tensor.dtype;
  const Walk walk = Resolve(in, lanes, size);
  Cost(in, walk, size, 256);
  int64_t next = 0;  // lanes count also where the mask leaves them out
  const bool chunks = walk.dense;
  RunLanes(in, walk, dst, {}, false, [&](uint8_t* out, const uint8_t**, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const double value = ToDouble(&first.bits, dtype) + static_cast<double>(next + i);
      uint64_t bits = ToBits(dtype, value);
      if (dtype == DType::I16 || dtype == DType::I32)
        bits = static_cast<uint64_t>(static_cast<int64_t>(ToDouble(&first.bits, dtype)) + next + i);
      std::memcpy(out + i * size, &bits, static_cast<size_t>(size));
    }
    next += chunks ? n : walk.per_repeat;
  });
}

uint64_t ToBits(DType dtype, double value) {
  switch (dtype) {
    case DType::F16: return FloatToHalf(static_cast<float>(value));
    case DType::BF16: return FloatToBfloat(static_cast<float>(value));
    case DType::F32: return Bits<uint32_t>(static_cast<float>(value));
    case DType::F64: return Bits<uint64_t>(value);
    default: return static_cast<uint64_t>(static_cast<int64_t>(value));
  }
}

void Broadcast(const Tensor& dst, const Tensor& src, int repeats, uint32_t block, uint32_t repeat, Where where) {
  Instruction in(Pipe::V, "Brcb", Unit::Vector, where);
  in.dtype_in(src, k16 | k32, 1);
  in.lies_in(dst, Bit(Space::UB), 0);
  in.lies_in(src, Bit(Space::UB), 1);
  in.align(dst, 32, 0);
  in.align(src, 32, 1);
  const int size = src.element;
  in.cycles(12 + repeats);
  in.vector_elements(static_cast<uint64_t>(repeats) * 8);
  if (repeats == 0) return;
  const Turns spread{dst, 0, 0, (static_cast<int64_t>(repeats - 1) * repeat + 7 * static_cast<int64_t>(block) + 1) * 32,
                     [=](const auto& piece) {
                       for (int r = 0; r < repeats; ++r)
                         for (int b = 0; b < 8; ++b)
                           piece(r, (static_cast<int64_t>(r) * repeat + b * static_cast<int64_t>(block)) * 32, 32);
                     }};
  CheckOverlap(in, spread, EvenTurns(src, 1, repeats, 8 * size, 8 * size), Share::Tolerated);
  in.read(src, 0, repeats * 8 * size, 1);
  for (int r = 0; r < repeats; ++r)
    for (int b = 0; b < 8; ++b) in.write(dst, (static_cast<int64_t>(r) * repeat + b * static_cast<int64_t>(block)) * 32, 32, 0);
  const std::vector<uint8_t> from(in.data(src), in.data(src) + repeats * 8 * size);
  for (int r = 0; r < repeats; ++r)
    for (int b = 0; b < 8; ++b) {
      uint8_t* to = in.data(dst) + (static_cast<int64_t>(r) * repeat + b * static_cast<int64_t>(block)) * 32;
      for (int i = 0; i < 32; i += size) std::memcpy(to + i, from.data() + (r * 8 + b) * size, static_cast<size_t>(size));
    }
}

void CopyVector(const Operand& dst, const Operand& src, const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, "Copy", Unit::Vector, where);
  in.dtype_in(src.tensor, k16 | k32, 1);
  SameTypes(in, {&dst, &src});
  Aligned(in, {&dst, &src});
  Walk walk = Resolve(in, lanes, src.tensor.element);
  if (in.core().registers.mask_count) {
    // Unlike the others, this instruction keeps its repeats in counter mode: the mask counts the elements of each.
    walk.per_repeat = walk.total;
    walk.repeats = lanes.repeats;
    walk.total *= walk.repeats;
  }
  Cost(in, walk, src.tensor.element, 256);
  View to(in, dst, walk, 0), from(in, src, walk, 1);
  CheckOverlap(in, to.turns(), from.turns(), Share::Same);
  from.declare(false);
  to.declare(true);
  const size_t size = src.tensor.element;
  std::vector<uint8_t> held;
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t e = 0; e < walk.per_repeat; ++e)
      if (walk.active(r, e)) held.insert(held.end(), from.at(from.offset(r, e)), from.at(from.offset(r, e)) + size);
  size_t next = 0;
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t e = 0; e < walk.per_repeat; ++e)
      if (walk.active(r, e)) std::memcpy(to.at(to.offset(r, e)), held.data() + size * next++, size);
}

// ------------------------------------------------------------------------------------------------------------- casts

namespace {

Round RoundOf(int mode) {
  switch (mode) {
    case 2: return Round::Floor;
    case 3: return Round::Ceil;
    case 4: return Round::Away;
    case 5: return Round::Zero;
    case 6: return Round::Odd;
    default: return Round::Nearest;  // CAST_NONE is CAST_RINT where it loses something
  }
}

struct CastRule {
  DType from, to;
  uint32_t modes;  // a bit for each RoundMode
};
constexpr uint32_t kNone = 1, kAll = 0x3e /* RINT to TRUNC */;
// The conversions of arch 2201.
constexpr CastRule kCasts[] = {
    {DType::F16, DType::F32, kNone},        {DType::F16, DType::I32, kAll},         {DType::F16, DType::I16, kAll},
    {DType::F16, DType::I8, kAll | kNone},  {DType::F16, DType::U8, kAll | kNone},  {DType::F16, DType::I4, kAll | kNone},
    {DType::F32, DType::F32, kAll},         {DType::F32, DType::F16, kAll | kNone | 1u << 6},
    {DType::F32, DType::I64, kAll},         {DType::F32, DType::I32, kAll},         {DType::F32, DType::I16, kAll},
    {DType::F32, DType::BF16, kAll},        {DType::BF16, DType::F32, kNone},       {DType::BF16, DType::I32, kAll},
    {DType::I4, DType::F16, kNone},         {DType::U8, DType::F16, kNone},         {DType::I8, DType::F16, kNone},
    {DType::I16, DType::F16, kAll | kNone}, {DType::I16, DType::F32, kNone},        {DType::I32, DType::F32, kAll | kNone},
    {DType::I32, DType::I64, kNone},        {DType::I32, DType::I16, kNone},        {DType::I32, DType::F16, kNone},
    {DType::I64, DType::I32, kNone},        {DType::I64, DType::F32, kAll},
};

float RoundToFloat(int64_t value, Round round) {
  const float nearest = static_cast<float>(value);
  const double error = static_cast<double>(static_cast<long double>(nearest) - static_cast<long double>(value));
  if (error == 0 || round == Round::Nearest) return nearest;
  const float below = error > 0 ? std::nextafter(nearest, -INFINITY) : nearest;
  const float above = error < 0 ? std::nextafter(nearest, INFINITY) : nearest;
  switch (round) {
    case Round::Floor: return below;
    case Round::Ceil: return above;
    case Round::Zero: return value < 0 ? above : below;
    default: {
      const long double low = static_cast<long double>(value) - below, high = static_cast<long double>(above) - value;
      return low == high ? (value < 0 ? below : above) : nearest;
    }
  }
}

int Nibble(const uint8_t* from, int64_t i) {
  const int value = from[i / 2] >> (i % 2 * 4) & 15;
  return value >= 8 ? value - 16 : value;
}

}  // namespace

void Cast(const char* name, const Operand& dst, const Operand& src, int mode, const Lanes& lanes, Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  const DType from = src.tensor.dtype, to = dst.tensor.dtype;
  const CastRule* rule = nullptr;
  for (const CastRule& candidate : kCasts)
    if (candidate.from == from && candidate.to == to) rule = &candidate;
  if (rule == nullptr) {
    std::string legal;
    for (const CastRule& candidate : kCasts)
      if (candidate.from == from) legal += (legal.empty() ? "" : ", ") + std::string(Name(candidate.to));
    in.fail("dtype", "%s: the %s has no conversion from %s to %s; from %s it converts to %s", name, CurrentChip().name,
            Name(from), Name(to), Name(from), legal.empty() ? "nothing" : legal.c_str());
  }
  static const char* modes[] = {"NONE", "RINT", "FLOOR", "CEIL", "ROUND", "TRUNC", "ODD"};
  in.require(mode >= 0 && mode < 7 && (rule->modes >> mode & 1u), "range",
             "CAST_%s is no rounding mode of the conversion from %s to %s", mode >= 0 && mode < 7 ? modes[mode] : "?",
             Name(from), Name(to));
  Aligned(in, {&dst, &src});
  const Round round = RoundOf(mode);
  const bool saturate = in.core().registers.saturate;
  const bool nibbles = from == DType::I4 || to == DType::I4;
  const int wide = std::max<int>(dst.tensor.element, src.tensor.element);
  Walk walk = Resolve(in, lanes, wide);
  Cost(in, walk, wide, wide == 8 ? 64 : 256);
  if (nibbles) {
    in.require(walk.dense || walk.full(), "mask", "conversions of int4b_t take whole repeats");
    const int64_t n = walk.elements();
    in.require(n % 2 == 0, "count", "the count is %lld, conversions of int4b_t take even counts", static_cast<long long>(n));
    const int64_t turn = walk.per_repeat, turns = walk.repeats;
    const auto of = [&](const Tensor& tensor, int argument) {
      const int64_t bytes = tensor.dtype == DType::I4 ? turn / 2 : turn * 2;
      return EvenTurns(tensor, argument, turns, bytes, bytes);
    };
    if (n > 0) CheckOverlap(in, of(dst.tensor, 0), of(src.tensor, 1), Share::Tolerated);
    in.read(src.tensor, 0, from == DType::I4 ? n / 2 : n * 2, 1);
    in.write(dst.tensor, 0, to == DType::I4 ? n / 2 : n * 2, 0);
    const uint8_t* x = in.data(src.tensor);
    uint8_t* y = in.data(dst.tensor);
    const std::vector<uint8_t> held(x, x + (from == DType::I4 ? n / 2 : n * 2));
    for (int64_t i = 0; i < n; ++i) {
      if (from == DType::I4) {
        const uint16_t bits = FloatToHalf(static_cast<float>(Nibble(held.data(), i)));
        std::memcpy(y + i * 2, &bits, 2);
      } else {
        uint16_t bits;
        std::memcpy(&bits, held.data() + i * 2, 2);
        const int value = std::max(-8, std::min(7, static_cast<int>(ToInteger<int32_t>(HalfToFloat(bits), round))));
        y[i / 2] = static_cast<uint8_t>(i % 2 ? (y[i / 2] & 0x0f) | (value & 15) << 4 : (value & 15));
      }
    }
    return;
  }
  const float scale = in.core().registers.deq_scale;
  RunLanes(in, walk, dst, {&src}, false, [&](uint8_t* out, const uint8_t** source, int64_t n) {
    // A copy: the two may lie in the same place.
    alignas(32) uint8_t held[kChunk * 8];
    std::memcpy(held, source[0], static_cast<size_t>(n * src.tensor.element));
    const auto put = [&](int64_t i, auto value) { std::memcpy(out + i * static_cast<int64_t>(sizeof(value)), &value, sizeof(value)); };
    const auto take = [&](int64_t i, auto zero) {
      std::memcpy(&zero, held + i * static_cast<int64_t>(sizeof(zero)), sizeof(zero));
      return zero;
    };
    for (int64_t i = 0; i < n; ++i) {
      if (from == DType::F16 || from == DType::F32 || from == DType::BF16) {
        const float x = from == DType::F32 ? take(i, 0.0f) : from == DType::F16 ? HalfToFloat(take(i, uint16_t{}))
                                                                                : BfloatToFloat(take(i, uint16_t{}));
        switch (to) {
          case DType::F32: put(i, from == DType::F32 ? static_cast<float>(RoundToIntegral(x, round)) : x); break;
          case DType::F16: put(i, saturate ? SaturateHalf(FloatToHalf(x, round)) : FloatToHalf(x, round)); break;
          case DType::BF16: put(i, saturate ? SaturateBfloat(FloatToBfloat(x, round)) : FloatToBfloat(x, round)); break;
          case DType::I64: put(i, ToInteger<int64_t>(x, round)); break;
          case DType::I32: put(i, ToInteger<int32_t>(x, round)); break;
          case DType::I16: put(i, ToInteger<int16_t>(x, round)); break;
          case DType::I8: put(i, ToInteger<int8_t>(x, round)); break;
          default: put(i, ToInteger<uint8_t>(x, round));
        }
        continue;
      }
      int64_t x = 0;
      switch (from) {
        case DType::U8: x = take(i, uint8_t{}); break;
        case DType::I8: x = take(i, int8_t{}); break;
        case DType::I16: x = take(i, int16_t{}); break;
        case DType::I32: x = take(i, int32_t{}); break;
        default: x = take(i, int64_t{});
      }
      switch (to) {
        case DType::F16: {
          const float value = from == DType::I32 ? static_cast<float>(x) * scale : static_cast<float>(x);
          put(i, saturate ? SaturateHalf(FloatToHalf(value, round)) : FloatToHalf(value, round));
          break;
        }
        case DType::F32: put(i, RoundToFloat(x, round)); break;
        case DType::I16: put(i, static_cast<int16_t>(std::max<int64_t>(INT16_MIN, std::min<int64_t>(INT16_MAX, x)))); break;
        case DType::I32: put(i, static_cast<int32_t>(std::max<int64_t>(INT32_MIN, std::min<int64_t>(INT32_MAX, x)))); break;
        default: put(i, x);
      }
    }
  });
}

void BinaryCast(BinaryOp op, const char* name, const Operand& dst, const Operand& a, const Operand& b, const Lanes& lanes,
                Where where) {
  Instruction in(Pipe::V, name, Unit::Vector, where);
  const DType from = a.tensor.dtype, to = dst.tensor.dtype;
  SameTypes(in, {&a, &b});
  Aligned(in, {&dst, &a, &b});
  const bool legal = op == BinaryOp::Mul ? from == DType::F16 && (to == DType::I8 || to == DType::U8)
                                         : (from == DType::F16 && to == DType::I8) ||
                                               (from == DType::F32 && to == DType::F16) ||
                                               (from == DType::I16 && to == DType::I8);
  in.require(legal, "dtype", "there is no form from %s to %s", Name(from), Name(to));
  const Walk walk = Resolve(in, lanes, std::max<int>(dst.tensor.element, a.tensor.element));
  Cost(in, walk, a.tensor.element, 128);
  const bool saturate = in.core().registers.saturate;
  RunLanes(in, walk, dst, {&a, &b}, false, [&](uint8_t* out, const uint8_t** source, int64_t n) {
    alignas(32) uint8_t result[kChunk * 4];
    switch (op) {
      case BinaryOp::Mul: Apply<Mul>(from, result, source[0], source[1], false, n, saturate); break;
      case BinaryOp::AddRelu: Apply<AddRelu>(from, result, source[0], source[1], false, n, from == DType::I16 || saturate); break;
      default: Apply<SubRelu>(from, result, source[0], source[1], false, n, from == DType::I16 || saturate);
    }
    for (int64_t i = 0; i < n; ++i) {
      const double value = ToDouble(result + i * a.tensor.element, from);
      if (to == DType::F16) {
        const uint16_t bits = FloatToHalf(static_cast<float>(value));
        std::memcpy(out + i * 2, &bits, 2);
      } else if (to == DType::I8) {
        out[i] = static_cast<uint8_t>(ToInteger<int8_t>(value, Round::Nearest));
      } else {
        out[i] = ToInteger<uint8_t>(value, Round::Nearest);
      }
    }
  });
}

}  // namespace atbfn::emulator
