// The elements that a vector instruction works on, and the loop over them: shared by all vector instructions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "atbfn/vector.h"
#include "core.h"
#include "numeric.h"
#include "overlap.h"

namespace atbfn::emulator {

constexpr uint32_t kFloats = Bit(DType::F16) | Bit(DType::F32);
constexpr uint32_t kInts = Bit(DType::I16) | Bit(DType::I32);
constexpr uint32_t kWords = Bit(DType::I16) | Bit(DType::U16);
constexpr uint32_t k16 = Bit(DType::F16) | Bit(DType::BF16) | Bit(DType::I16) | Bit(DType::U16);
constexpr uint32_t k32 = Bit(DType::F32) | Bit(DType::I32) | Bit(DType::U32);
constexpr int kChunk = 1024;

// Lanes with the registers looked up: which of the `per_repeat` elements of each repeat are active.
struct Walk {
  int64_t per_repeat = 0;
  int64_t repeats = 0;
  bool counted = false;   // `total` elements from the start, else the bits in every repeat
  bool dense = false;     // and they lie one after the other, whatever the strides say
  int64_t total = 0;
  uint64_t low = 0, high = 0;

  bool active(int64_t repeat, int64_t element) const {
    if (counted) return repeat * per_repeat + element < total;
    return (element < 64 ? low >> element : high >> (element - 64)) & 1u;
  }
  bool full() const {
    if (counted) return total == repeats * per_repeat;
    return low == ~0ull && (per_repeat <= 64 || high == ~0ull);
  }
  int64_t elements() const {
    if (counted) return total;
    return repeats * (__builtin_popcountll(low) + (per_repeat > 64 ? __builtin_popcountll(high) : 0));
  }
};

// `element` is the size in bytes by which the mask counts: that of the widest operand.
inline Walk Resolve(Instruction& in, const Lanes& lanes, int element) {
  Walk walk;
  walk.per_repeat = 256 / element;
  if (walk.per_repeat > 128) walk.per_repeat = element == 1 ? 256 : 128;
  if (lanes.form == Lanes::Count) {
    in.require(lanes.count >= 0, "count", "the count is %lld, it must not be negative", static_cast<long long>(lanes.count));
    walk.counted = walk.dense = true;
    walk.total = lanes.set_mask ? lanes.count : static_cast<int64_t>(in.core().registers.mask_low);
    walk.repeats = (walk.total + walk.per_repeat - 1) / walk.per_repeat;
    // On the device this form sets the mask for itself, and leaves it full and in normal mode.
    Registers& registers = in.core().registers;
    registers.mask_count = false;
    registers.mask_low = registers.mask_high = ~0ull;
    return walk;
  }
  in.require(lanes.repeats >= 0 && lanes.repeats <= 255, "repeat", "the repeat count is %lld, it must be from 0 to 255",
             static_cast<long long>(lanes.repeats));
  Registers& registers = in.core().registers;
  walk.repeats = lanes.repeats;
  if (registers.mask_count) {  // the mask is a number of elements, and the repeats follow from it
    walk.counted = true;
    if (lanes.set_mask) registers.mask_low = lanes.form == Lanes::Bits ? lanes.low : static_cast<uint64_t>(lanes.count);
    walk.total = static_cast<int64_t>(registers.mask_low);
    walk.repeats = (walk.total + walk.per_repeat - 1) / walk.per_repeat;
    return walk;
  }
  if (!lanes.set_mask) {
    walk.low = registers.mask_low;
    walk.high = registers.mask_high;
    if (walk.per_repeat <= 64) walk.high = 0;
  } else if (lanes.form == Lanes::Bits) {
    walk.low = lanes.low;
    walk.high = lanes.high;
    in.require(walk.per_repeat > 64 || walk.high == 0, "mask",
               "mask[1] is 0x%llx, but a repeat of %d-byte elements has 64 lanes: mask[1] must be 0",
               static_cast<unsigned long long>(walk.high), element);
    in.require(walk.per_repeat >= 64 || walk.low >> walk.per_repeat == 0, "mask",
               "mask[0] selects lanes beyond the %lld of a repeat", static_cast<long long>(walk.per_repeat));
  } else {
    in.require(lanes.count >= 0 && lanes.count <= walk.per_repeat, "mask",
               "the mask is %lld, but a repeat of %d-byte elements has %lld lanes", static_cast<long long>(lanes.count),
               element, static_cast<long long>(walk.per_repeat));
    walk.low = lanes.count >= 64 ? ~0ull : (1ull << lanes.count) - 1;
    walk.high = lanes.count <= 64 ? 0 : lanes.count >= 128 ? ~0ull : (1ull << (lanes.count - 64)) - 1;
    if (lanes.count == 0) walk.repeats = 0;  // documented as doing nothing
  }
  if (lanes.set_mask) {  // the register keeps what the call set
    registers.mask_low = walk.low;
    registers.mask_high = walk.high;
  }
  return walk;
}

// An operand of an instruction: where each of its elements lies.
class View {
 public:
  View(Instruction& in, const Operand& operand, const Walk& walk, int argument)
      : in_(in), operand_(operand), walk_(walk), size_(operand.tensor.element), argument_(argument) {
    in.lies_in(operand.tensor, Bit(Space::UB), argument);
    base_ = in.data(operand.tensor);
    contiguous_ = walk.dense || (walk.full() && operand.strides.block == 1 &&
                                 operand.strides.repeat * 32 == static_cast<uint32_t>(walk.per_repeat * size_));
  }
  int64_t offset(int64_t repeat, int64_t element) const {
    if (walk_.dense) return (repeat * walk_.per_repeat + element) * size_;
    const int64_t per_block = 32 / size_;
    return (repeat * operand_.strides.repeat + element / per_block * operand_.strides.block) * 32 +
           element % per_block * size_;
  }
  // Tells the runtime which bytes are read or written.
  void declare(bool writing) {
    if (walk_.repeats == 0) return;
    if (contiguous_) {
      range(0, walk_.elements() * size_, writing);
      return;
    }
    pieces([&](int64_t, int64_t begin, int64_t bytes) { range(begin, bytes, writing); });
  }
  // The active bytes of every repeat.
  template <class F>
  void pieces(F f) const {
    if (contiguous_) {
      const int64_t all = walk_.elements() * size_, repeat = walk_.per_repeat * size_;
      for (int64_t r = 0; r < walk_.repeats; ++r) f(r, r * repeat, std::min(repeat, all - r * repeat));
      return;
    }
    for (int64_t r = 0; r < walk_.repeats; ++r)
      for (int64_t e = 0; e < walk_.per_repeat;) {
        if (!walk_.active(r, e)) {
          ++e;
          continue;
        }
        const int64_t begin = offset(r, e);
        int64_t end = begin + size_;
        for (++e; e < walk_.per_repeat && walk_.active(r, e) && offset(r, e) == end; ++e) end += size_;
        f(r, begin, end - begin);
      }
  }
  Turns turns() const {
    int64_t end = walk_.elements() * size_;
    if (!contiguous_) {
      const int64_t blocks = (walk_.per_repeat * size_ + 31) / 32;
      end = ((walk_.repeats - 1) * operand_.strides.repeat + (blocks - 1) * operand_.strides.block + 1) * 32;
    }
    return {operand_.tensor, argument_, 0, walk_.repeats > 0 ? end : 0, [this](const auto& f) { pieces(f); }};
  }
  // The same bytes in the same order, each in one repeat only: what works in place.
  bool same_place(const View& other) const {
    const Strides &a = operand_.strides, &b = other.operand_.strides;
    const int64_t blocks = (walk_.per_repeat * size_ + 31) / 32;
    return !walk_.dense && operand_.tensor.space == other.operand_.tensor.space &&
           operand_.tensor.address == other.operand_.tensor.address && size_ == other.size_ && a.block == b.block &&
           a.repeat == b.repeat && (walk_.repeats <= 1 || a.repeat >= (blocks - 1) * int64_t{a.block} + 1);
  }
  bool contiguous() const { return contiguous_; }
  int size() const { return size_; }
  const Tensor& tensor() const { return operand_.tensor; }
  int argument() const { return argument_; }
  uint8_t* at(int64_t byte) const { return base_ + byte; }
  // `count` elements of a repeat, in one piece: in place or gathered.
  const uint8_t* load(int64_t repeat, int64_t count, uint8_t* scratch) const {
    if (contiguous_) return base_ + repeat * walk_.per_repeat * size_;
    for (int64_t e = 0; e < count; ++e)
      if (walk_.active(repeat, e)) {
        std::memcpy(scratch + e * size_, base_ + offset(repeat, e), static_cast<size_t>(size_));
      } else {
        std::memset(scratch + e * size_, 0, static_cast<size_t>(size_));
      }
    return scratch;
  }
  void store(int64_t repeat, int64_t count, const uint8_t* from) const {
    for (int64_t e = 0; e < count; ++e)
      if (walk_.active(repeat, e)) std::memcpy(base_ + offset(repeat, e), from + e * size_, static_cast<size_t>(size_));
  }

