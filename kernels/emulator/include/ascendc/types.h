// Element types, enumerations and the built-in words of Ascend C.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <type_traits>

#include "atbfn/emulator.h"

// The built-in words. Memory qualifiers mean nothing to a CPU: on-chip addresses never become pointers here.
#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __fbuf__
#define __biasbuf__
#define __ssbuf__
#define __BLOCK_LOCAL__ thread_local
#define __workgroup__ thread_local
#define __vector__
#define __cube__
#define __mix__(cube, vector)
#define __schedmode__(mode)
#define __simd_vf__
#define __no_simd_vf_fusion__
#define __inout_pipe__(pipe)
#define __in_pipe__(pipe)
#define __out_pipe__(pipe)
#define __sync_alias__
#define __sync_noalias__
#define __check_sync_alias__
#define GM_ADDR __gm__ uint8_t*
#define ASCEND_IS_AIC (::atbfn::emulator::IsCubeCore())
#define ASCEND_IS_AIV (::atbfn::emulator::IsVectorCore())
#define ASCEND_IS_AICORE (true)

// IEEE binary16, native to the compiler: arithmetic rounds after every operation, as the device's scalar unit does.
using half = _Float16;

namespace std {
template <class Traits>
basic_ostream<char, Traits>& operator<<(basic_ostream<char, Traits>& out, half value) {
  return out << static_cast<float>(value);
}
}  // namespace std

// A parameter or member of 8 or 16 bits. The device takes the low bits of what does not fit; here that is refused, at the
// line of the conversion. An explicit cast says that it is meant.
template <class T>
class Small {
 public:
  constexpr Small() : value_(0) {}
  template <class U, std::enable_if_t<std::is_arithmetic_v<U>, int> = 0>
  constexpr Small(U value, atbfn::emulator::Where where = atbfn::emulator::Here()) : value_(static_cast<T>(value)) {
    if constexpr (std::is_integral_v<U> && !std::is_same_v<U, bool> && !std::is_same_v<U, T>)
      if (static_cast<U>(value_) != value || (value_ < T{0}) != (value < U{0})) Refuse(static_cast<int64_t>(value), where);
  }
  template <class U, std::enable_if_t<!std::is_arithmetic_v<U> && std::is_convertible_v<U, T>, int> = 0>
  constexpr Small(const U& value) : value_(static_cast<T>(value)) {}
  constexpr operator T() const { return value_; }
#define ATBFN_ASSIGN(OP)                                                                            \
  template <class U>                                                                                \
  constexpr Small& operator OP##=(U other) {                                                        \
    return *this = Small(value_ OP other);                                                          \
  }
  ATBFN_ASSIGN(+)
  ATBFN_ASSIGN(-)
  ATBFN_ASSIGN(*)
  ATBFN_ASSIGN(/)
#undef ATBFN_ASSIGN
  constexpr Small& operator++() { return *this += 1; }
  constexpr Small& operator--() { return *this -= 1; }
  constexpr T operator++(int) {
    const T before = value_;
    *this += 1;
    return before;
  }
  constexpr T operator--(int) {
    const T before = value_;
    *this -= 1;
    return before;
  }

 private:
  [[gnu::cold, gnu::noinline]] static void Refuse(int64_t value, atbfn::emulator::Where where) {
    atbfn::emulator::RefuseValue(value, sizeof(T) * 8, std::is_signed_v<T>, where);
  }
  T value_;
};

// Brain floating point: the upper half of a float32. Conversion rounds to nearest even.
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  constexpr bfloat16_t(float value) : bits(Round(value)) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> || std::is_same_v<T, half>>>
  constexpr bfloat16_t(T value) : bits(Round(static_cast<float>(value))) {}
  constexpr operator float() const { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }

 private:
  static constexpr uint16_t Round(float value) {
    const uint32_t word = __builtin_bit_cast(uint32_t, value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(word >> 16 | 0x40u);
    return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
  }
};

