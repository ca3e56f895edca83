// Gathering, transposing and sorting.
#include <algorithm>
#include <cmath>

#include "lanes.h"

namespace atbfn::emulator {

void GatherElements(const Tensor& dst, const Tensor& src, const Tensor& offsets, uint32_t base, const Lanes& lanes,
                    uint32_t repeat_stride, Where where) {
  Instruction in(Pipe::V, "Gather", Unit::Vector, where);
  in.dtype_in(src, k16 | k32, 1);
  in.require(dst.dtype == src.dtype, "dtype", "operands are %s and %s; they must have one type", Name(dst.dtype), Name(src.dtype));
  in.align(dst, 32, 0);
  in.align(offsets, 32, 2);
  in.lies_in(src, Bit(Space::UB), 1);
  in.lies_in(offsets, Bit(Space::UB), 2);
  const int size = dst.element;
  const Walk walk = Resolve(in, lanes, size);
  const Operand to{dst, {1, repeat_stride}};
  View out(in, to, walk, 0);
  // The offsets lie one after the other.
  std::vector<uint32_t> at(static_cast<size_t>(walk.repeats * walk.per_repeat));
  const int64_t listed = walk.counted ? walk.total : walk.repeats * walk.per_repeat;
  if (listed == 0) return;
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t e = 0; e < walk.per_repeat; ++e)
      if (walk.active(r, e)) {
        const int64_t i = r * walk.per_repeat + e;
        std::memcpy(&at[static_cast<size_t>(i)], in.read(offsets, i * 4, 4, 2), 4);
        in.require(at[static_cast<size_t>(i)] % static_cast<uint32_t>(size) == 0, "alignment",
                   "offset %lld is %u bytes, no multiple of the element's %d", static_cast<long long>(i), at[static_cast<size_t>(i)], size);
        in.read(src, static_cast<int64_t>(base) + at[static_cast<size_t>(i)], size, 1);
      }
  const auto each = [&](const auto& f) {
    for (int64_t r = 0; r < walk.repeats; ++r)
      for (int64_t e = 0; e < walk.per_repeat; ++e)
        if (walk.active(r, e)) f(r, r * walk.per_repeat + e);
  };
  int64_t low = INT64_MAX, high = 0;
  each([&](int64_t, int64_t i) {
    low = std::min<int64_t>(low, base + int64_t{at[static_cast<size_t>(i)]});
    high = std::max<int64_t>(high, base + int64_t{at[static_cast<size_t>(i)]} + size);
  });
  CheckOverlap(in, out.turns(), {src, 1, low, high, [&](const auto& piece) {
                 each([&](int64_t r, int64_t i) { piece(r, base + int64_t{at[static_cast<size_t>(i)]}, size); });
               }}, Share::Same);
  CheckOverlap(in, out.turns(), {offsets, 2, 0, listed * 4, [&](const auto& piece) {
                 each([&](int64_t r, int64_t i) { piece(r, i * 4, 4); });
               }}, size == 4 ? Share::Same : Share::Tolerated);
  out.declare(true);
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(14 + static_cast<double>(walk.elements()) / 8);
  const uint8_t* from = in.data(src);
  std::vector<uint8_t> values(static_cast<size_t>(walk.per_repeat * walk.repeats * size));
  for (int64_t i = 0; i < walk.per_repeat * walk.repeats; ++i)
    if (walk.active(i / walk.per_repeat, i % walk.per_repeat))
      std::memcpy(values.data() + i * size, from + base + at[static_cast<size_t>(i)], static_cast<size_t>(size));
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t e = 0; e < walk.per_repeat; ++e)
      if (walk.active(r, e))
        std::memcpy(out.at(out.offset(r, e)), values.data() + (r * walk.per_repeat + e) * size, static_cast<size_t>(size));
}