 private:
  void range(int64_t begin, int64_t bytes, bool writing) {
    if (writing) {
      in_.write(operand_.tensor, begin, bytes, argument_);
    } else {
      in_.read(operand_.tensor, begin, bytes, argument_);
    }
  }
  Instruction& in_;
  const Operand& operand_;
  const Walk& walk_;
  int size_, argument_;
  uint8_t* base_;
  bool contiguous_;
};

// Calls f(dst, sources, n) on pieces of consecutive elements: reads and writes are declared, masked lanes kept.
// `chained` is the source that a repeat may read where one before it wrote; -1 for none.
template <class F>
void RunLanes(Instruction& in, const Walk& walk, const Operand& dst, std::initializer_list<const Operand*> sources,
              bool reads_dst, F f, int chained = -1) {
  View to(in, dst, walk, 0);
  std::vector<View> from;
  int argument = 1;
  for (const Operand* source : sources) from.emplace_back(in, *source, walk, argument++);
  bool plain = to.contiguous();
  for (View& view : from) {
    view.declare(false);
    plain = plain && view.contiguous();
    if (walk.repeats > 0 && to.contiguous() && view.contiguous() && to.size() == view.size())
      in.disjoint(to.tensor(), 0, walk.elements() * to.size(), view.tensor(), 0, walk.elements() * view.size(), 0,
                  view.argument());
    else if (!to.same_place(view))
      CheckOverlap(in, to.turns(), view.turns(), to.size() == view.size() ? Share::Same : Share::Tolerated,
                   view.argument() == chained);
  }
  if (reads_dst) to.declare(false);
  to.declare(true);
  const uint8_t* pointers[3] = {};
  if (plain) {
    const int64_t total = walk.elements();
    for (int64_t done = 0; done < total; done += kChunk) {
      for (size_t s = 0; s < from.size(); ++s) pointers[s] = from[s].at(done * from[s].size());
      f(to.at(done * to.size()), pointers, std::min<int64_t>(kChunk, total - done));
    }
    return;
  }
  alignas(32) uint8_t scratch[3][256 * 8], result[256 * 8];
  for (int64_t r = 0; r < walk.repeats; ++r) {
    const int64_t n = walk.counted ? std::min(walk.per_repeat, walk.total - r * walk.per_repeat) : walk.per_repeat;
    for (size_t s = 0; s < from.size(); ++s) pointers[s] = from[s].load(r, n, scratch[s]);
    if (reads_dst) std::memcpy(result, to.load(r, n, result), static_cast<size_t>(n * to.size()));
    f(result, pointers, n);
    to.store(r, n, result);
  }
}

// Throughput of the vector unit, from the vendor's table: a start-up, then `bytes_per_cycle` of the widest operand.
inline void Cost(Instruction& in, const Walk& walk, int element, double bytes_per_cycle) {
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(12 + static_cast<double>(walk.repeats * 256) / bytes_per_cycle);
  (void)element;
}

inline uint32_t Legal(uint32_t base) {
  // The newest chip has the types of the others and a few more.
  return CurrentChip().arch == 3510 ? base | (base & kFloats ? Bit(DType::BF16) : 0) |
                                          (base & kInts ? Bit(DType::U16) | Bit(DType::U32) : 0)
                                    : base;
}

inline void SaturateAll(void* data, DType dtype, int64_t n) {
  uint16_t* words = static_cast<uint16_t*>(data);
  if (dtype == DType::F16)
    for (int64_t i = 0; i < n; ++i) words[i] = SaturateHalf(words[i]);
  else if (dtype == DType::BF16)
    for (int64_t i = 0; i < n; ++i) words[i] = SaturateBfloat(words[i]);
}

// n values as floats, and back with one rounding.
inline const float* LoadFloats(DType dtype, const void* from, int64_t n, float* scratch) {
  if (dtype == DType::F32) return static_cast<const float*>(from);
  const uint16_t* words = static_cast<const uint16_t*>(from);
  if (dtype == DType::F16) {
    HalfToFloat(words, scratch, static_cast<size_t>(n));
  } else {
    BfloatToFloat(words, scratch, static_cast<size_t>(n));
  }
  return scratch;
}
inline void StoreFloats(DType dtype, void* to, const float* from, int64_t n, bool saturate) {
  if (dtype == DType::F32) {
    if (to != from) std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  if (dtype == DType::F16) {
    FloatToHalf(from, static_cast<uint16_t*>(to), static_cast<size_t>(n));
  } else {
    FloatToBfloat(from, static_cast<uint16_t*>(to), static_cast<size_t>(n));
  }
  if (saturate) SaturateAll(to, dtype, n);
}

inline float ScalarFloat(Scalar scalar) {
  switch (scalar.dtype) {
    case DType::F16: return HalfToFloat(static_cast<uint16_t>(scalar.bits));
    case DType::BF16: return BfloatToFloat(static_cast<uint16_t>(scalar.bits));
    default: return Bits<float>(static_cast<uint32_t>(scalar.bits));
  }
}

}  // namespace atbfn::emulator
