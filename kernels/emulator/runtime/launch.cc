// Runs a kernel: one thread for each core, at most `threads` of them running, each until it has to wait for another core.
// Which core runs next depends on core numbers only, so a launch is repeatable; what it computes and reports depends on
// neither the order nor the number of threads.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core.h"

namespace atbfn::emulator {

namespace {

thread_local Core* current = nullptr;
Chip chip_of_program{};
std::string last_error;
std::string last_report;

bool EnvFlag(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' && std::strcmp(value, "0") != 0;
}

uint64_t NextRandom(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

void CheckEnd(Core& core) {
  for (int from = 0; from < kPipes; ++from)
    for (int to = 0; to < kPipes; ++to)
      for (int id = 0; id < 8; ++id) {
        const Flag& flag = core.flags[from][to][id];
        if (flag.set && !(core.events_taken[from][to] >> id & 1))
          Throw(&core, Message("error", flag.where, "flag",
                               Format("SetFlag<HardEvent::%s_%s>(%d): the kernel ends and nothing has waited for this "
                                      "flag; it stays set for the next kernel",
                                      Name(static_cast<Pipe>(from)), Name(static_cast<Pipe>(to)), id)) +
                           Help("one WaitFlag for every SetFlag"));
      }
}

void CheckUnitFlags(Core& core) {
  for (int u = 0; u < 512; ++u)
    if (core.registers.unit_flags[u / 64] >> (u % 64) & 1)
      Throw(&core, Message("error", core.unit_flag_set, "unit-flag",
                           Format("Mmad with unitFlag 3: the kernel ends and the unit flag of byte %d of L0C is still set, so "
                                  "the next Mmad with a unit flag there waits for ever", u * 512)) +
                       Help("a Fixpipe with unitFlag 3 for all of the results, or SetFixPipeConfig with isUnitFlag"));
}

void RunCore(Core& core, const std::function<void()>& body) {
  current = &core;
  Launching& launch = *core.launch;
  {
    std::unique_lock<std::mutex> lock(launch.mutex);
    core.resumed.wait(lock, [&] { return core.state == Core::Running || launch.aborted; });
    if (launch.aborted && core.state != Core::Running) {
      core.state = Core::Done;
      if (--launch.alive == 0) launch.finished.notify_all();
      return;
    }
  }
  try {
    body();
    CheckEnd(core);
    CheckUnitFlags(core);
  } catch (Refusal& refusal) {
    core.refusal = std::make_unique<Refusal>(std::move(refusal));
  } catch (const std::exception& error) {
    core.refusal = std::make_unique<Refusal>();
    core.refusal->text = Message("error", {launch.file, launch.line}, "exception", error.what());
  } catch (...) {
    core.refusal = std::make_unique<Refusal>();
    core.refusal->text = Message("error", {launch.file, launch.line}, "exception",
                                 Format("%s threw an object that is no std::exception", core.label.c_str())) +
                         Help("a device has no exceptions: return a status instead");
  }
  std::unique_lock<std::mutex> lock(launch.mutex);
  core.state = Core::Done;
  --launch.running;
  if (--launch.alive == 0) launch.finished.notify_all();
  launch.schedule();
  current = nullptr;
}

}  // namespace

Core& Current() {
  if (current == nullptr) {
    std::fflush(stdout);
    std::fputs("error: a device function was called on the host; only a kernel launched with <<<>>> may use it\n", stderr);
    std::exit(1);
  }
  return *current;
}
Core* CurrentOrNull() { return current; }

Options& GlobalOptions() {
  static Options options = [] {
    Options o;
    o.strict = EnvFlag("ATBFN_ASCENDC_STRICT");
    o.approximate = EnvFlag("ATBFN_ASCENDC_APPROXIMATE");
    o.color = EnvFlag("ATBFN_ASCENDC_COLOR");
    if (const char* threads = std::getenv("ATBFN_ASCENDC_THREADS")) o.threads = std::atoi(threads);
    if (const char* seed = std::getenv("ATBFN_ASCENDC_SEED"); seed != nullptr && *seed != '\0') o.seed = std::atol(seed);
    if (const char* path = std::getenv("ATBFN_ASCENDC_REPORT")) o.report = path;
    if (const char* path = std::getenv("ATBFN_ASCENDC_TRACE")) o.trace = path;
    return o;
  }();
  return options;
}

bool SetChip(const Chip& chip) {
  chip_of_program = chip;
  return true;
}
const Chip& CurrentChip() { return chip_of_program; }

// -------------------------------------------------------------------------------------------------------- scheduling

void Launching::schedule() {
  for (auto& core : cores)
    if (core->state == Core::Waiting && core->wake && core->wake()) {
      core->state = Core::Ready;
      core->wake = nullptr;
    }
  while (running < permits) {
    std::vector<Core*> ready;
    for (auto& core : cores)
      if (core->state == Core::Ready) ready.push_back(core.get());
    if (ready.empty()) break;
    Core* next = GlobalOptions().seed < 0 ? ready.front() : ready[NextRandom(random) % ready.size()];
    next->state = Core::Running;
    ++running;
    next->resumed.notify_all();
  }
  if (running > 0 || alive == 0) return;
  // Nobody runs and nobody can: a deadlock, unless a refusal left the others waiting.
  aborted = true;
  bool refused = false;
  for (auto& core : cores) refused |= core->refusal != nullptr;
  if (!refused) {
    for (auto& core : cores) {
      if (core->state != Core::Waiting) continue;
      const std::string text = Format("core %s (block %d) waits for ever in %s", core->label.c_str(), core->block,
                                      core->waiting_for.c_str());
      if (deadlock.empty()) {
        deadlock = Message("error", core->waiting_at, "deadlock", text + ": no other core can still answer");
      } else if (deadlock.size() < 4000) {
        deadlock += Note(core->waiting_at, text);
      }
    }
  }
  for (auto& core : cores) core->resumed.notify_all();
}

void Launching::block(Core& core, std::unique_lock<std::mutex>& lock, Where where, std::string what,
                      std::function<bool()> ready) {
  if (ready()) return;
  core.state = Core::Waiting;
  core.wake = std::move(ready);
  core.waiting_at = where;
  core.waiting_for = std::move(what);
  --running;
  schedule();
  core.resumed.wait(lock, [&] { return core.state == Core::Running || aborted; });
  if (core.state == Core::Running) return;
  core.unwinding = true;
  ++running;  // RunCore gives the place back
  lock.unlock();
  throw Refusal{""};
}

// ------------------------------------------------------------------------------------------------------------ launch

bool RunKernel(Kind kind, const char* name, const char* file, int line, int64_t blocks,
               const std::function<void()>& body) {
  Options& options = GlobalOptions();
  const Chip& chip = CurrentChip();
  Launching launch;
  launch.kind = kind;
  launch.kernel = name;
  launch.file = file;
  launch.line = line;
  launch.blocks = blocks;
  launch.random = static_cast<uint64_t>(options.seed);
  const unsigned hardware = std::max(1u, std::thread::hardware_concurrency());
  launch.permits = options.threads > 0 ? options.threads : static_cast<int>(hardware);
  if (options.seed >= 0) launch.permits = 1 + static_cast<int>(NextRandom(launch.random) % static_cast<uint64_t>(launch.permits));

  std::string failure;
  if (blocks < 1 || blocks > 65535)
    failure = Message("error", {file, line}, "launch",
                      Format("%s<<<%lld, ...>>>: the number of blocks is from 1 to 65535", name, static_cast<long long>(blocks)));
  if (failure.empty()) {
    const int vectors = kind == Kind::Cube || kind == Kind::Mix10 ? 0 : kind == Kind::Mix12 ? 2 : 1;
    const bool cube = kind != Kind::Vector && kind != Kind::Mix01;
    launch.per_block_vector = std::max(1, vectors);
    const auto add = [&](int block, int sub, bool is_cube, bool is_vector, const std::string& label) {
      auto core = std::make_unique<Core>();
      core->launch = &launch;
      core->index = static_cast<int>(launch.cores.size());
      core->block = block;
      core->sub = sub;
      core->cube = is_cube;
      core->vector = is_vector;
      core->label = label;
      launch.cores.push_back(std::move(core));
    };
    for (int b = 0; b < blocks; ++b) {
      if (chip.unified) {
        add(b, 0, true, true, Format("core %d", b));
        continue;
      }
      if (cube) add(b, 0, true, false, Format("AIC %d", b));
      for (int v = 0; v < vectors; ++v) add(b, v, false, true, Format("AIV %d", b * vectors + v));
    }
    auto nothing = std::make_shared<Knowledge>(launch.cores.size());
    for (auto& core : launch.cores) {
      PrepareMemory(*core);
      core->others = nothing;
      core->others_versions.push_back(core->others);
      core->changed_all();
    }
    launch.alive = static_cast<int>(launch.cores.size());
    std::vector<std::thread> threads;
    threads.reserve(launch.cores.size());
    for (auto& core : launch.cores) threads.emplace_back([&core, &body] { RunCore(*core, body); });
    {
      std::unique_lock<std::mutex> lock(launch.mutex);
      launch.schedule();
      launch.finished.wait(lock, [&] { return launch.alive == 0; });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& core : launch.cores) {
      for (const auto& [event, meeting] : core->meeting_of) core->events[event].id = meeting;
    }
    SettleAtomics(launch, 0, UINT64_MAX);
    for (auto& core : launch.cores) std::fputs(core->output.c_str(), stdout);
    std::fflush(stdout);
    for (auto& core : launch.cores)
      if (failure.empty() && core->refusal && !core->refusal->text.empty()) failure = core->refusal->text;
    const std::string in_kernel = Format("   in: kernel %s\n", name);
    if (failure.empty() && !launch.deadlock.empty()) failure = launch.deadlock + in_kernel;
    if (failure.empty()) failure = SweepGm(launch);
    if (failure.empty())
      for (auto& core : launch.cores)
        for (int id = 0; id < 16 && failure.empty(); ++id)
          if (!core->arrived[id].empty()) {
            Where set{file, line};
            for (auto& other : launch.cores)
              if (other->last_set[id].file != nullptr) set = other->last_set[id];
            failure = Message("error", set, "cross-core",
                              Format("the kernel ends and core %s has not waited for flag %d, set %zu times too often; it "
                                     "stays set for the next kernel",
                                     core->label.c_str(), id, core->arrived[id].size())) +
                      Help(Format("one CrossCoreWaitFlag(%d) on %s for every set", id, core->label.c_str())) + in_kernel;
          }
    if (failure.empty()) {
      if (!options.in_process) RememberWritten(launch);
      BuildTimeline(launch);
      last_report = ReportJson(launch);
      if (!options.report.empty())
        if (FILE* out = std::fopen(options.report.c_str(), "a")) {
          std::fprintf(out, "%s\n", last_report.c_str());
          std::fclose(out);
        }
      if (!options.trace.empty()) {
        AddTrace(launch);
        if (FILE* out = std::fopen(options.trace.c_str(), "w")) {
          std::fputs(TraceJson().c_str(), out);
          std::fclose(out);
        }
      }
    }
    if (!options.in_process) {
      std::map<std::string, int> seen;  // cores run the same statements: once is enough
      for (auto& core : launch.cores)
        for (const auto& [key, text] : core->warnings)
          if (seen[text.substr(0, text.find('\n'))]++ == 0) std::fputs(text.c_str(), stderr);
    }
  }
  if (failure.empty()) {
    last_error.clear();
    return true;
  }
  last_error = failure;
  if (options.in_process) return false;
  std::fputs(failure.c_str(), stderr);
  std::fprintf(stderr, "%s:%d: note: launched here\n", file, line);
  std::fflush(stderr);
  std::_Exit(1);
}

bool PackedArgument(const char* kernel, int index, size_t size, size_t expected) {
  if (size == expected) return true;
  last_error = index < 0 ? Format("%s takes %zu arguments, %zu came\n", kernel, expected, size)
                         : Format("%s: argument %d has %zu bytes, %zu came\n", kernel, index, expected, size);
  return false;
}

// ------------------------------------------------------------------------------------------------------------ system

Registers& CoreRegisters() { return Current().registers; }
bool IsCubeCore() { return Current().cube; }
bool IsVectorCore() { return Current().vector; }
int BlockIndex() {
  Core& core = Current();
  if (core.cube) return core.block;
  return core.block * core.launch->per_block_vector + core.sub;
}
int RawBlockIndex() { return Current().block; }
int BlockCount() { return static_cast<int>(Current().launch->blocks); }
int SubBlockIndex() { return Current().sub; }
int SubBlockCount() {
  Core& core = Current();
  return core.cube ? 1 : core.launch->per_block_vector;
}
int TaskRatio() {
  Core& core = Current();
  return core.cube ? 1 : core.launch->per_block_vector;
}
int64_t Cycles() { return static_cast<int64_t>(Current().cycles) + static_cast<int64_t>(Current().events.size()); }
bool Unwinding() { return CurrentOrNull() == nullptr || Current().unwinding; }
void* CorePointer(int slot) { return Current().pointers[slot]; }
void SetCorePointer(int slot, void* value) { Current().pointers[slot] = value; }

void Print(const char* text) {
  if (Core* core = CurrentOrNull()) {
    core->output += text;
  } else {
    std::fputs(text, stdout);
  }
}

}  // namespace atbfn::emulator

extern "C" {

const char* atbfn_emulator_error() { return atbfn::emulator::last_error.c_str(); }
const char* atbfn_emulator_report() { return atbfn::emulator::last_report.c_str(); }
void atbfn_emulator_options(int strict, int threads, long seed, const char* trace_path) {
  atbfn::emulator::Options& options = atbfn::emulator::GlobalOptions();
  options.in_process = true;
  options.strict = strict != 0;
  options.threads = threads;
  options.seed = seed;
  options.trace = trace_path != nullptr ? trace_path : "";
}
int atbfn_emulator_register(void* address, size_t bytes, const char* name) {
  atbfn::emulator::AddAllocation(address, bytes, name != nullptr ? name : "");
  return 0;
}
void atbfn_emulator_unregister(void* address) { atbfn::emulator::RemoveAllocation(address); }
}