// Variables of the device's language; a kernel may shadow them.
struct BlockIndexVariable {
  operator int64_t() const { return ::atbfn::emulator::RawBlockIndex(); }
};
struct BlockCountVariable {
  operator int64_t() const { return ::atbfn::emulator::BlockCount(); }
};
struct CoreTypeVariable {
  operator int32_t() const { return ::atbfn::emulator::IsCubeCore() ? 1 : 2; }
};
inline constexpr BlockIndexVariable block_idx;
inline constexpr BlockCountVariable block_num;
inline constexpr CoreTypeVariable g_coreType;
inline int64_t get_block_idx() { return ::atbfn::emulator::RawBlockIndex(); }
inline int64_t get_block_num() { return ::atbfn::emulator::BlockCount(); }

namespace AscendC {

// Two 4-bit integers in a byte; sizes and offsets of an int4b_t tensor count the 4-bit elements.
struct int4b_t {
  int4b_t() = default;
  constexpr int4b_t(int value) : storage(static_cast<uint8_t>(value & 15)) {}
  uint8_t storage;
};

enum class TPosition : uint8_t {
  GM, A1, A2, B1, B2, C1, C2, CO1, CO2, VECIN, VECOUT, VECCALC, LCM = VECCALC, SPM, SHM = SPM, TSCM, C2PIPE2GM,
  C2PIPE2LOCAL, MAX,
};
using QuePosition = TPosition;

enum class Hardware : uint8_t { GM, UB, L1, L0A, L0B, L0C, BIAS, FIXBUF, MAX };

enum class HardEvent : uint8_t {
  MTE2_MTE1, MTE1_MTE2, MTE1_M, M_MTE1, MTE2_V, V_MTE2, MTE3_V, V_MTE3, M_V, V_M, V_V, MTE3_MTE1, MTE1_MTE3, MTE1_V,
  MTE2_M, M_MTE2, V_MTE1, M_FIX, FIX_M, MTE3_MTE2, MTE2_MTE3, S_V, V_S, S_MTE2, MTE2_S, S_MTE3, MTE3_S, MTE2_FIX,
  FIX_MTE2, FIX_S, M_S, FIX_MTE3, MTE1_FIX, FIX_MTE1, FIX_FIX, FIX_V, V_FIX, MAX,
};

enum class RoundMode : uint8_t {
  CAST_NONE = 0, CAST_RINT, CAST_FLOOR, CAST_CEIL, CAST_ROUND, CAST_TRUNC, CAST_ODD, CAST_HYBRID, CAST_EVEN, CAST_ZERO,
  UNKNOWN = 0xff,
};
enum class CMPMODE : uint8_t { LT = 0, GT, EQ, LE, GE, NE };
enum class SELMODE : uint8_t { VSEL_CMPMASK_SPR = 0, VSEL_TENSOR_SCALAR_MODE, VSEL_TENSOR_TENSOR_MODE };
enum class MaskMode : uint8_t { NORMAL = 0, COUNTER };
enum class MemDsbT : uint8_t { ALL = 0, DDR, UB, SEQ };
enum class CacheMode { CACHE_MODE_DISABLE = 0, CACHE_MODE_NORMAL, CACHE_MODE_LAST, CACHE_MODE_PERSISTENT };
enum class CacheRwMode { READ = 1, WRITE = 2, RW = 3 };
enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };
enum class DataFormat : uint8_t { ND = 0, NZ, NCHW, NC1HWC0, NHWC, NCDHW, NDC1HWC0, FRACTAL_Z_3D };
enum class TBufState : uint8_t { FREE = 0, OCCUPIED, ENQUE, DEQUE };
enum class ReduceMode : uint8_t { REDUCE_MAX, REDUCE_MIN, REDUCE_SUM };
enum class ReduceOrder : uint8_t { ORDER_VALUE_INDEX = 0, ORDER_INDEX_VALUE, ORDER_ONLY_VALUE, ORDER_ONLY_INDEX };
enum CoreType : int32_t { AIC = 1, AIV = 2, MIX = 3 };