void GatherBlocks(const Tensor& dst, const Tensor& src, const Tensor& offsets, int repeats, uint32_t block,
                  uint32_t repeat, Where where) {
  Instruction in(Pipe::V, "Gatherb", Unit::Vector, where);
  in.dtype_in(src, k16 | k32 | Bit(DType::I8) | Bit(DType::U8), 1);
  in.align(dst, 32, 0);
  in.align(src, 32, 1);
  in.align(offsets, 32, 2);
  in.lies_in(src, Bit(Space::UB), 1);
  if (repeats == 0) return;
  const uint8_t* list = in.read(offsets, 0, repeats * 32, 2);
  std::vector<uint32_t> at(static_cast<size_t>(repeats) * 8);
  std::memcpy(at.data(), list, at.size() * 4);
  std::vector<uint8_t> held(at.size() * 32);
  for (size_t i = 0; i < at.size(); ++i) {
    in.require(at[i] % 32 == 0, "alignment", "offset %zu is %u bytes, no multiple of 32", i, at[i]);
    std::memcpy(held.data() + i * 32, in.read(src, at[i], 32, 1), 32);
  }
  const auto target = [&](size_t i) { return static_cast<int64_t>(i / 8 * repeat + i % 8 * block) * 32; };
  const Turns out{dst, 0, 0, target(at.size() - 1) + 32, [&](const auto& piece) {
                    for (size_t i = 0; i < at.size(); ++i) piece(static_cast<int64_t>(i / 8), target(i), 32);
                  }};
  const auto [least, most] = std::minmax_element(at.begin(), at.end());
  CheckOverlap(in, out, {src, 1, *least, int64_t{*most} + 32, [&](const auto& piece) {
                 for (size_t i = 0; i < at.size(); ++i) piece(static_cast<int64_t>(i / 8), at[i], 32);
               }}, Share::Same);
  CheckOverlap(in, out, EvenTurns(offsets, 2, repeats, 32, 32), Share::Tolerated);
  for (size_t i = 0; i < at.size(); ++i) in.write(dst, target(i), 32, 0);
  for (size_t i = 0; i < at.size(); ++i)
    std::memcpy(in.data(dst) + (i / 8 * repeat + i % 8 * block) * 32, held.data() + i * 32, 32);
  in.vector_elements(at.size() * 32 / dst.element);
  in.cycles(14 + 2.0 * repeats);
}

void ScatterElements(const Tensor& dst, const Tensor& src, const Tensor& offsets, uint32_t base, const Lanes& lanes,
                     uint32_t repeat_stride, Where where) {
  Instruction in(Pipe::V, "Scatter", Unit::Vector, where);
  in.require(CurrentChip().arch != 2201, "chip", "the %s has no Scatter; use Gather with inverted offsets", CurrentChip().name);
  in.dtype_in(src, k16 | k32, 1);
  const int size = src.element;
  const Walk walk = Resolve(in, lanes, size);
  const Operand from{src, {1, repeat_stride}};
  View view(in, from, walk, 1);
  view.declare(false);
  for (int64_t r = 0; r < walk.repeats; ++r)
    for (int64_t e = 0; e < walk.per_repeat; ++e)
      if (walk.active(r, e)) {
        uint32_t at;
        std::memcpy(&at, in.read(offsets, (r * walk.per_repeat + e) * 4, 4, 2), 4);
        uint8_t value[8];
        std::memcpy(value, view.at(view.offset(r, e)), static_cast<size_t>(size));
        std::memcpy(in.write(dst, static_cast<int64_t>(base) + at, size, 0), value, static_cast<size_t>(size));
      }
  in.vector_elements(static_cast<uint64_t>(walk.elements()));
  in.cycles(14 + static_cast<double>(walk.elements()) / 4);
}

