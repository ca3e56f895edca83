// On-chip memory: limits, initialisation, and the order of accesses.
//
// Instructions run at once, in program order, so the numbers alone never show a missing flag. Instead every instruction
// takes the next clock of its pipe, and every pipe has a row of clocks that says what it knows to have completed on each
// pipe. Issuing an instruction does not advance what its own pipe knows of itself: that is what makes instructions of one
// pipe overlap until a PipeBarrier. Each granule of memory remembers its last write and reads, and an access that does not
// know of them is a race.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core.h"

namespace atbfn::emulator {

namespace {

uint32_t RawCapacity(Space space) {
  const Chip& chip = CurrentChip();
  switch (space) {
    case Space::UB: return chip.ub;
    case Space::L1: return chip.l1;
    case Space::L0A: return chip.l0a;
    case Space::L0B: return chip.l0b;
    case Space::L0C: return chip.l0c;
    case Space::BT: return chip.bt;
    case Space::FB: return chip.fb;
    default: return 0;
  }
}

// What a tensor with an address of its own may lie in. The end of L1 that TPipe keeps for the framework's messages is free
// in a program that places its tensors itself; the end of UB is too as long as no instruction needs it, which is tolerated.
uint32_t Addressable(Space space) {
  return space == Space::L1 || !GlobalOptions().strict ? RawCapacity(space) : Capacity(space);
}

// Compilers insert these edges on vector cores unless told not to.
bool AutoSync(const Core& core, Pipe a, Pipe b) {
  if (!core.vector) return false;
  if (a == Pipe::V && b == Pipe::V) return true;
  const Pipe other = a == Pipe::S ? b : a;
  return (a == Pipe::S || b == Pipe::S) && (other == Pipe::V || other == Pipe::MTE2 || other == Pipe::MTE3);
}

const char* Verb(bool writes) { return writes ? "writes" : "reads"; }

}  // namespace

uint32_t Capacity(Space space) {
  const Chip& chip = CurrentChip();
  const uint32_t reserved = space == Space::UB ? chip.ub_reserved : space == Space::L1 ? chip.l1_reserved : 0;
  return RawCapacity(space) - reserved;
}

void PrepareMemory(Core& core) {
  for (int s = 0; s < static_cast<int>(Space::GM); ++s) {
    const Space space = static_cast<Space>(s);
    const bool has = CurrentChip().unified || (space == Space::UB ? core.vector : core.cube);
    Memory& memory = core.at(space);
    memory.capacity = has ? RawCapacity(space) : 0;
    if (memory.capacity == 0) continue;
    // calloc gives untouched pages for free: a launch of many cores uses what its kernels touch.
    memory.bytes = {static_cast<uint8_t*>(std::calloc(memory.capacity + 64, 1)), std::free};
    memory.granules.resize((memory.capacity + 31) / 32);
  }
}

std::string OperandText(const Core& core, const Tensor& tensor, Where where, int argument) {
  std::string text = ArgumentText(where, argument);
  text = text.empty() ? Format("operand %d", argument + 1) : "`" + text + "`";
  if (tensor.buffer > 0 && tensor.buffer <= core.buffers.size()) text += std::string(" of ") + BufferName(tensor.buffer);
  return text;
}

const char* BufferName(uint32_t number) {
  // One message may name several.
  thread_local std::string texts[4];
  thread_local unsigned next = 0;
  std::string& text = texts[next++ % 4];
  Core& core = Current();
  if (number == 0 || number > core.buffers.size()) return "no queue";
  const Where made = core.buffers[number - 1].made;
  const std::string name = ArgumentText(made, 0);
  text = (name.empty() ? "the queue" : "queue `" + name + "`") + Format(" (initialised at line %d)", made.line);
  return text.c_str();
}

// ------------------------------------------------------------------------------------------------------- allocation

uint32_t Reserve(Space space, uint64_t bytes, const char* what, Where where) {
  Core& core = Current();
  Memory& memory = core.at(space);
  if (memory.capacity == 0)
    Refuse("core", where, "%s: this core (%s) has no %s", what, core.label.c_str(), Name(space));
  const uint32_t capacity = Capacity(space);
  if (memory.reserved + bytes > capacity) {
    const std::string queue = ArgumentText(where, 0);
    const std::string text = Format(
        "%s%s: %llu bytes of %s asked for, %u are taken already: %llu together, the %s has %u for kernels%s; use smaller "
        "tiles or fewer buffers",
        what, queue.empty() ? "" : (" of `" + queue + "`").c_str(), static_cast<unsigned long long>(bytes), Name(space),
        memory.reserved, static_cast<unsigned long long>(memory.reserved + bytes), CurrentChip().name, capacity,
        capacity == memory.capacity ? "" : Format(" (%u, of which the framework keeps %u)", memory.capacity,
                                                  memory.capacity - capacity).c_str());
    if (memory.reserved + bytes > memory.capacity) Refuse("capacity", where, "%s", text.c_str());
    Tolerate(core, "capacity", where, text);
  }
  const uint32_t address = memory.reserved;
  memory.reserved += static_cast<uint32_t>(bytes);
  memory.peak = std::max(memory.peak, memory.reserved);
  return address;
}

void Place(Space space, uint64_t address, uint64_t bytes, Where where) {
  Core* core = CurrentOrNull();
  if (core == nullptr || space == Space::GM) return;
  Memory& memory = core->at(space);
  if (memory.capacity == 0) return;  // one object may hold the tensors of both kinds of cores: their use is refused
  if (address % 32 != 0)
    Refuse("alignment", where, "a tensor in %s starts at byte %llu, which is no multiple of 32", Name(space),
           static_cast<unsigned long long>(address));
  const uint64_t usable = space == Space::L1 ? RawCapacity(space) : Capacity(space);
  if (address + bytes > usable) {
    const std::string text = Format("a tensor of %llu bytes at byte %llu of %s ends at %llu: the %s has %llu for kernels",
                                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address),
                                    Name(space), static_cast<unsigned long long>(address + bytes), CurrentChip().name,
                                    static_cast<unsigned long long>(usable));
    if (address + bytes > RawCapacity(space)) Refuse("capacity", where, "%s", text.c_str());
    Tolerate(*core, "capacity", where, text);
  }
  memory.peak = std::max(memory.peak, static_cast<uint32_t>(address + bytes));
  for (size_t i = 0; i < core->buffers.size(); ++i) {
    const Buffer& other = core->buffers[i];
    if (other.space != space || other.taken != nullptr || other.address >= address + bytes || address >= other.address + other.bytes)
      continue;
    Tolerate(*core, "overlap", where,
             Format("a tensor of %llu bytes at byte %llu of %s lies in %s, which a TPipe has given out; tensors with addresses of "
                    "their own and a TPipe exclude each other", static_cast<unsigned long long>(bytes),
                    static_cast<unsigned long long>(address), Name(space), BufferName(static_cast<uint32_t>(i + 1))));
    break;
  }
}

