// A core and a launch, as the runtime sees them. Nothing here is visible to kernels.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "atbfn/emulator.h"

namespace atbfn::emulator {

// What is known to have completed, as a clock per pipe. The last slot counts the core's waits for other cores.
constexpr int kSlots = kPipes + 1;
constexpr int kWaits = kPipes;
using Clocks = std::array<uint32_t, kSlots>;

// The same of all cores: [core][slot]. Shared between snapshots, since it changes only when cores meet.
using Knowledge = std::vector<Clocks>;
using SharedKnowledge = std::shared_ptr<const Knowledge>;

// ------------------------------------------------------------------------------------------------------------ events

enum class Step : uint8_t { Instruction, SetFlag, WaitFlag, Barrier, CrossSet, CrossWait };

// What a core did, in program order: the log that names the other side of a race, and what the timeline is made from.
struct Event {
  Step step = Step::Instruction;
  Pipe pipe = Pipe::S;      // that it runs on, or that sets a flag
  Pipe to = Pipe::S;        // that waits for a flag
  int32_t id = 0;           // of the flag; of the meeting for CrossSet and CrossWait
  const char* name = "";
  Where where{};
  float cycles = 0;
  uint32_t gm_read = 0, gm_written = 0;     // bytes
  uint32_t local_read = 0, local_written = 0;
  float hbm_bytes = 0, l2_bytes = 0;        // filled after the launch
  double start = 0, end = 0;                // filled by the timeline, seconds
};

// ---------------------------------------------------------------------------------------------------- on-chip memory

// Who last wrote and read some bytes: 32 of them, or 2 where an instruction touched a part only.
struct Cell {
  uint32_t write_clock = 0;
  Pipe write_pipe = Pipe::S;
  std::array<uint32_t, kPipes> read_clock{};
};

struct Granule {
  Cell cell;
  uint32_t written = 0;  // a bit for each of the 32 bytes: initialised
  int32_t split = -1;    // index of the 16 cells of 2 bytes
};

struct Memory {
  std::unique_ptr<uint8_t, void (*)(void*)> bytes{nullptr, nullptr};
  uint32_t capacity = 0;
  std::vector<Granule> granules;
  std::vector<std::array<Cell, 16>> splits;
  std::vector<int32_t> free_splits;
  uint32_t reserved = 0;  // by TPipe, from the start
  uint32_t peak = 0;      // highest byte handed out or touched
};

struct Buffer {
  Space space;
  uint8_t position;
  uint32_t address, bytes, use;
  bool live;
  Where made, freed;
  const char* taken;  // what gave the memory back for good; null while the buffer exists
};

struct Flag {
  bool set = false;
  Where where{};
  Clocks known{};
};

// ------------------------------------------------------------------------------------------------------------- in GM

struct GmAccess {
  enum Kind : uint8_t { Read, Write, Atomic };
  uint64_t begin, bytes;   // one piece
  uint64_t count, stride;
  uint32_t event;          // index into the core's events
  uint32_t clock;
  uint32_t known;          // index into the core's snapshots of its own pipes
  uint32_t others;         // index into the core's snapshots of the other cores
  Pipe pipe;
  Kind kind;
  DType dtype;
  int8_t op;  // of an atomic
};

struct PendingAtomic {
  uint8_t* to;
  DType dtype;
  bool saturate;
  std::vector<uint8_t> values;
};

// ------------------------------------------------------------------------------------------------------------- cores

struct Launching;

// A refusal on its way out of a kernel.
struct Refusal {
  std::string text;
};

struct Core {
  Launching* launch = nullptr;
  int index = 0;        // among all cores of the launch
  bool cube = false, vector = false;
  int block = 0, sub = 0;
  std::string label;    // "AIV 3"

  Memory memory[kSpaces];
  std::vector<Buffer> buffers;
  Registers registers;
  uint32_t compare_clock = 0;  // on V, of the last write of the compare register
  Where unit_flag_set{};    // the last Mmad that left unit flags set
  uint16_t merged[4] = {};  // what the last MrgSort took of each list
  void* pointers[4] = {};

  Clocks clock{};                              // issued, by pipe
  std::array<Clocks, kPipes> known{};          // known[p][q]: of q, completed before what p does next
  Flag flags[kPipes][kPipes][8];
  uint8_t events_taken[kPipes][kPipes] = {};   // ids given by AllocEvent
  SharedKnowledge others;

  std::vector<Event> events;
  std::vector<uint32_t> by_clock[kPipes];      // clock - 1 -> index into events
  std::vector<GmAccess> accesses;
  std::vector<Clocks> known_versions;
  std::vector<SharedKnowledge> others_versions;
  int32_t version_of[kPipes];                  // of known[p] in known_versions, -1 when it changed since
  std::vector<PendingAtomic> atomics;          // sums not yet added; guarded by the launch's atomics_mutex

  uint64_t read_bytes[kSpaces] = {}, written_bytes[kSpaces] = {};
  uint64_t instructions[kPipes] = {};
  uint64_t macs = 0, elements = 0;
  double cycles = 0;
  uint64_t hbm_read = 0, hbm_written = 0, l2_read = 0, l2_written = 0;  // bytes; filled after the launch