uint64_t GatherByMask(const Tensor& dst, const Tensor& src, const Tensor* pattern, int number, bool reduce_mode,
                      uint32_t mask, GatherMaskShape shape, Where where) {
  Instruction in(Pipe::V, "GatherMask", Unit::Vector, where);
  in.dtype_in(src, k16 | k32, 1);
  in.require(dst.dtype == src.dtype, "dtype", "operands are %s and %s; they must have one type", Name(dst.dtype), Name(src.dtype));
  in.align(dst, 32, 0);
  in.align(src, 32, 1);
  in.lies_in(src, Bit(Space::UB), 1);
  const int size = src.element;
  const int64_t per_repeat = 256 / size, per_block = 32 / size;
  const int64_t taken = reduce_mode ? static_cast<int64_t>(mask) : per_repeat;  // elements of a repeat
  in.require(shape.repeats <= 255, "repeat", "the repeat count is %u, it must be from 0 to 255", shape.repeats);
  if (pattern != nullptr) {
    in.align(*pattern, 32, 2);
    in.require(pattern->element == size, "dtype", "the pattern of %d-byte elements must be of %d-byte words, it is %s", size, size, Name(pattern->dtype));
  } else {
    in.require(number >= 1 && number <= 7, "range", "the pattern is %d, it must be from 1 to 7", number);
  }
  std::vector<uint8_t> kept;
  std::vector<int64_t> ends = {0};  // of what each repeat keeps
  uint64_t count = 0;
  for (int64_t r = 0; r < shape.repeats; ++r) {
    const int64_t words = (taken + 7) / 8;
    const uint8_t* bits = pattern != nullptr ? in.read(*pattern, r * shape.pattern_stride * 32, words, 2) : nullptr;
    for (int64_t e = 0; e < taken; ++e) {
      const int64_t at = (r * shape.repeat_stride + e / per_block * shape.block_stride) * 32 + e % per_block * size;
      if (e % per_block == 0) in.read(src, at, std::min(per_block, taken - e) * size, 1);
      bool keep;
      if (bits != nullptr) {
        keep = bits[e / 8] >> (e % 8) & 1;
      } else {
        keep = number == 7 || (number <= 2 ? e % 2 == number - 1 : e % 4 == number - 3);
      }
      if (!keep) continue;
      ++count;
      const uint8_t* value = in.data(src) + at;
      kept.insert(kept.end(), value, value + size);
    }
    ends.push_back(static_cast<int64_t>(kept.size()));
  }
  // What a repeat keeps goes behind what those before it kept.
  const Turns kept_turns{dst, 0, 0, static_cast<int64_t>(kept.size()), [&](const auto& piece) {
                           for (size_t r = 0; r + 1 < ends.size(); ++r) piece(static_cast<int64_t>(r), ends[r], ends[r + 1] - ends[r]);
                         }};
  const int64_t blocks = (taken + per_block - 1) / per_block;
  CheckOverlap(in, kept_turns,
               {src, 1, 0, ((shape.repeats - int64_t{1}) * shape.repeat_stride + (blocks - 1) * shape.block_stride + 1) * 32,
                [&](const auto& piece) {
                  for (int64_t r = 0; r < shape.repeats; ++r)
                    for (int64_t e = 0; e < taken; e += per_block)
                      piece(r, (r * shape.repeat_stride + e / per_block * shape.block_stride) * 32,
                            std::min(per_block, taken - e) * size);
                }}, Share::Tolerated);
  if (pattern != nullptr && shape.repeats > 0)
    CheckOverlap(in, kept_turns, EvenTurns(*pattern, 2, shape.repeats, (taken + 7) / 8, int64_t{shape.pattern_stride} * 32),
                 Share::Tolerated);
  if (!kept.empty()) std::memcpy(in.write(dst, 0, static_cast<int64_t>(kept.size()), 0), kept.data(), kept.size());
  in.core().registers.reserved_count = static_cast<int64_t>(count);
  in.vector_elements(static_cast<uint64_t>(taken) * shape.repeats);
  in.cycles(14 + 2.0 * static_cast<double>(shape.repeats));
  return count;
}

// ---------------------------------------------------------------------------------------------------------- transpose

void Transpose16(const Tensor& dst, const Tensor& src, Where where) {
  Instruction in(Pipe::V, "Transpose", Unit::Vector, where);
  in.dtype_in(src, Bit(DType::F16) | Bit(DType::I16) | Bit(DType::U16), 1);
  in.align(dst, 32, 0);
  in.align(src, 32, 1);
  in.lies_in(src, Bit(Space::UB), 1);
  in.disjoint(dst, 0, 512, src, 0, 512, 0, 1);
  uint16_t held[256];
  std::memcpy(held, in.read(src, 0, 512, 1), 512);
  uint8_t* to = in.write(dst, 0, 512, 0);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 16; ++j) std::memcpy(to + (j * 16 + i) * 2, &held[i * 16 + j], 2);
  in.vector_elements(256);
  in.cycles(16);
}