void ResetReserved() {
  for (Memory& memory : Current().memory) memory.reserved = 0;
}
uint32_t ReservedEnd(Space space) { return Current().at(space).reserved; }
void SetReservedEnd(Space space, uint32_t address) { Current().at(space).reserved = address; }

uint32_t NewBuffer(Space space, uint8_t position, uint32_t address, uint32_t bytes, Where where) {
  Core& core = Current();
  for (size_t i = 0; i < core.buffers.size(); ++i) {
    const Buffer& other = core.buffers[i];
    if (other.space == space && other.taken == nullptr && other.address < address + bytes && address < other.address + other.bytes)
      TakeBuffer(static_cast<uint32_t>(i + 1), "its memory was given to another buffer", where);
  }
  core.buffers.push_back({space, position, address, bytes, 0, true, where, {}, nullptr});
  return static_cast<uint32_t>(core.buffers.size());
}

uint32_t UseBuffer(uint32_t number, Where where) {
  Core& core = Current();
  Buffer& buffer = core.buffers[number - 1];
  if (buffer.taken != nullptr)
    Throw(&core, Message("error", where, "use-after-free",
                         Format("AllocTensor from %s after %s", BufferName(number), buffer.taken)) +
                     Note(buffer.freed, "here") + Help("InitBuffer the queue again first"));
  int taken = 0;
  for (const Buffer& other : core.buffers)
    taken += other.live && other.use != 0 && other.space == buffer.space && other.position == buffer.position;
  const int most = CurrentChip().arch == 2201 || CurrentChip().arch == 3510 ? 8 : 0;  // elsewhere fewer, by other rules
  if (most != 0 && taken >= most)
    Refuse("queue", where, "AllocTensor from %s: %d tensors of queues at its position are allocated already, and no more than "
           "%d may be; FreeTensor one first", BufferName(number), taken, most);
  buffer.live = true;
  Memory& memory = core.at(buffer.space);
  for (uint32_t g = buffer.address / 32; g < (buffer.address + buffer.bytes) / 32 && g < memory.granules.size(); ++g)
    memory.granules[g].written = 0;
  return ++buffer.use;
}