  std::map<std::array<uint64_t, 4>, std::string> warnings;  // by the two places, so that a loop warns once
  std::string output;
  std::unique_ptr<Refusal> refusal;
  bool unwinding = false;

  // Scheduling; guarded by the launch's mutex.
  enum State { Ready, Running, Waiting, Done } state = Ready;
  std::function<bool()> wake;
  Where waiting_at{};
  std::string waiting_for;
  std::condition_variable resumed;
  std::deque<std::pair<SharedKnowledge, int32_t>> arrived[16];  // cross-core flags: what the setter knew, and its meeting
  uint32_t arrivals[16] = {};
  std::vector<uint32_t> wait_clocks[16];       // the kWaits clock of each CrossCoreWait on the flag
  Where last_set[16]{};
  Where used_by_sync{};                        // the last flag of those that SyncAll uses too
  Where synced{};                              // the last SyncAll of that kind
  std::deque<size_t> unmet[16];                // cross-core sets whose meeting is not complete, by index into events
  std::vector<std::pair<size_t, int32_t>> meeting_of;  // and the meetings they became part of
  std::pair<SharedKnowledge, int32_t> sync_done{nullptr, -1};  // the SyncAll that this core waits in has met

  Memory& at(Space space) { return memory[static_cast<int>(space)]; }
  void learn(Pipe pipe, const Clocks& clocks);
  void changed(Pipe pipe) { version_of[static_cast<int>(pipe)] = -1; }
  void changed_all() { for (int32_t& v : version_of) v = -1; }
  // Everything that this core knows of all cores once `pipe` has done what it was given so far.
  SharedKnowledge snapshot(Pipe pipe) const;
  void learn(const SharedKnowledge& what);
};

struct Meeting {                       // cores that set a cross-core flag together
  std::vector<std::deque<SharedKnowledge>> given;  // by member
};

struct Options {
  bool strict = false;
  bool approximate = false;
  int threads = 0;
  long seed = -1;
  bool color = false;
  bool in_process = false;
  std::string report, trace;
};
Options& GlobalOptions();

struct Launching {
  Kind kind;
  std::string kernel;
  const char* file;
  int line;
  int64_t blocks;
  int per_block_vector = 1;  // vector cores of a block
  std::vector<std::unique_ptr<Core>> cores;
  std::mutex mutex;
  std::condition_variable finished;
  std::mutex atomics_mutex;
  std::atomic<size_t> pending_atomics{0};  // of all cores
  int permits = 1, running = 0, alive = 0;
  uint64_t random = 0;
  bool aborted = false;
  int32_t next_meeting = 0;
  std::map<std::array<int64_t, 4>, Meeting> meetings;
  std::map<const void*, std::deque<std::pair<SharedKnowledge, int32_t>>> signals;
  std::string deadlock;

  void schedule();                      // with the mutex held
  void block(Core& core, std::unique_lock<std::mutex>& lock, Where where, std::string what, std::function<bool()> ready);
};

Core& Current();
Core* CurrentOrNull();

// ------------------------------------------------------------------------------------------------------------ checks

// memory.cc
void PrepareMemory(Core& core);
std::string OperandText(const Core& core, const Tensor& tensor, Where where, int argument);
std::string GlobalText(const Global& global, Where where, int argument);

// gm.cc
struct Allocation {
  uint64_t begin, end;
  uint64_t blocks_end;  // up to which copies of whole blocks may reach
  std::string name;
};
const Allocation* FindAllocation(uint64_t address);
std::string FreedName(uint64_t address);      // of an allocation that was there, "" if there was none
void AddAllocation(void* address, size_t bytes, std::string name, size_t with_blocks = 0);
bool RemoveAllocation(void* address);
void SettleAtomics(Launching& launch, uint64_t begin, uint64_t end);
void CombineAtomic(uint8_t* to, const uint8_t* from, size_t bytes, DType dtype, int op, bool saturate);
// Races between accesses to GM, the first by address; also tells L2-resident traffic from HBM's. "" if there is none.
std::string SweepGm(Launching& launch);

// streams.cc
void AddStream(const void* stream);
bool RemoveStream(const void* stream);        // false: there is none such
bool KnownStream(const void* stream);
void FinishStream(const void* stream);        // the host has waited for all of its work
void FinishAllStreams();
void RecordEvent(const void* event, const void* stream);
void ForgetEvent(const void* event);
void FinishEvent(const void* event);
void WaitForEvent(const void* stream, const void* event);
// The kernel that has written there and that the host has not waited for, "" if there is none.
std::string PendingWriter(const void* start, size_t bytes);
void RememberWritten(const Launching& launch);

// messages.cc
std::string Message(const char* severity, Where where, const char* rule, const std::string& text);
std::string Note(Where where, const std::string& text);
std::string Help(const std::string& text);
std::string Format(const char* format, va_list args);
std::string Format(const char* format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void Throw(Core* core, std::string text);
// What the documentation forbids and devices let pass: a warning, and refused with --strict.
void Tolerate(Core& core, const char* rule, Where where, const std::string& text);

// report.cc
// Start and end of every event, by the cost model stated there.
void BuildTimeline(Launching& launch);
std::string ReportJson(Launching& launch);
void AddTrace(Launching& launch);
std::string TraceJson();

}  // namespace atbfn::emulator