void TransposeShaped(const Tensor& dst, const Tensor& src, const Tensor& scratch, TransposeShape shape, Where where) {
  if (shape.type == 10) {  // TRANSPOSE_ND2ND_B16
    Transpose16(dst, src, where);
    return;
  }
  Instruction in(Pipe::V, "Transpose", Unit::Vector, where);
  in.require(shape.type == 11 || shape.type == 12, "range", "the transpose type is %d; the emulator has TRANSPOSE_ND2ND_B16, "
             "TRANSPOSE_NCHW2NHWC and TRANSPOSE_NHWC2NCHW", shape.type);
  in.dtype_in(src, k16 | k32 | Bit(DType::I8) | Bit(DType::U8), 1);
  in.align(dst, 32, 0);
  in.align(src, 32, 1);
  const int64_t size = src.element, plane = static_cast<int64_t>(shape.h) * shape.w;
  const int64_t total = shape.n * shape.c * plane * size;
  in.require(scratch.size > 0, "size", "sharedTmpBuffer is empty");
  in.disjoint(dst, 0, total, src, 0, total, 0, 1);
  const uint8_t* from = in.read(src, 0, total, 1);
  const std::vector<uint8_t> held(from, from + total);
  uint8_t* to = in.write(dst, 0, total, 0);
  for (int64_t n = 0; n < shape.n; ++n)
    for (int64_t c = 0; c < shape.c; ++c)
      for (int64_t p = 0; p < plane; ++p) {
        const int64_t channels_first = (n * shape.c + c) * plane + p, channels_last = (n * plane + p) * shape.c + c;
        const bool to_last = shape.type == 11;
        std::memcpy(to + (to_last ? channels_last : channels_first) * size,
                    held.data() + (to_last ? channels_first : channels_last) * size, static_cast<size_t>(size));
      }
  in.vector_elements(static_cast<uint64_t>(total / size));
  in.cycles(14 + static_cast<double>(total) / 32);
}

Tensor Unpack(uint64_t address, DType dtype, uint8_t element) {
  Tensor tensor;
  tensor.space = static_cast<Space>(address >> 56);
  tensor.buffer = static_cast<uint32_t>(address >> 40 & 0xffff);
  tensor.address = static_cast<uint32_t>(address & 0xffffffffffull);
  tensor.dtype = dtype;
  tensor.element = element;
  tensor.size = 0;
  return tensor;
}