void EndBuffer(uint32_t number, Where where) {
  Buffer& buffer = Current().buffers[number - 1];
  buffer.live = false;
  buffer.freed = where;
}

void TakeBuffer(uint32_t number, const char* how, Where where) {
  Buffer& buffer = Current().buffers[number - 1];
  if (buffer.taken != nullptr) return;
  buffer.live = false;
  buffer.freed = where;
  buffer.taken = how;
}

void TakeBuffers(const char* how, Where where) {
  for (size_t i = 0; i < Current().buffers.size(); ++i) TakeBuffer(static_cast<uint32_t>(i + 1), how, where);
}

void CheckUse(const Tensor& tensor, const char* api, Where where) {
  if (tensor.buffer == 0) return;
  Core& core = Current();
  if (tensor.buffer > core.buffers.size()) return;
  const Buffer& buffer = core.buffers[tensor.buffer - 1];
  if (buffer.live && (tensor.use == 0 || buffer.use == tensor.use)) return;
  if (buffer.taken != nullptr)
    Throw(&core, Message("error", where, "use-after-free",
                         Format("%s uses a tensor of %s after %s", api, BufferName(tensor.buffer), buffer.taken)) +
                     Note(buffer.freed, "here") + Help("take a tensor of a buffer that is initialised now"));
  Throw(&core, Message("error", where, "use-after-free",
                       Format("%s uses a tensor of %s after FreeTensor gave it back", api, BufferName(tensor.buffer))) +
                   Note(buffer.freed, buffer.live ? "and the buffer was allocated again since" : "given back here") +
                   Help("move the FreeTensor behind the last use, or AllocTensor again"));
}

// --------------------------------------------------------------------------------------------------- the instruction

Instruction::Instruction(Pipe pipe, const char* name, Unit unit, Where where)
    : core_(Current()), pipe_(pipe), name_(name), where_(where) {
  if ((unit == Unit::Vector && !core_.vector) || (unit == Unit::Cube && !core_.cube))
    fail("core", "%s is an instruction of the %s core, and this is %s; guard it with `if ASCEND_IS_%s`", name,
         unit == Unit::Vector ? "vector" : "cube", core_.label.c_str(), unit == Unit::Vector ? "AIV" : "AIC");
  if (!CurrentChip().unified && ((pipe == Pipe::V && !core_.vector) ||
                                 ((pipe == Pipe::M || pipe == Pipe::MTE1 || pipe == Pipe::FIX) && !core_.cube)))
    fail("core", "%s runs on pipe %s, which %s has not", name, Name(pipe), core_.label.c_str());
  const int p = static_cast<int>(pipe);
  clock_ = ++core_.clock[static_cast<size_t>(p)];
  if (pipe == Pipe::S) core_.known[p][static_cast<size_t>(p)] = clock_;  // scalar instructions run one after the other
  core_.by_clock[p].push_back(static_cast<uint32_t>(core_.events.size()));
  Event event;
  event.pipe = pipe;
  event.name = name;
  event.where = where;
  core_.events.push_back(event);
}

Instruction::~Instruction() {
  Event& event = core_.events[core_.by_clock[static_cast<int>(pipe_)][clock_ - 1]];
  event.cycles = static_cast<float>(cycles_);
  event.gm_read = static_cast<uint32_t>(std::min<uint64_t>(gm_read_, UINT32_MAX));
  event.gm_written = static_cast<uint32_t>(std::min<uint64_t>(gm_written_, UINT32_MAX));
  ++core_.instructions[static_cast<int>(pipe_)];
  core_.macs += macs_;
  core_.elements += elements_;
  core_.cycles += cycles_;
}

