// Global memory: what is allocated, atomics, and races, found after the launch from the cores' logs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <unordered_map>

#include "core.h"
#include "numeric.h"

namespace atbfn::emulator {

// ------------------------------------------------------------------------------------------------------- allocations

namespace {
std::map<uint64_t, Allocation>& Allocations() {
  static std::map<uint64_t, Allocation> table;
  return table;
}
std::map<uint64_t, Allocation>& Freed() {
  static std::map<uint64_t, Allocation> table;
  return table;
}
std::shared_mutex allocations_mutex;
}  // namespace

void AddAllocation(void* address, size_t bytes, std::string name, size_t with_blocks) {
  std::unique_lock lock(allocations_mutex);
  const uint64_t begin = reinterpret_cast<uint64_t>(address);
  if (name.empty()) name = "the allocation";
  Allocations()[begin] = {begin, begin + bytes, begin + std::max(bytes, with_blocks), std::move(name)};
}

bool RemoveAllocation(void* address) {
  std::unique_lock lock(allocations_mutex);
  const auto found = Allocations().find(reinterpret_cast<uint64_t>(address));
  if (found == Allocations().end()) return false;
  if (Freed().size() >= 1000) Freed().erase(Freed().begin());
  Freed()[found->first] = found->second;
  Allocations().erase(found);
  return true;
}

std::string FreedName(uint64_t address) {
  std::shared_lock lock(allocations_mutex);
  auto found = Freed().upper_bound(address);
  if (found == Freed().begin()) return "";
  --found;
  return address < found->second.end ? found->second.name : "";
}

const Allocation* FindAllocation(uint64_t address) {
  std::shared_lock lock(allocations_mutex);
  auto& table = Allocations();
  auto found = table.upper_bound(address);
  if (found == table.begin()) return nullptr;
  --found;
  return address < found->second.blocks_end ? &found->second : nullptr;
}

std::string GlobalText(const Global&, Where where, int argument) {
  const std::string text = ArgumentText(where, argument);
  return text.empty() ? Format("operand %d", argument + 1) : "`" + text + "`";
}

// ----------------------------------------------------------------------------------------------------------- atomics

namespace {

template <class T>
T Combine(T a, T b, int op) {
  if (op == 1) return static_cast<T>(a + b);
  if constexpr (std::is_floating_point_v<T>) {  // as Max and Min: a nan wins, and +0 is above -0
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return std::signbit(a) == (op == 2) ? b : a;
  }
  return op == 2 ? (b > a ? b : a) : (b < a ? b : a);
}

template <class T>
void CombineAs(uint8_t* to, const uint8_t* from, size_t bytes, int op) {
  for (size_t i = 0; i + sizeof(T) <= bytes; i += sizeof(T)) {
    T a, b;
    std::memcpy(&a, to + i, sizeof(T));
    std::memcpy(&b, from + i, sizeof(T));
    a = Combine(a, b, op);
    std::memcpy(to + i, &a, sizeof(T));
  }
}

template <class Load, class Store>
void CombineNarrow(uint8_t* to, const uint8_t* from, size_t bytes, int op, Load load, Store store) {
  for (size_t i = 0; i + 2 <= bytes; i += 2) {
    uint16_t a, b;
    std::memcpy(&a, to + i, 2);
    std::memcpy(&b, from + i, 2);
    const uint16_t result = store(Combine<float>(load(a), load(b), op));
    std::memcpy(to + i, &result, 2);
  }
}

}  // namespace

void CombineAtomic(uint8_t* to, const uint8_t* from, size_t bytes, DType dtype, int op, bool saturate) {
  switch (dtype) {
    case DType::F32: CombineAs<float>(to, from, bytes, op); break;
    case DType::F16:
      CombineNarrow(to, from, bytes, op, [](uint16_t v) { return HalfToFloat(v); },
                    [=](float v) { return saturate ? SaturateHalf(FloatToHalf(v)) : FloatToHalf(v); });
      break;
    case DType::BF16:
      CombineNarrow(to, from, bytes, op, [](uint16_t v) { return BfloatToFloat(v); },
                    [=](float v) { return saturate ? SaturateBfloat(FloatToBfloat(v)) : FloatToBfloat(v); });
      break;
    case DType::I8: CombineAs<int8_t>(to, from, bytes, op); break;
    case DType::U8: CombineAs<uint8_t>(to, from, bytes, op); break;
    case DType::I16: CombineAs<int16_t>(to, from, bytes, op); break;
    case DType::U16: CombineAs<uint16_t>(to, from, bytes, op); break;
    case DType::I32: CombineAs<int32_t>(to, from, bytes, op); break;
    case DType::U32: CombineAs<uint32_t>(to, from, bytes, op); break;
    default: std::memcpy(to, from, bytes);
  }
}

// Every core's pending sums of bytes [begin, end) are added, in the order of the cores and of each core's program. A read
// or a plain write that is ordered after contributions finds all of them waiting, and one that is not is a race: so what
// it finds does not depend on which core ran first.
void SettleAtomics(Launching& launch, uint64_t begin, uint64_t end) {
  if (launch.pending_atomics.load(std::memory_order_acquire) == 0) return;
  std::lock_guard<std::mutex> lock(launch.atomics_mutex);
  for (auto& core : launch.cores) {
    std::vector<PendingAtomic> rest;
    for (PendingAtomic& one : core->atomics) {
      const uint64_t from = reinterpret_cast<uint64_t>(one.to), size = one.values.size();
      const uint64_t element = one.dtype == DType::F32 ? 4 : 2;
      if (from + size <= begin || from >= end) {
        rest.push_back(std::move(one));
        continue;
      }
      // Whole elements that the range touches; what lies on either side waits on.
      const uint64_t first = begin <= from ? 0 : (begin - from) / element * element;
      const uint64_t last = end >= from + size ? size : std::min(size, (end - from + element - 1) / element * element);
      CombineAtomic(one.to + first, one.values.data() + first, last - first, one.dtype, 1, one.saturate);
      const auto part = [&](uint64_t a, uint64_t b) {
        if (a < b) rest.push_back({one.to + a, one.dtype, one.saturate, {one.values.data() + a, one.values.data() + b}});
      };
      part(0, first);
      part(last, size);
    }
    launch.pending_atomics.fetch_add(rest.size() - core->atomics.size(), std::memory_order_acq_rel);
    core->atomics = std::move(rest);
  }
}

// ------------------------------------------------------------------------------------------------------------- races

namespace {

constexpr uint64_t kLine = 512;  // bytes by which residence in L2 is counted

struct Piece {
  uint64_t begin, end;
  Core* core;
  const GmAccess* access;
};

// `first` is known to have completed when `second` starts.
bool Before(const Piece& first, const Piece& second) {
  const GmAccess &a = *first.access, &b = *second.access;
  if (first.core == second.core) {
    if (a.clock == b.clock && a.pipe == b.pipe) return true;  // the same instruction
    if (a.event > b.event) return false;
    if (a.pipe == b.pipe && (a.pipe == Pipe::S || a.kind == GmAccess::Read)) return true;
    return second.core->known_versions[b.known][static_cast<size_t>(a.pipe)] >= a.clock;
  }
  const Knowledge& known = *second.core->others_versions[b.others];
  return known[static_cast<size_t>(first.core->index)][static_cast<size_t>(a.pipe)] >= a.clock;
}

// On vector cores the compiler orders the scalar unit against the others.
bool Automatic(const Piece& a, const Piece& b) {
  return a.core == b.core && a.core->vector && (a.access->pipe == Pipe::S) != (b.access->pipe == Pipe::S) &&
         !GlobalOptions().strict;
}

const char* Verb(GmAccess::Kind kind) {
  return kind == GmAccess::Read ? "reads" : kind == GmAccess::Write ? "writes" : "adds to";
}

std::string RaceMessage(const Piece& first, const Piece& second) {
  const bool swap = first.core == second.core ? first.access->event > second.access->event
                                              : first.core->index > second.core->index;
  const Piece &a = swap ? second : first, &b = swap ? first : second;
  const Event &ea = a.core->events[a.access->event], &eb = b.core->events[b.access->event];
  const uint64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  const Allocation* allocation = FindAllocation(begin);
  const std::string range =
      allocation == nullptr ? "GM"
                            : Format("bytes [%llu, %llu) of %s", static_cast<unsigned long long>(begin - allocation->begin),
                                     static_cast<unsigned long long>(end - allocation->begin), allocation->name.c_str());
  std::string help;
  if (a.access->kind == GmAccess::Atomic && b.access->kind == GmAccess::Atomic) {
    help = "the two combine by different operations or types, so their order matters; use one, or order the cores";
  } else if (a.core == b.core) {
    help = a.access->pipe == b.access->pipe
               ? Format("PipeBarrier<PIPE_%s>() between the two", Name(a.access->pipe))
               : Format("SetFlag<HardEvent::%s_%s>(id) after the first and WaitFlag<HardEvent::%s_%s>(id) before the second",
                        Name(a.access->pipe), Name(b.access->pipe), Name(a.access->pipe), Name(b.access->pipe));
  } else {
    help = "order the cores with SyncAll, CrossCoreSetFlag and CrossCoreWaitFlag, or IBSet and IBWait; set the flag on the "
           "pipe that did the first access";
  }
  return Message("error", eb.where, "race",
                 Format("%s on core %s %s %s, which %s on core %s %s: nothing orders the two", eb.name,
                        b.core->label.c_str(), Verb(b.access->kind), range.c_str(), ea.name, a.core->label.c_str(),
                        Verb(a.access->kind))) +
         Note(ea.where, std::string(ea.name) + " is here") + Help(help) +
         Format("   in: kernel %s\n", a.core->launch->kernel.c_str());
}

void ForEachPiece(const GmAccess& access, uint64_t low, uint64_t high, const std::function<void(uint64_t, uint64_t)>& f) {
  if (access.count == 1) {
    f(access.begin, access.begin + access.bytes);
    return;
  }
  const int64_t stride = static_cast<int64_t>(access.stride);
  for (uint64_t i = 0; i < access.count; ++i) {
    const uint64_t begin = access.begin + static_cast<uint64_t>(static_cast<int64_t>(i) * stride);
    if (begin + access.bytes > low && begin < high) f(begin, begin + access.bytes);
  }
}

std::pair<uint64_t, uint64_t> Span(const GmAccess& access) {
  const int64_t span = static_cast<int64_t>(access.stride) * static_cast<int64_t>(access.count - 1);
  const uint64_t other = access.begin + static_cast<uint64_t>(span);
  return {std::min(access.begin, other), std::max(access.begin, other) + access.bytes};
}

}  // namespace

std::string SweepGm(Launching& launch) {
  // Ranges that somebody writes, merged.
  std::vector<std::pair<uint64_t, uint64_t>> written;
  for (auto& core : launch.cores)
    for (const GmAccess& access : core->accesses)
      if (access.kind != GmAccess::Read) written.push_back(Span(access));
  std::sort(written.begin(), written.end());
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [begin, end] : written) {
    if (!ranges.empty() && begin <= ranges.back().second) {
      ranges.back().second = std::max(ranges.back().second, end);
    } else {
      ranges.emplace_back(begin, end);
    }
  }
  // Every access's pieces inside them, by address.
  std::vector<Piece> pieces;
  for (auto& core : launch.cores)
    for (const GmAccess& access : core->accesses) {
      const auto [low, high] = Span(access);
      auto range = std::upper_bound(ranges.begin(), ranges.end(), std::make_pair(low, UINT64_MAX));
      if (range != ranges.begin()) --range;
      bool touches = false;
      for (; range != ranges.end() && range->first < high; ++range) touches |= range->second > low;
      if (!touches) continue;
      ForEachPiece(access, low, high, [&](uint64_t begin, uint64_t end) {
        pieces.push_back({begin, end, core.get(), &access});
      });
    }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.begin, a.end, a.core->index, a.access->event) < std::tie(b.begin, b.end, b.core->index, b.access->event);
  });
  std::unordered_map<uint64_t, uint8_t> lines;  // of the workspace: written and then read in this launch
  std::vector<const Piece*> open;
  for (const Piece& piece : pieces) {
    size_t kept = 0;
    for (const Piece* other : open) {
      if (other->end <= piece.begin) continue;
      open[kept++] = other;
      if (other->access->kind == GmAccess::Read && piece.access->kind == GmAccess::Read) continue;
      // Of one operation on one type the order does not matter, beyond the rounding of sums, which are ordered by core.
      if (other->access->kind == GmAccess::Atomic && piece.access->kind == GmAccess::Atomic &&
          other->access->op == piece.access->op && other->access->dtype == piece.access->dtype)
        continue;
      const bool forward = Before(*other, piece), backward = Before(piece, *other);
      if (!forward && !backward && !Automatic(*other, piece)) return RaceMessage(*other, piece);
      const Piece* writer = other->access->kind != GmAccess::Read ? other : &piece;
      const Piece* reader = other->access->kind == GmAccess::Read ? other : piece.access->kind == GmAccess::Read ? &piece : nullptr;
      if (reader != nullptr && Before(*writer, *reader) && writer->access->event != reader->access->event)
        for (uint64_t line = std::max(writer->begin, reader->begin) / kLine;
             line <= (std::min(writer->end, reader->end) - 1) / kLine; ++line)
          lines[line] = 1;
    }
    open.resize(kept);
    open.push_back(&piece);
  }
  // What of each instruction's traffic stays in L2: all of the workspace, and reads of what was read before, as long as
  // the launch fits into L2.
  const uint64_t l2 = CurrentChip().l2;
  std::unordered_map<uint64_t, uint8_t> seen;
  uint64_t footprint = 0;
  const auto each_line = [](const GmAccess& access, const std::function<void(uint64_t, uint64_t)>& f) {
    ForEachPiece(access, 0, UINT64_MAX, [&](uint64_t begin, uint64_t end) {
      for (uint64_t line = begin / kLine; line <= (end - 1) / kLine; ++line)
        f(line, std::min(end, (line + 1) * kLine) - std::max(begin, line * kLine));
    });
  };
  for (auto& core : launch.cores)
    for (const GmAccess& access : core->accesses)
      each_line(access, [&](uint64_t line, uint64_t) {
        if (seen.emplace(line, 0).second) footprint += kLine;
      });
  const bool fits = l2 != 0 && footprint <= l2;
  const bool workspace_fits = l2 != 0 && lines.size() * kLine <= l2;
  // The bytes of a line read so far, so that a line read in parts is not counted as read again.
  std::unordered_map<uint64_t, uint32_t> read_bytes;
  for (auto& core : launch.cores)
    for (const GmAccess& access : core->accesses) {
      Event& event = core->events[access.event];
      const bool reads = access.kind == GmAccess::Read;
      each_line(access, [&](uint64_t line, uint64_t bytes) {
        if (workspace_fits && lines.count(line) != 0) {
          event.l2_bytes += static_cast<float>(bytes);
          (reads ? core->l2_read : core->l2_written) += bytes;
        } else if (reads && fits) {
          uint32_t& before = read_bytes[line];
          const uint32_t fresh = std::min<uint32_t>(static_cast<uint32_t>(bytes), kLine - std::min<uint32_t>(before, kLine));
          before += static_cast<uint32_t>(bytes);
          event.hbm_bytes += static_cast<float>(fresh);
          event.l2_bytes += static_cast<float>(bytes - fresh);
          core->hbm_read += fresh;
          core->l2_read += bytes - fresh;
        } else {
          event.hbm_bytes += static_cast<float>(bytes);
          (reads ? core->hbm_read : core->hbm_written) += bytes;
        }
      });
    }
  return "";
}

}  // namespace atbfn::emulator