using TEventID = int8_t;
using TTagType = int32_t;
constexpr TEventID INVALID_TEVENTID = -1;
constexpr int32_t DEFAULT_BLK_NUM = 8;
constexpr int32_t DEFAULT_C0_SIZE = 32;
constexpr int32_t DEFAULT_BLK_STRIDE = 1;
constexpr uint8_t DEFAULT_REPEAT_STRIDE = 8;
constexpr int32_t ONE_BLK_SIZE = 32;
constexpr int32_t ONE_REPEAT_BYTE_SIZE = 256;
constexpr int32_t MASK_PLACEHOLDER_VALUE = 0;
constexpr uint64_t MASK_PLACEHOLDER = 0;
constexpr uint64_t MASK_PLACEHOLDER_LIST[2] = {0, 0};
constexpr int32_t BLOCK_CUBE = 16;
constexpr int32_t CUBE_MAX_SIZE = 256;
constexpr int32_t BYTE_PER_FRACTAL = 512;
constexpr int32_t MAX_REPEAT_TIMES = 255;
constexpr int32_t K_MAX_SHAPE_DIM = 8;
constexpr int32_t K_MAX_DIM = 8;

template <class T>
using PrimT = T;

template <class T>
constexpr ::atbfn::emulator::DType DTypeOf() {
  using ::atbfn::emulator::DType;
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, half>) return DType::F16;
  else if constexpr (std::is_same_v<U, bfloat16_t>) return DType::BF16;
  else if constexpr (std::is_same_v<U, float>) return DType::F32;
  else if constexpr (std::is_same_v<U, double>) return DType::F64;
  else if constexpr (std::is_same_v<U, int4b_t>) return DType::I4;
  else if constexpr (std::is_same_v<U, bool>) return DType::U8;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 1) return std::is_signed_v<U> ? DType::I8 : DType::U8;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 2) return std::is_signed_v<U> ? DType::I16 : DType::U16;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 4) return std::is_signed_v<U> ? DType::I32 : DType::U32;
  else if constexpr (std::is_integral_v<U> && sizeof(U) == 8) return std::is_signed_v<U> ? DType::I64 : DType::U64;
  else return DType::Other;
}

}  // namespace AscendC

typedef enum {
  PIPE_S = 0, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_ALL, PIPE_MTE4 = 7, PIPE_MTE5 = 8, PIPE_V2 = 9,
  PIPE_FIX = 10,
} pipe_t;

typedef enum {
  EVENT_ID0 = 0, EVENT_ID1, EVENT_ID2, EVENT_ID3, EVENT_ID4, EVENT_ID5, EVENT_ID6, EVENT_ID7,
} event_t;

// What Fixpipe and the L0C copies do to a value on its way out.
enum QuantMode_t {
  NoQuant = 0, F322F16 = 1, VQF322HIF8_PRE = 2, QF322HIF8_PRE = 3, VQF322HIF8_PRE_HYBRID = 4, QF322HIF8_PRE_HYBRID = 5,
  AttachF16Mul = 6, VREQ8 = 8, REQ8 = 9, VDEQF16 = 10, DEQF16 = 11, VSHIFTS322S16 = 12, SHIFTS322S16 = 13,
  F322BF16 = 16, VQF162B8_PRE = 17, QF162B8_PRE = 18, VQF162S4_PRE = 19, QF162S4_PRE = 20, VREQ4 = 21, REQ4 = 22,
  VQF322B8_PRE = 23, QF322B8_PRE = 24, VQF322S4_PRE = 25, QF322S4_PRE = 26, VDEQS16 = 27, DEQS16 = 28,
  VQF162S16_PRE = 29, QF162S16_PRE = 30, VQF322F16_PRE = 32, QF322F16_PRE = 33, VQF322BF16_PRE = 34,
  QF322BF16_PRE = 35, VQS322BF16_PRE = 36, QS322BF16_PRE = 37, VQF322F32_PRE = 38, QF322F32_PRE = 39,
};