void Instruction::require(bool ok, const char* rule, const char* format, ...) {
  if (ok) return;
  va_list args;
  va_start(args, format);
  const std::string text = Format(format, args);
  va_end(args);
  fail(rule, "%s: %s", name_, text.c_str());
}

void Instruction::fail(const char* rule, const char* format, ...) {
  va_list args;
  va_start(args, format);
  const std::string text = Format(format, args);
  va_end(args);
  Throw(&core_, Message("error", where_, rule, text));
}

uint8_t* Instruction::data(const Tensor& tensor) const { return core_.at(tensor.space).bytes.get() + tensor.address; }

void Instruction::align(const Tensor& tensor, uint32_t bytes, int argument) {
  if (tensor.address % bytes != 0)
    fail("alignment", "%s: %s starts at byte %u of %s, which is no multiple of %u", name_,
         OperandText(core_, tensor, where_, argument).c_str(), tensor.address, Name(tensor.space), bytes);
}

void Instruction::disjoint(const Tensor& a, int64_t a_offset, int64_t a_bytes, const Tensor& b, int64_t b_offset,
                           int64_t b_bytes, int a_argument, int b_argument) {
  if (a.space != b.space) return;
  const int64_t a0 = a.address + a_offset, b0 = b.address + b_offset;
  if (a0 >= b0 + b_bytes || b0 >= a0 + a_bytes) return;
  if (a0 == b0 && a_bytes == b_bytes) return;
  fail("overlap", "%s: %s [%lld, %lld) and %s [%lld, %lld) of %s overlap without being the same; operands of one "
       "instruction coincide or are apart", name_, OperandText(core_, a, where_, a_argument).c_str(),
       static_cast<long long>(a0), static_cast<long long>(a0 + a_bytes),
       OperandText(core_, b, where_, b_argument).c_str(), static_cast<long long>(b0),
       static_cast<long long>(b0 + b_bytes), Name(a.space));
}

void Instruction::lies_in(const Tensor& tensor, uint32_t spaces, int argument) {
  if (spaces >> static_cast<int>(tensor.space) & 1u) return;
  std::string legal;
  for (int s = 0; s < kSpaces; ++s)
    if (spaces >> s & 1u) legal += (legal.empty() ? "" : " or ") + std::string(Name(static_cast<Space>(s)));
  fail("position", "%s: %s lies in %s, it must lie in %s", name_, OperandText(core_, tensor, where_, argument).c_str(),
       Name(tensor.space), legal.c_str());
}

void Instruction::dtype_in(const Tensor& tensor, uint32_t dtypes, int argument) {
  if (dtypes >> static_cast<int>(tensor.dtype) & 1u) return;
  std::string legal;
  for (int d = 0; d < static_cast<int>(DType::Other); ++d)
    if (dtypes >> d & 1u) legal += (legal.empty() ? "" : ", ") + std::string(Name(static_cast<DType>(d)));
  fail("dtype", "%s: %s is %s; on the %s it may be %s", name_, OperandText(core_, tensor, where_, argument).c_str(),
       Name(tensor.dtype), CurrentChip().name, legal.c_str());
}