void TransposeBlocks(const uint64_t dst[16], const uint64_t src[16], DType dtype, To5HD shape, Where where) {
  Instruction in(Pipe::V, "TransDataTo5HD", Unit::Vector, where);
  const int size = dtype == DType::I8 || dtype == DType::U8 ? 1 : dtype == DType::F32 || dtype == DType::I32 || dtype == DType::U32 ? 4 : 2;
  in.require(size == 1 || (!shape.dst_high && !shape.src_high), "range", "dstHighHalf and srcHighHalf are for 8-bit types");
  const int row = size == 1 ? 16 : 32;  // bytes of each block that take part
  Tensor memory;  // from its start: the operands are 16 addresses each
  memory.space = Space::UB;
  const auto blocks = [&](const uint64_t* list, int argument, int64_t stride, bool upper) {
    int64_t low = INT64_MAX, high = 0;
    for (int i = 0; i < 16; ++i) {
      const int64_t first = Unpack(list[i], dtype, 1).address + (shape.repeats == 1 ? stride * 32 : 0) + (upper ? 16 : 0);
      low = std::min(low, first);
      high = std::max(high, first + (shape.repeats > 1 ? shape.repeats - 1 : 0) * stride * 32 + row);
    }
    return Turns{memory, argument, low, high, [=](const auto& piece) {
                   for (int64_t r = 0; r < shape.repeats; ++r)
                     for (int i = 0; i < 16; ++i)
                       piece(r, Unpack(list[i], dtype, 1).address + (shape.repeats == 1 ? 1 : r) * stride * 32 + (upper ? 16 : 0), row);
                 }};
  };
  CheckOverlap(in, blocks(dst, 0, shape.dst_stride, shape.dst_high), blocks(src, 1, shape.src_stride, shape.src_high), Share::Same);
  for (uint32_t r = 0; r < shape.repeats; ++r) {
    // With one repeat the strides move the start; with several each repeat moves on.
    const int64_t src_at = static_cast<int64_t>(shape.repeats == 1 ? 1 : r) * shape.src_stride * 32;
    const int64_t dst_at = static_cast<int64_t>(shape.repeats == 1 ? 1 : r) * shape.dst_stride * 32;
    uint8_t held[16][32];
    for (int i = 0; i < 16; ++i) {
      const Tensor tensor = Unpack(src[i], dtype, static_cast<uint8_t>(size));
      in.align(tensor, 32, -1);
      in.lies_in(tensor, Bit(Space::UB), 1);
      std::memcpy(held[i], in.read(tensor, src_at + (shape.src_high ? 16 : 0), row, -1), static_cast<size_t>(row));
    }
    for (int i = 0; i < 16; ++i) {
      const Tensor tensor = Unpack(dst[i], dtype, static_cast<uint8_t>(size));
      in.align(tensor, 32, -1);
      uint8_t* to = in.write(tensor, dst_at + (shape.dst_high ? 16 : 0), row, -1);
      if (size == 4) {  // 16 rows of 8 become 8 rows of 16, in two blocks each
        for (int j = 0; j < 8; ++j) std::memcpy(to + j * 4, &held[i % 2 * 8 + j][i / 2 * 4], 4);
      } else {
        for (int j = 0; j < 16; ++j) std::memcpy(to + j * size, &held[j][i * size], static_cast<size_t>(size));
      }
    }
  }
  in.vector_elements(static_cast<uint64_t>(shape.repeats) * 256);
  in.cycles(14 + 2.0 * shape.repeats);
}

// --------------------------------------------------------------------------------------------------------------- sort

namespace {

float ScoreOf(const uint8_t* entry, DType dtype) {
  uint16_t half;
  float value;
  if (dtype == DType::F16) {
    std::memcpy(&half, entry, 2);
    return HalfToFloat(half);
  }
  std::memcpy(&value, entry, 4);
  return value;
}

}  // namespace

// Sorts every 32 scores downwards; an entry of the result is 8 bytes: the score, and at byte 4 its index.
void SortRegions(const Tensor& dst, const Tensor& src, const Tensor& index, int repeats, Where where) {
  Instruction in(Pipe::V, "Sort32", Unit::Vector, where);
  in.dtype_in(src, kFloats, 1);
  in.require(repeats >= 0 && repeats <= 255, "repeat", "the repeat count is %d, it must be from 0 to 255", repeats);
  in.align(dst, 32, 0);
  in.align(src, 32, 1);
  in.align(index, 32, 2);
  in.lies_in(src, Bit(Space::UB), 1);
  if (repeats == 0) return;
  const int64_t n = static_cast<int64_t>(repeats) * 32, size = src.element;
  CheckOverlap(in, EvenTurns(dst, 0, repeats, 32 * 8, 32 * 8), EvenTurns(src, 1, repeats, 32 * size, 32 * size), Share::Tolerated);
  CheckOverlap(in, EvenTurns(dst, 0, repeats, 32 * 8, 32 * 8), EvenTurns(index, 2, repeats, 32 * 4, 32 * 4), Share::Tolerated);
  const uint8_t* scores = in.read(src, 0, n * size, 1);
  const uint8_t* indices = in.read(index, 0, n * 4, 2);
  std::vector<std::array<uint8_t, 8>> entries(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    auto& entry = entries[static_cast<size_t>(i)];
    entry = {};
    std::memcpy(entry.data(), scores + i * size, static_cast<size_t>(size));
    std::memcpy(entry.data() + 4, indices + i * 4, 4);
  }
  for (int64_t r = 0; r < repeats; ++r)
    std::stable_sort(entries.begin() + r * 32, entries.begin() + (r + 1) * 32, [&](const auto& a, const auto& b) {
      return ScoreOf(a.data(), src.dtype) > ScoreOf(b.data(), src.dtype);
    });
  std::memcpy(in.write(dst, 0, n * 8, 0), entries.data(), static_cast<size_t>(n * 8));
  in.vector_elements(static_cast<uint64_t>(n));
  in.cycles(14 + static_cast<double>(n) / 2);
}