namespace AscendC {

constexpr ::atbfn::emulator::Pipe PipeOf(pipe_t pipe) {
  using ::atbfn::emulator::Pipe;
  switch (pipe) {
    case PIPE_S: return Pipe::S;
    case PIPE_V: return Pipe::V;
    case PIPE_M: return Pipe::M;
    case PIPE_MTE1: return Pipe::MTE1;
    case PIPE_MTE2: return Pipe::MTE2;
    case PIPE_MTE3: return Pipe::MTE3;
    case PIPE_FIX: return Pipe::FIX;
    default: return Pipe::Count;  // PIPE_ALL
  }
}

struct EventPipes {
  ::atbfn::emulator::Pipe from, to;
};
constexpr EventPipes PipesOf(HardEvent event) {
  using P = ::atbfn::emulator::Pipe;
  constexpr EventPipes table[] = {
      {P::MTE2, P::MTE1}, {P::MTE1, P::MTE2}, {P::MTE1, P::M},   {P::M, P::MTE1},    {P::MTE2, P::V},
      {P::V, P::MTE2},    {P::MTE3, P::V},    {P::V, P::MTE3},   {P::M, P::V},       {P::V, P::M},
      {P::V, P::V},       {P::MTE3, P::MTE1}, {P::MTE1, P::MTE3}, {P::MTE1, P::V},   {P::MTE2, P::M},
      {P::M, P::MTE2},    {P::V, P::MTE1},    {P::M, P::FIX},    {P::FIX, P::M},     {P::MTE3, P::MTE2},
      {P::MTE2, P::MTE3}, {P::S, P::V},       {P::V, P::S},      {P::S, P::MTE2},    {P::MTE2, P::S},
      {P::S, P::MTE3},    {P::MTE3, P::S},    {P::MTE2, P::FIX}, {P::FIX, P::MTE2},  {P::FIX, P::S},
      {P::M, P::S},       {P::FIX, P::MTE3},  {P::MTE1, P::FIX}, {P::FIX, P::MTE1},  {P::FIX, P::FIX},
      {P::FIX, P::V},     {P::V, P::FIX}};
  return table[static_cast<int>(event)];
}

// Which memory a position is. On chips with one kind of core, CO2 is the unified buffer; on the others it is GM.
constexpr ::atbfn::emulator::Space SpaceOf(TPosition position) {
  using ::atbfn::emulator::Space;
  switch (position) {
    case TPosition::GM: return Space::GM;
    case TPosition::A1: case TPosition::B1: case TPosition::C1: case TPosition::TSCM: case TPosition::SPM:
      return Space::L1;
    case TPosition::A2: return Space::L0A;
    case TPosition::B2: return Space::L0B;
    case TPosition::C2: return Space::BT;
    case TPosition::CO1: return Space::L0C;
#if __NPU_ARCH__ == 2201 || __NPU_ARCH__ == 3510
    case TPosition::CO2: return Space::GM;
#endif
    case TPosition::C2PIPE2GM: return Space::FB;
    default: return Space::UB;
  }
}

constexpr ::atbfn::emulator::Space SpaceOf(Hardware hardware) {
  using ::atbfn::emulator::Space;
  switch (hardware) {
    case Hardware::L1: return Space::L1;
    case Hardware::L0A: return Space::L0A;
    case Hardware::L0B: return Space::L0B;
    case Hardware::L0C: return Space::L0C;
    case Hardware::BIAS: return Space::BT;
    case Hardware::FIXBUF: return Space::FB;
    case Hardware::GM: return Space::GM;
    default: return Space::UB;
  }
}

constexpr Hardware GetPhyType(TPosition position) {
  using ::atbfn::emulator::Space;
  switch (SpaceOf(position)) {
    case Space::L1: return Hardware::L1;
    case Space::L0A: return Hardware::L0A;
    case Space::L0B: return Hardware::L0B;
    case Space::L0C: return Hardware::L0C;
    case Space::BT: return Hardware::BIAS;
    case Space::FB: return Hardware::FIXBUF;
    case Space::GM: return Hardware::GM;
    default: return Hardware::UB;
  }
}

}  // namespace AscendC