// An access meets an earlier one that its pipe does not know to have completed.
void Instruction::hazard(const Tensor& tensor, uint32_t address, bool writing, Pipe other, uint32_t clock,
                         bool other_writes, int argument) {
  const Event& earlier = core_.events[core_.by_clock[static_cast<int>(other)][clock - 1]];
  const bool same = other == pipe_;
  const bool automatic = AutoSync(core_, other, pipe_);
  // Two that published programs which work do without a barrier: accumulating small results, where the documentation asks
  // for one, and loading an operand again before the cube unit has used it.
  const bool accumulating = same && pipe_ == Pipe::M && tensor.space == Space::L0C;
  const bool reloading = same && pipe_ == Pipe::MTE1 && writing && other_writes;
  const bool tolerated = (automatic || accumulating || reloading) && !GlobalOptions().strict;
  std::string text = Format(
      "%s on pipe %s %s %s, byte %u of %s, which %s on pipe %s %s before: nothing orders the two", name_, Name(pipe_),
      Verb(writing), OperandText(core_, tensor, where_, argument).c_str(), address, Name(tensor.space), earlier.name,
      Name(other), Verb(other_writes));
  std::string help =
      same ? Format("PipeBarrier<PIPE_%s>() between the two", Name(pipe_))
           : Format("SetFlag<HardEvent::%s_%s>(id) after the first and WaitFlag<HardEvent::%s_%s>(id) before the second%s",
                    Name(other), Name(pipe_), Name(other), Name(pipe_),
                    tensor.buffer != 0 && !same ? ", or EnQue and DeQue between them" : "");
  if (!tolerated) {
    Throw(&core_, Message("error", where_, automatic ? "auto-sync" : "race", text) +
                      Note(earlier.where, std::string(earlier.name) + " is here") + Help(help));
  }
  // The compiler (or the unit) orders them; from here on the pipe knows.
  core_.known[static_cast<int>(pipe_)][static_cast<size_t>(other)] =
      std::max(core_.known[static_cast<int>(pipe_)][static_cast<size_t>(other)], same ? clock_ - 1 : clock);
  core_.changed(pipe_);
  const std::array<uint64_t, 4> key = {reinterpret_cast<uint64_t>(where_.file), static_cast<uint64_t>(where_.line),
                                       reinterpret_cast<uint64_t>(earlier.where.file),
                                       static_cast<uint64_t>(earlier.where.line)};
  if (core_.warnings.count(key) == 0)
    core_.warnings[key] = Message("warning", where_, accumulating || reloading ? "race" : "auto-sync",
                                  text + (accumulating ? "; for results of fewer than ten fractals the documentation asks for "
                                                         "a barrier, for more the unit keeps the order"
                                          : reloading ? "; nothing has used what the first has loaded"
                                                      : "; the compiler's auto-sync does")) +
                          Note(earlier.where, std::string(earlier.name) + " is here") + Help(help);
}

void Instruction::compare_register(bool writing) {
  if (writing) {
    core_.compare_clock = clock_;
    return;
  }
  constexpr int v = static_cast<int>(Pipe::V);
  if (core_.compare_clock <= core_.known[v][v] || CurrentChip().arch == 3510) return;
  const Event& earlier = core_.events[core_.by_clock[v][core_.compare_clock - 1]];
  const std::string text = Format("%s reads the compare register, which %s writes before: nothing orders the two", name_, earlier.name);
  const std::string rest = Note(earlier.where, std::string(earlier.name) + " is here") + Help("PipeBarrier<PIPE_V>() between the two");
  if (GlobalOptions().strict) Throw(&core_, Message("error", where_, "auto-sync", text) + rest);
  const std::array<uint64_t, 4> key = {reinterpret_cast<uint64_t>(where_.file), static_cast<uint64_t>(where_.line),
                                       reinterpret_cast<uint64_t>(earlier.where.file),
                                       static_cast<uint64_t>(earlier.where.line)};
  if (core_.warnings.count(key) == 0)
    core_.warnings[key] = Message("warning", where_, "auto-sync", text + "; the compiler's auto-sync does") + rest;
}