void MergedCounts(uint16_t (&taken)[4]) { std::copy_n(Current().merged, 4, taken); }

void MergeSorted(const Tensor& dst, const Tensor (&src)[4], Merge merge, Where where) {
  Instruction in(Pipe::V, "MrgSort", Unit::Vector, where);
  in.dtype_in(dst, kFloats, 0);
  in.require(merge.valid == 3 || merge.valid == 7 || merge.valid == 15, "range",
             "validBit is %u; it must be 3, 7 or 15: two, three or four lists", merge.valid);
  const int lists = merge.valid == 3 ? 2 : merge.valid == 7 ? 3 : 4;
  for (int i = 0; i < lists; ++i) {
    in.require(merge.lengths[i] <= 4095, "range", "list %d has %u entries, at most 4095 are merged", i, merge.lengths[i]);
    in.lies_in(src[i], Bit(Space::UB), 1);
  }
  in.align(dst, 32, 0);
  const bool repeated = merge.repeats > 1;
  if (repeated)
    in.require(lists == 4 && !merge.stop_when_one_ends && merge.lengths[0] == merge.lengths[1] &&
                   merge.lengths[1] == merge.lengths[2] && merge.lengths[2] == merge.lengths[3],
               "repeat", "more than one repeat needs four lists of one length, one after the other");
  int64_t all = 0;
  for (int i = 0; i < lists; ++i) all += merge.lengths[i];
  double merged = 0;
  std::vector<std::vector<uint8_t>> held(static_cast<size_t>(lists));
  for (uint32_t r = 0; r < merge.repeats; ++r) {
    for (int i = 0; i < lists; ++i) {
      const int64_t bytes = merge.lengths[i] * 8;
      if (bytes == 0) continue;
      const uint8_t* from = in.read(src[i], r * all * 8, bytes, 1);
      held[static_cast<size_t>(i)].assign(from, from + bytes);
    }
    std::vector<uint8_t> out;
    uint16_t taken[4] = {};
    while (true) {
      int best = -1;
      bool ended = false;
      for (int i = 0; i < lists; ++i) {
        if (taken[i] == merge.lengths[i]) {
          ended = true;
          continue;
        }
        if (best < 0 || ScoreOf(&held[static_cast<size_t>(i)][taken[i] * 8u], dst.dtype) >
                            ScoreOf(&held[static_cast<size_t>(best)][taken[best] * 8u], dst.dtype))
          best = i;
      }
      if (best < 0 || (ended && merge.stop_when_one_ends)) break;
      const uint8_t* entry = &held[static_cast<size_t>(best)][taken[best]++ * 8u];
      out.insert(out.end(), entry, entry + 8);
    }
    // No part in common, not even the same: lists of which more is taken are read while others have been written.
    for (int i = 0; i < lists && !out.empty(); ++i)
      in.require(dst.space != src[i].space || merge.lengths[i] == 0 ||
                     dst.address + r * all * 8 + static_cast<int64_t>(out.size()) <= src[i].address + r * all * 8 ||
                     src[i].address + r * all * 8 + merge.lengths[i] * 8 <= dst.address + r * all * 8,
                 "overlap", "the result and list %d share bytes of UB; merge into another tensor", i);
    if (!out.empty()) std::memcpy(in.write(dst, r * all * 8, static_cast<int64_t>(out.size()), 0), out.data(), out.size());
    merged += static_cast<double>(out.size()) / 8;
    for (int i = 0; i < 4; ++i) in.core().merged[i] = taken[i];
  }
  in.vector_elements(static_cast<uint64_t>(merged));
  in.cycles(14 + merged / 2);
}

}  // namespace atbfn::emulator
