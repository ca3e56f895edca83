// Operands of one instruction that lie in the same bytes. The unit works in turns: repeats of 256 bytes, or blocks of a copy.
// Within a turn a source and the destination are the same bytes or none in common, and no turn reads what one before it
// wrote.
#pragma once

#include <functional>

#include "core.h"

namespace atbfn::emulator {

// One operand: the bytes of each turn, relative to the tensor, in order of the turns; and, so that the usual case costs
// nothing, the range in which all of them lie.
struct Turns {
  const Tensor& tensor;
  int argument;
  int64_t begin, end;
  std::function<void(const std::function<void(int64_t turn, int64_t offset, int64_t bytes)>&)> pieces;
};

enum class Share : uint8_t {
  Same,       // or apart
  Tolerated,  // may overlap in part: documented as unsupported, and programs that work do it where sizes differ
  Any,        // the instruction reads all of a turn before it writes
};
// chained: a turn may read what one before it wrote, as documented for a few instructions.
void CheckOverlap(Instruction& in, const Turns& dst, const Turns& src, Share share, bool chained = false);

// The same bytes in every turn, or one turn of them.
inline Turns OneTurn(const Tensor& tensor, int argument, int64_t offset, int64_t bytes) {
  return {tensor, argument, offset, offset + bytes, [=](const auto& piece) { piece(0, offset, bytes); }};
}
// `bytes` in each turn, `stride` apart.
inline Turns EvenTurns(const Tensor& tensor, int argument, int64_t turns, int64_t bytes, int64_t stride) {
  const int64_t span = (turns - 1) * stride;
  return {tensor, argument, std::min<int64_t>(span, 0), std::max<int64_t>(span, 0) + bytes, [=](const auto& piece) {
            for (int64_t t = 0; t < turns; ++t) piece(t, t * stride, bytes);
          }};
}

// The pieces of one destination, `bytes` each, must not overlap each other: what is left there is not defined.
void CheckApart(Instruction& in, const std::string& operand, std::vector<int64_t> starts, int64_t bytes, const char* why);

}  // namespace atbfn::emulator