void Instruction::touch(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count,
                        int64_t stride, bool writing) {
  if (bytes <= 0 || count <= 0) return;
  Memory& memory = core_.at(tensor.space);
  if (memory.capacity == 0)
    fail("core", "%s: %s lies in %s, which this core (%s) has not", name_,
         OperandText(core_, tensor, where_, argument).c_str(), Name(tensor.space), core_.label.c_str());
  CheckUse(tensor, name_, where_);
  const int64_t first = static_cast<int64_t>(tensor.address) + offset;
  const int64_t last = first + (count - 1) * stride;
  const int64_t low = std::min(first, last), high = std::max(first, last) + bytes;
  if (low < 0 || high > static_cast<int64_t>(Addressable(tensor.space)))
    fail("capacity", "%s: %s reaches byte %lld of %s: the %s has %u for kernels", name_,
         OperandText(core_, tensor, where_, argument).c_str(), static_cast<long long>(low < 0 ? low : high),
         Name(tensor.space), CurrentChip().name, Addressable(tensor.space));
  if (tensor.buffer != 0) {
    const Buffer& buffer = core_.buffers[tensor.buffer - 1];
    if (low < buffer.address || high > static_cast<int64_t>(buffer.address) + buffer.bytes)
      fail("out-of-bounds", "%s: %s is %s from byte %lld to %lld, but its buffer has %u bytes", name_,
           OperandText(core_, tensor, where_, argument).c_str(), writing ? "written" : "read",
           static_cast<long long>(low - buffer.address), static_cast<long long>(high - buffer.address), buffer.bytes);
  }
  memory.peak = std::max(memory.peak, static_cast<uint32_t>(high));
  const int s = static_cast<int>(tensor.space);
  (writing ? core_.written_bytes : core_.read_bytes)[s] += static_cast<uint64_t>(bytes * count);
  Event& event = core_.events[core_.by_clock[static_cast<int>(pipe_)][clock_ - 1]];
  (writing ? event.local_written : event.local_read) += static_cast<uint32_t>(bytes * count);

  const int p = static_cast<int>(pipe_);
  const Clocks& known = core_.known[p];
  const bool vector_ordered = CurrentChip().arch == 3510 && pipe_ == Pipe::V;
  const auto knows = [&](Pipe other, uint32_t clock) {
    return known[static_cast<size_t>(other)] >= clock || (ordered_ >> static_cast<int>(other) & 1u) ||
           (other == pipe_ && (clock == clock_ || vector_ordered));
  };
  const auto check = [&](Cell& cell, uint32_t address) {
    if (cell.write_clock != 0 && !knows(cell.write_pipe, cell.write_clock))
      hazard(tensor, address, writing, cell.write_pipe, cell.write_clock, true, argument);
    if (writing) {
      for (int q = 0; q < kPipes; ++q)
        if (cell.read_clock[static_cast<size_t>(q)] != 0 && q != p &&
            !knows(static_cast<Pipe>(q), cell.read_clock[static_cast<size_t>(q)]))
          hazard(tensor, address, writing, static_cast<Pipe>(q), cell.read_clock[static_cast<size_t>(q)], false, argument);
      cell.write_clock = clock_;
      cell.write_pipe = pipe_;
      cell.read_clock = {};
    } else {
      cell.read_clock[static_cast<size_t>(p)] = clock_;
    }
  };

  // The same for the usual case, whole granules in order, without branches: what each pipe may have done at most.
  uint32_t write_limit[kPipes], read_limit[kPipes];
  for (int q = 0; q < kPipes; ++q) {
    const bool ordered = ordered_ >> q & 1u;
    write_limit[q] = ordered || (q == p && vector_ordered) ? UINT32_MAX : known[static_cast<size_t>(q)];
    read_limit[q] = ordered || q == p ? UINT32_MAX : known[static_cast<size_t>(q)];
  }
  for (int64_t piece = 0; piece < count; ++piece) {
    const uint32_t begin = static_cast<uint32_t>(first + piece * stride), end = begin + static_cast<uint32_t>(bytes);
    for (uint32_t g = begin / 32; g <= (end - 1) / 32; ++g) {
      Granule& granule = memory.granules[g];
      Cell& whole = granule.cell;
      if (begin <= g * 32 && g * 32 + 32 <= end && granule.split < 0 &&
          whole.write_clock <= write_limit[static_cast<int>(whole.write_pipe)]) {
        if (!writing && granule.written == ~0u) {
          whole.read_clock[static_cast<size_t>(p)] = clock_;
          continue;
        }
        uint32_t late = 0;
#pragma GCC unroll 8
        for (int q = 0; q < kPipes; ++q) late |= whole.read_clock[static_cast<size_t>(q)] > read_limit[q] ? 1u : 0u;
        if (writing && late == 0) {
          whole.write_clock = clock_;
          whole.write_pipe = pipe_;
          whole.read_clock = {};
          granule.written = ~0u;
          continue;
        }
      }
      const uint32_t from = std::max(begin, g * 32) - g * 32, to = std::min(end, g * 32 + 32) - g * 32;
      const uint32_t mask = to - from == 32 ? ~0u : ((1u << (to - from)) - 1u) << from;
      if (writing) {
        granule.written |= mask;
      } else if (!undefined_allowed_ && (granule.written & mask) != mask && !(blocks_ && granule.written != 0)) {
        uint32_t byte = from;
        while (granule.written >> byte & 1u) ++byte;
        fail("uninitialised", "%s reads %s at byte %u of %s, which nothing has written%s", name_,
             OperandText(core_, tensor, where_, argument).c_str(), g * 32 + byte, Name(tensor.space),
             tensor.use != 0 ? " since AllocTensor" : "");
      }
      if (mask == ~0u && granule.split < 0) {
        check(granule.cell, g * 32);
        continue;
      }
      if (granule.split < 0) {
        if (memory.free_splits.empty()) {
          granule.split = static_cast<int32_t>(memory.splits.size());
          memory.splits.emplace_back();
        } else {
          granule.split = memory.free_splits.back();
          memory.free_splits.pop_back();
        }
        memory.splits[static_cast<size_t>(granule.split)].fill(granule.cell);
      }
      auto& cells = memory.splits[static_cast<size_t>(granule.split)];
      for (uint32_t c = from / 2; c <= (to - 1) / 2; ++c) check(cells[c], g * 32 + c * 2);
      if (mask == ~0u && writing) {  // whole again
        granule.cell = cells[0];
        memory.free_splits.push_back(granule.split);
        granule.split = -1;
      }
    }
  }
}

