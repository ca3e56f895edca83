#include "overlap.h"

#include <algorithm>

namespace atbfn::emulator {

namespace {

struct Piece {
  int64_t turn, begin, end;  // bytes of the memory
};

std::vector<Piece> Collect(const Turns& operand) {
  std::vector<Piece> pieces;
  const int64_t base = operand.tensor.address;
  operand.pieces([&](int64_t turn, int64_t offset, int64_t bytes) {
    if (bytes > 0) pieces.push_back({turn, base + offset, base + offset + bytes});
  });
  std::sort(pieces.begin(), pieces.end(),
            [](const Piece& a, const Piece& b) { return std::tie(a.turn, a.begin) < std::tie(b.turn, b.begin); });
  return pieces;
}

// The pieces of one turn from `at` on, joined where they touch; `at` moves to the next turn.
std::vector<std::pair<int64_t, int64_t>> TakeTurn(const std::vector<Piece>& pieces, size_t& at, int64_t turn) {
  std::vector<std::pair<int64_t, int64_t>> joined;
  for (; at < pieces.size() && pieces[at].turn == turn; ++at) {
    const Piece& p = pieces[at];
    if (!joined.empty() && p.begin <= joined.back().second) joined.back().second = std::max(joined.back().second, p.end);
    else joined.emplace_back(p.begin, p.end);
  }
  return joined;
}

}  // namespace

void CheckOverlap(Instruction& in, const Turns& dst, const Turns& src, Share share, bool chained) {
  if (dst.tensor.space != src.tensor.space) return;
  const int64_t low = std::max(dst.tensor.address + dst.begin, src.tensor.address + src.begin);
  const int64_t high = std::min(dst.tensor.address + dst.end, src.tensor.address + src.end);
  if (low >= high) return;
  const std::vector<Piece> written = Collect(dst), read = Collect(src);
  const auto text = [&](const Turns& operand) { return OperandText(in.core(), operand.tensor, in.where(), operand.argument); };
  std::vector<int32_t> writer(static_cast<size_t>(high - low), -1);  // the turn that wrote each byte both may touch
  size_t w = 0, r = 0;
  while (w < written.size() || r < read.size()) {
    const int64_t turn = std::min(w < written.size() ? written[w].turn : INT64_MAX, r < read.size() ? read[r].turn : INT64_MAX);
    const auto reads = TakeTurn(read, r, turn), writes = TakeTurn(written, w, turn);
    if (!chained)
      for (const auto& [begin, end] : reads)
        for (int64_t b = std::max(begin, low); b < std::min(end, high); ++b)
          if (const int32_t before = writer[static_cast<size_t>(b - low)]; before >= 0)
            in.fail("overlap", "%s: turn %lld reads %s at byte %lld of %s, which turn %d has written as %s: a repeat or block "
                    "of an instruction may start before the one in front of it is done; use two instructions with a "
                    "PipeBarrier<PIPE_V>() between them, or another tensor", in.name(), static_cast<long long>(turn),
                    text(src).c_str(), static_cast<long long>(b), Name(dst.tensor.space), before, text(dst).c_str());
    if (share != Share::Any && reads != writes) {
      for (const auto& [r0, r1] : reads)
        for (const auto& [w0, w1] : writes) {
          if (r0 >= w1 || w0 >= r1) continue;
          const std::string message = Format(
              "%s: %s [%lld, %lld) and %s [%lld, %lld) of %s overlap without being the same in turn %lld; operands of one "
              "instruction coincide or are apart", in.name(), text(dst).c_str(), static_cast<long long>(w0),
              static_cast<long long>(w1), text(src).c_str(), static_cast<long long>(r0), static_cast<long long>(r1),
              Name(dst.tensor.space), static_cast<long long>(turn));
          if (share == Share::Same) in.fail("overlap", "%s", message.c_str());
          Tolerate(in.core(), "overlap", in.where(), message);
          share = Share::Any;  // once is enough
        }
    }
    for (const auto& [begin, end] : writes)
      for (int64_t b = std::max(begin, low); b < std::min(end, high); ++b)
        writer[static_cast<size_t>(b - low)] = static_cast<int32_t>(turn);
  }
}

void CheckApart(Instruction& in, const std::string& operand, std::vector<int64_t> starts, int64_t bytes, const char* why) {
  std::sort(starts.begin(), starts.end());
  for (size_t i = 1; i < starts.size(); ++i)
    if (starts[i] - starts[i - 1] < bytes)
      in.fail("overlap", "%s: pieces of %s overlap each other, that of %lld bytes from byte %lld and that from byte %lld on: %s",
              in.name(), operand.c_str(), static_cast<long long>(bytes), static_cast<long long>(starts[i - 1]),
              static_cast<long long>(starts[i]), why);
}

}  // namespace atbfn::emulator