const uint8_t* Instruction::read(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count,
                                 int64_t stride) {
  touch(tensor, offset, bytes, argument, count, stride, false);
  return data(tensor) + offset;
}

const uint8_t* Instruction::read_any(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count,
                                     int64_t stride) {
  undefined_allowed_ = true;
  touch(tensor, offset, bytes, argument, count, stride, false);
  undefined_allowed_ = false;
  return data(tensor) + offset;
}

uint8_t* Instruction::write(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count,
                            int64_t stride) {
  touch(tensor, offset, bytes, argument, count, stride, true);
  return data(tensor) + offset;
}

const uint8_t* Instruction::read(const Global& global, int64_t offset, int64_t bytes, int argument, int64_t count,
                                 int64_t stride) {
  return touch(global, offset, bytes, argument, count, stride, false);
}

uint8_t* Instruction::write(const Global& global, int64_t offset, int64_t bytes, int argument, int64_t count,
                            int64_t stride) {
  return touch(global, offset, bytes, argument, count, stride, true);
}

uint8_t* Instruction::touch(const Global& global, int64_t offset, int64_t bytes, int argument, int64_t count,
                            int64_t stride, bool writing) {
  uint8_t* start = global.address + offset;
  if (bytes <= 0 || count <= 0) return start;
  const int64_t span = (count - 1) * stride;
  const uint64_t low = reinterpret_cast<uint64_t>(start) + static_cast<uint64_t>(std::min<int64_t>(span, 0));
  const uint64_t high = reinterpret_cast<uint64_t>(start) + static_cast<uint64_t>(std::max<int64_t>(span, 0) + bytes);
  const Allocation* allocation = global.address == nullptr ? nullptr : FindAllocation(low);
  if (allocation == nullptr || high > (blocks_ ? allocation->blocks_end : allocation->end)) {
    const std::string operand = GlobalText(global, where_, argument);
    if (global.address == nullptr)
      fail("out-of-bounds", "%s: %s has no buffer; call SetGlobalBuffer with the address first", name_, operand.c_str());
    if (allocation == nullptr) allocation = FindAllocation(reinterpret_cast<uint64_t>(global.address));
    if (allocation == nullptr)
      fail("out-of-bounds", "%s: %s is %s at an address that belongs to no device memory", name_, operand.c_str(),
           writing ? "written" : "read");
    fail("out-of-bounds", "%s: %s is %s from byte %lld to byte %lld of %s, which has %llu bytes", name_, operand.c_str(),
         writing ? "written" : "read", static_cast<long long>(low - allocation->begin),
         static_cast<long long>(high - allocation->begin), allocation->name.c_str(),
         static_cast<unsigned long long>(allocation->end - allocation->begin));
  }
  const uint64_t total = static_cast<uint64_t>(bytes) * static_cast<uint64_t>(count);
  (writing ? gm_written_ : gm_read_) += total;
  (writing ? core_.written_bytes : core_.read_bytes)[static_cast<int>(Space::GM)] += total;
  const int p = static_cast<int>(pipe_);
  if (core_.version_of[p] < 0) {
    core_.version_of[p] = static_cast<int32_t>(core_.known_versions.size());
    core_.known_versions.push_back(core_.known[p]);
  }
  GmAccess access;
  access.begin = reinterpret_cast<uint64_t>(start);
  access.bytes = static_cast<uint64_t>(bytes);
  access.count = static_cast<uint64_t>(count);
  access.stride = static_cast<uint64_t>(stride);
  if (count > 1 && stride == bytes) {
    access.bytes = total;
    access.count = 1;
  }
  access.event = core_.by_clock[p][clock_ - 1];
  access.clock = clock_;
  access.known = static_cast<uint32_t>(core_.version_of[p]);
  access.others = static_cast<uint32_t>(core_.others_versions.size() - 1);
  access.pipe = pipe_;
  access.kind = !writing ? GmAccess::Read
                : core_.registers.atomic != 0 && (pipe_ == Pipe::MTE3 || pipe_ == Pipe::FIX) ? GmAccess::Atomic
                                                                                             : GmAccess::Write;
  access.dtype = global.dtype;
  access.op = 0;
  if (access.kind == GmAccess::Atomic) {
    if (core_.registers.atomic_dtype != DType::Other) access.dtype = core_.registers.atomic_dtype;
    access.op = static_cast<int8_t>(core_.registers.atomic);
  } else {
    SettleAtomics(*core_.launch, low, high);
  }
  core_.accesses.push_back(access);
  return start;
}

void Instruction::store(uint8_t* to, const void* from, int64_t bytes, DType dtype) {
  const int op = pipe_ == Pipe::MTE3 || pipe_ == Pipe::FIX ? core_.registers.atomic : 0;
  if (op == 0) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  if (core_.registers.atomic_dtype != DType::Other) dtype = core_.registers.atomic_dtype;
  const uint8_t* source = static_cast<const uint8_t*>(from);
  if (op == 1 && (dtype == DType::F32 || dtype == DType::F16 || dtype == DType::BF16)) {
    // Sums of floats depend on their order: they wait until somebody looks, and are then added in the order of the cores.
    std::lock_guard<std::mutex> lock(core_.launch->atomics_mutex);
    ++core_.launch->pending_atomics;
    core_.atomics.push_back({to, dtype, core_.registers.saturate, std::vector<uint8_t>(source, source + bytes)});
  } else {
    // Sums that wait for these bytes came first, or the two race.
    const uint64_t begin = reinterpret_cast<uint64_t>(to);
    SettleAtomics(*core_.launch, begin, begin + static_cast<uint64_t>(bytes));
    std::lock_guard<std::mutex> lock(core_.launch->mutex);
    CombineAtomic(to, source, static_cast<size_t>(bytes), dtype, op, core_.registers.saturate);
  }
}

// ------------------------------------------------------------------------------------------------------ scalar access

void ScalarRead(const Tensor& tensor, int64_t offset, void* to, int64_t bytes, Where where) {
  Instruction in(Pipe::S, "GetValue", Unit::Any, where);
  std::memcpy(to, in.read(tensor, offset, bytes, -1), static_cast<size_t>(bytes));
  in.cycles(1);
}
void ScalarWrite(const Tensor& tensor, int64_t offset, const void* from, int64_t bytes, Where where) {
  Instruction in(Pipe::S, "SetValue", Unit::Any, where);
  std::memcpy(in.write(tensor, offset, bytes, -1), from, static_cast<size_t>(bytes));
  in.cycles(1);
}
void ScalarRead(const Global& global, int64_t offset, void* to, int64_t bytes, Where where) {
  Instruction in(Pipe::S, "GetValue", Unit::Any, where);
  std::memcpy(to, in.read(global, offset, bytes, -1), static_cast<size_t>(bytes));
  in.cycles(1);
}
void ScalarWrite(const Global& global, int64_t offset, const void* from, int64_t bytes, Where where) {
  Instruction in(Pipe::S, "SetValue", Unit::Any, where);
  std::memcpy(in.write(global, offset, bytes, -1), from, static_cast<size_t>(bytes));
  in.cycles(1);
}

}  // namespace atbfn::emulator
