// Flags and barriers within a core; flags, signals and barriers between cores.
#include <algorithm>

#include "core.h"

namespace atbfn::emulator {

namespace {

void Log(Core& core, Step step, Pipe pipe, Pipe to, int32_t id, const char* name, Where where) {
  Event event;
  event.step = step;
  event.pipe = pipe;
  event.to = to;
  event.id = id;
  event.name = name;
  event.where = where;
  core.events.push_back(event);
}

std::string EventName(Pipe from, Pipe to) { return std::string(Name(from)) + "_" + Name(to); }

void CheckFlag(Core& core, const char* api, Pipe from, Pipe to, int id, Where where) {
  if (id < 0 || id > 7)
    Refuse("flag", where, "%s<HardEvent::%s>: the event id is %d, ids are 0 to 7", api, EventName(from, to).c_str(), id);
  if (CurrentChip().unified) return;
  for (Pipe pipe : {from, to}) {
    const bool missing = pipe == Pipe::V ? !core.vector
                                         : (pipe == Pipe::M || pipe == Pipe::MTE1 || pipe == Pipe::FIX) && !core.cube;
    if (missing)
      Refuse("core", where, "%s<HardEvent::%s>: %s has no pipe %s", api, EventName(from, to).c_str(),
             core.label.c_str(), Name(pipe));
  }
}

}  // namespace

void Core::learn(Pipe pipe, const Clocks& clocks) {
  // The scalar pipe gives out the instructions of all others: what it waited for, they start after.
  for (int p = 0; p < kPipes; ++p) {
    if (pipe != Pipe::S && p != static_cast<int>(pipe)) continue;
    for (int q = 0; q < kPipes; ++q)
      known[static_cast<size_t>(p)][static_cast<size_t>(q)] =
          std::max(known[static_cast<size_t>(p)][static_cast<size_t>(q)], clocks[static_cast<size_t>(q)]);
    version_of[p] = -1;
  }
}

SharedKnowledge Core::snapshot(Pipe pipe) const {
  auto result = std::make_shared<Knowledge>(*others);
  Clocks& mine = (*result)[static_cast<size_t>(index)];
  if (pipe == Pipe::Count) {
    mine = clock;
  } else {
    const Clocks& knows = known[static_cast<size_t>(pipe)];
    for (int q = 0; q < kPipes; ++q) mine[static_cast<size_t>(q)] = std::max(mine[static_cast<size_t>(q)], knows[static_cast<size_t>(q)]);
    mine[static_cast<size_t>(pipe)] = clock[static_cast<size_t>(pipe)];
  }
  mine[kWaits] = clock[kWaits];
  return result;
}

void Core::learn(const SharedKnowledge& what) {
  auto joined = std::make_shared<Knowledge>(*others);
  for (size_t c = 0; c < joined->size(); ++c)
    for (size_t q = 0; q < kSlots; ++q) (*joined)[c][q] = std::max((*joined)[c][q], (*what)[c][q]);
  others = joined;
  others_versions.push_back(joined);
  // Its own part in what it waited for is over too: the work in front of its own flag, among others.
  learn(Pipe::S, (*what)[static_cast<size_t>(index)]);
}

// -------------------------------------------------------------------------------------------------------- in a core

void SetFlag(Pipe from, Pipe to, int id, Where where) {
  Core& core = Current();
  CheckFlag(core, "SetFlag", from, to, id, where);
  Flag& flag = core.flags[static_cast<int>(from)][static_cast<int>(to)][id];
  if (flag.set)
    Throw(&core, Message("error", where, "flag",
                         Format("SetFlag<HardEvent::%s>(%d): the flag is set already and nothing has waited for it",
                                EventName(from, to).c_str(), id)) +
                     Note(flag.where, "set here") +
                     Help("use another id (0 to 7), or WaitFlag before it is set again"));
  flag.set = true;
  flag.where = where;
  flag.known = core.known[static_cast<size_t>(from)];
  flag.known[static_cast<size_t>(from)] = core.clock[static_cast<size_t>(from)];
  Log(core, Step::SetFlag, from, to, id, "SetFlag", where);
}

void WaitFlag(Pipe from, Pipe to, int id, Where where) {
  Core& core = Current();
  CheckFlag(core, "WaitFlag", from, to, id, where);
  Flag& flag = core.flags[static_cast<int>(from)][static_cast<int>(to)][id];
  if (!flag.set) {
    std::string note;
    for (int other = 0; other < 8; ++other) {
      const Flag& candidate = core.flags[static_cast<int>(from)][static_cast<int>(to)][other];
      if (candidate.set) note += Note(candidate.where, Format("id %d of this event is set here", other));
    }
    Throw(&core, Message("error", where, "deadlock",
                         Format("WaitFlag<HardEvent::%s>(%d): no SetFlag came before it, so pipe %s waits for ever",
                                EventName(from, to).c_str(), id, Name(to))) +
                     note + Help(Format("SetFlag<HardEvent::%s>(%d) once for every WaitFlag, before it",
                                        EventName(from, to).c_str(), id)));
  }
  flag.set = false;
  core.learn(to, flag.known);
  Log(core, Step::WaitFlag, from, to, id, "WaitFlag", where);
}

void Barrier(Pipe pipe, Where where) {
  Core& core = Current();
  if (pipe == Pipe::Count) {
    for (Clocks& row : core.known)
      for (int q = 0; q < kPipes; ++q) row[static_cast<size_t>(q)] = core.clock[static_cast<size_t>(q)];
    core.changed_all();
  } else {
    if (!CurrentChip().unified) {
      const bool missing = pipe == Pipe::V ? !core.vector
                                           : (pipe == Pipe::M || pipe == Pipe::MTE1 || pipe == Pipe::FIX) && !core.cube;
      if (missing)
        Refuse("core", where, "PipeBarrier<PIPE_%s>: %s has no such pipe", Name(pipe), core.label.c_str());
    }
    core.known[static_cast<size_t>(pipe)][static_cast<size_t>(pipe)] = core.clock[static_cast<size_t>(pipe)];
    core.changed(pipe);
  }
  Log(core, Step::Barrier, pipe, pipe, 0, "PipeBarrier", where);
}

int FetchEvent(Pipe from, Pipe to, Where where) {
  Core& core = Current();
  const uint8_t taken = core.events_taken[static_cast<int>(from)][static_cast<int>(to)];
  for (int id = 0; id < 8; ++id)
    if (!(taken >> id & 1)) return id;
  Refuse("flag", where, "all 8 ids of HardEvent::%s are taken; ReleaseEventID one, or use fewer queue buffers",
         EventName(from, to).c_str());
}

int AllocEvent(Pipe from, Pipe to, Where where) {
  const int id = FetchEvent(from, to, where);
  Current().events_taken[static_cast<int>(from)][static_cast<int>(to)] |= static_cast<uint8_t>(1u << id);
  return id;
}

void ReleaseEvent(Pipe from, Pipe to, int id, Where where) {
  Core& core = Current();
  uint8_t& taken = core.events_taken[static_cast<int>(from)][static_cast<int>(to)];
  if (id < 0 || id > 7 || !(taken >> id & 1))
    Refuse("flag", where, "ReleaseEventID<HardEvent::%s>(%d): AllocEventID did not give this id", EventName(from, to).c_str(), id);
  taken &= static_cast<uint8_t>(~(1u << id));
}

// ----------------------------------------------------------------------------------------------------- between cores

namespace {

// The cores that set a flag together, and those whose counter it raises.
struct Members {
  std::vector<Core*> setters, receivers;
  int64_t group;
};

Members MembersOf(Core& core, int mode) {
  Members members;
  members.group = mode == 0 ? -1 : core.block;
  for (auto& other : core.launch->cores) {
    if (mode == 0) {
      if (other->cube == core.cube) members.setters.push_back(other.get());
    } else if (other->block != core.block) {
      continue;
    } else if (mode == 1) {
      if (!other->cube) members.setters.push_back(other.get());
    } else {
      (other->cube == core.cube ? members.setters : members.receivers).push_back(other.get());
    }
  }
  if (mode != 2) members.receivers = members.setters;
  return members;
}

// Blocks that wait for each other must all run at once.
void CheckBlocksFit(const Core& core, const char* api, Where where) {
  const Chip& chip = CurrentChip();
  const Kind kind = core.launch->kind;
  const int pairs = kind == Kind::Mix12 ? chip.vector_cores / 2 : chip.vector_cores;
  const int most = chip.unified || kind == Kind::Cube || kind == Kind::Mix10 ? chip.cube_cores
                   : kind == Kind::Vector || kind == Kind::Mix01             ? chip.vector_cores
                                                                            : std::min(chip.cube_cores, pairs);
  if (most > 0 && core.launch->blocks > most)
    Refuse("deadlock", where, "%s joins blocks, and %lld were launched: the %s runs %d of this kind at once, so the rest never "
           "start and all wait for ever; launch no more blocks than that", api, static_cast<long long>(core.launch->blocks),
           chip.name, most);
}

constexpr int kSyncFirst = 11, kSyncLast = 14;  // the flags with which SyncAll is made

void CheckSyncFlags(Core& core, Where where) {
  if (core.synced.file == nullptr || core.used_by_sync.file == nullptr) return;
  Tolerate(core, "cross-core", where,
           Format("flags %d to %d are those of SyncAll, and this kernel uses both (SyncAll at line %d, the flag at line %d): one may "
                  "answer for the other; use flags 0 to 10", kSyncFirst, kSyncLast, core.synced.line, core.used_by_sync.line));
}

}  // namespace

void CrossCoreSet(int mode, Pipe pipe, int id, Where where) {
  Core& core = Current();
  Launching& launch = *core.launch;
  if (CurrentChip().unified || CurrentChip().arch < 2201)
    Refuse("cross-core", where, "CrossCoreSetFlag: the %s has no cross-core flags", CurrentChip().name);
  if (id < 0 || id > 15)
    Refuse("cross-core", where, "CrossCoreSetFlag: the flag id is %d; ids are 0 to 15 (the device would take %d)", id, id & 15);
  if (launch.kind == Kind::Vector || launch.kind == Kind::Cube)
    Refuse("cross-core", where, "CrossCoreSetFlag needs a mixed kernel: declare it __mix__(%s), not __%s__",
           launch.kind == Kind::Vector ? "0, 1" : "1, 0", launch.kind == Kind::Vector ? "vector" : "cube");
  if (mode != 0 && launch.kind != Kind::Mix11 && launch.kind != Kind::Mix12)
    Refuse("cross-core", where, "CrossCoreSetFlag<%d, ...> joins cores of one block: the kernel must be __mix__(1, 1) or "
           "__mix__(1, 2)", mode);
  if (mode == 1 && core.cube)
    Refuse("cross-core", where, "CrossCoreSetFlag<1, ...> joins the vector cores of a block, and this is %s", core.label.c_str());
  if (!CurrentChip().unified && ((pipe == Pipe::V && !core.vector) ||
                                 ((pipe == Pipe::M || pipe == Pipe::MTE1 || pipe == Pipe::FIX) && !core.cube)))
    Refuse("core", where, "CrossCoreSetFlag: %s has no pipe %s", core.label.c_str(), Name(pipe));
  if (mode == 0) CheckBlocksFit(core, "CrossCoreSetFlag<0, ...>", where);
  if (id >= kSyncFirst && id <= kSyncLast) core.used_by_sync = where;
  CheckSyncFlags(core, where);
  const SharedKnowledge knows = core.snapshot(pipe);
  std::unique_lock<std::mutex> lock(launch.mutex);
  core.last_set[id] = where;
  const Members members = MembersOf(core, mode);
  Meeting& meeting = launch.meetings[{mode, id, members.group, core.cube}];
  meeting.given.resize(members.setters.size());
  for (size_t m = 0; m < members.setters.size(); ++m)
    if (members.setters[m] == &core) meeting.given[m].push_back(knows);
  const bool complete = std::all_of(meeting.given.begin(), meeting.given.end(), [](const auto& q) { return !q.empty(); });
  Log(core, Step::CrossSet, pipe, pipe, -1, "CrossCoreSetFlag", where);
  core.unmet[id].push_back(core.events.size() - 1);
  if (!complete) return;
  auto joined = std::make_shared<Knowledge>(launch.cores.size());
  for (auto& queue : meeting.given) {
    const SharedKnowledge given = queue.front();
    queue.pop_front();
    for (size_t c = 0; c < joined->size(); ++c)
      for (size_t q = 0; q < kSlots; ++q) (*joined)[c][q] = std::max((*joined)[c][q], (*given)[c][q]);
  }
  const int32_t number = launch.next_meeting++;
  for (Core* setter : members.setters) {
    setter->meeting_of.push_back({setter->unmet[id].front(), number});
    setter->unmet[id].pop_front();
  }
  for (Core* receiver : members.receivers) {
    // How far the counter can be ahead does not depend on the order in which cores happen to run: count the waits that
    // the setters know of.
    const uint32_t arrivals = ++receiver->arrivals[id];
    uint32_t waited = 0;
    const uint32_t known_waits = (*joined)[static_cast<size_t>(receiver->index)][kWaits];
    for (uint32_t clock : receiver->wait_clocks[id]) waited += clock <= known_waits ? 1 : 0;
    if (arrivals - waited > 15) {
      lock.unlock();
      Refuse("cross-core", where, "CrossCoreSetFlag(%d): the counter of %s can reach %u, and it holds 15; let %s answer "
             "with a flag of its own, and wait for it every few tiles", id, receiver->label.c_str(), arrivals - waited,
             receiver->label.c_str());
    }
    receiver->arrived[id].push_back({joined, number});
  }
  launch.schedule();
}

void CrossCoreWait(int id, Where where) {
  Core& core = Current();
  Launching& launch = *core.launch;
  if (id < 0 || id > 15)
    Refuse("cross-core", where, "CrossCoreWaitFlag: the flag id is %d; ids are 0 to 15 (the device would take %d)", id, id & 15);
  if (launch.kind == Kind::Vector || launch.kind == Kind::Cube)
    Refuse("cross-core", where, "CrossCoreWaitFlag needs a mixed kernel: declare it __mix__(%s), not __%s__",
           launch.kind == Kind::Vector ? "0, 1" : "1, 0", launch.kind == Kind::Vector ? "vector" : "cube");
  if (id >= kSyncFirst && id <= kSyncLast) core.used_by_sync = where;
  CheckSyncFlags(core, where);
  std::unique_lock<std::mutex> lock(launch.mutex);
  launch.block(core, lock, where, Format("CrossCoreWaitFlag(%d)", id), [&core, id] { return !core.arrived[id].empty(); });
  const auto [knows, number] = core.arrived[id].front();
  core.arrived[id].pop_front();
  core.wait_clocks[id].push_back(++core.clock[kWaits]);
  lock.unlock();
  core.learn(knows);
  Log(core, Step::CrossWait, Pipe::S, Pipe::S, number, "CrossCoreWaitFlag", where);
}

void SyncAllCores(bool vector_only, int participants, const void* workspace, Where where) {
  Core& core = Current();
  Launching& launch = *core.launch;
  const bool mixed = launch.kind == Kind::Mix11 || launch.kind == Kind::Mix12;
  if (workspace == nullptr && !CurrentChip().unified) {
    if (launch.kind == Kind::Vector || launch.kind == Kind::Cube)
      Tolerate(core, "cross-core", where, "SyncAll without a workspace needs the cross-core scheduler: declare the kernel "
               "__mix__(0, 1) instead of __vector__, or pass a workspace");
    if (!vector_only && !mixed)
      Refuse("deadlock", where, "SyncAll<false> joins cube and vector cores; a kernel of one kind waits for ever");
  }
  if (vector_only && core.cube && !core.vector)
    Refuse("core", where, "SyncAll<true> joins the vector cores, and this is %s; use SyncAll<false>", core.label.c_str());
  if (workspace == nullptr && !CurrentChip().unified) {
    core.synced = where;
    CheckSyncFlags(core, where);
  }
  Barrier(Pipe::Count, where);
  const SharedKnowledge knows = core.snapshot(Pipe::Count);
  std::vector<Core*> members;
  for (auto& other : launch.cores)
    if (!vector_only || other->vector) members.push_back(other.get());
  const size_t expected = participants > 0 ? static_cast<size_t>(participants) : members.size();
  const int cores = CurrentChip().unified ? CurrentChip().cube_cores
                    : core.vector         ? CurrentChip().vector_cores
                                          : CurrentChip().cube_cores;
  if (cores > 0 && static_cast<int>(expected) > cores + (mixed && !vector_only ? CurrentChip().cube_cores : 0))
    Refuse("deadlock", where, "SyncAll of %zu cores: the %s has %d, so the rest never start and all wait for ever; "
           "launch no more blocks than the chip has", expected, CurrentChip().name, cores);
  std::unique_lock<std::mutex> lock(launch.mutex);
  Meeting& meeting = launch.meetings[{100 + vector_only, 0, reinterpret_cast<int64_t>(workspace), 0}];
  meeting.given.resize(launch.cores.size());
  auto& mine = meeting.given[static_cast<size_t>(core.index)];
  mine.push_back(knows);
  size_t here = 0;
  for (const auto& queue : meeting.given) here += queue.empty() ? 0 : 1;
  if (here == expected) {
    auto joined = std::make_shared<Knowledge>(launch.cores.size());
    const int32_t number = launch.next_meeting++;
    for (size_t m = 0; m < meeting.given.size(); ++m) {
      if (meeting.given[m].empty()) continue;
      const SharedKnowledge given = meeting.given[m].front();
      meeting.given[m].pop_front();
      for (size_t c = 0; c < joined->size(); ++c)
        for (size_t q = 0; q < kSlots; ++q) (*joined)[c][q] = std::max((*joined)[c][q], (*given)[c][q]);
      launch.cores[m]->sync_done = {joined, number};
    }
    launch.schedule();
  }
  launch.block(core, lock, where, "SyncAll", [&core] { return core.sync_done.first != nullptr; });
  const auto [joined, number] = core.sync_done;
  core.sync_done = {};
  ++core.clock[kWaits];
  lock.unlock();
  core.learn(joined);
  Log(core, Step::CrossSet, Pipe::Count, Pipe::S, number, "SyncAll", where);
  Log(core, Step::CrossWait, Pipe::S, Pipe::S, number, "SyncAll", where);
}

void SyncWorkspace(const char* api, const Global& global, int64_t offset, int64_t bytes, const Tensor& local, int64_t local_bytes,
                   Where where) {
  Core& core = Current();
  if (global.address == nullptr) Refuse("out-of-bounds", where, "%s: the workspace in GM has no buffer; call SetGlobalBuffer first", api);
  const uint8_t* start = global.address + offset;
  const uint64_t begin = reinterpret_cast<uint64_t>(start), end = begin + static_cast<uint64_t>(bytes);
  const Allocation* allocation = FindAllocation(begin);
  if (allocation == nullptr || end > allocation->end)
    Refuse("out-of-bounds", where, "%s: the workspace in GM is used from byte %lld to %lld, which is not all device memory", api,
           static_cast<long long>(offset), static_cast<long long>(offset + bytes));
  for (int64_t i = 0; i < bytes; ++i)
    if (start[i] != 0)
      Refuse("uninitialised", where, "%s: the workspace in GM holds 0x%02x at byte %lld; it must be cleared before the kernel starts, "
             "and nothing else may use it", api, start[i], static_cast<long long>(offset + i));
  if (local.space != Space::UB) Refuse("position", where, "%s: the workspace lies in %s, it must lie in UB", api, Name(local.space));
  CheckUse(local, api, where);
  Memory& memory = core.at(Space::UB);
  if (memory.capacity == 0) return;
  if (local.address + local_bytes > memory.capacity)
    Refuse("capacity", where, "%s: the workspace in UB reaches byte %lld", api, static_cast<long long>(local.address + local_bytes));
  for (int64_t g = local.address / 32; g < (local.address + local_bytes) / 32; ++g) memory.granules[static_cast<size_t>(g)].written = 0;
}

void SignalSet(const void* key, Where where) {
  Core& core = Current();
  Launching& launch = *core.launch;
  CheckBlocksFit(core, "IBSet", where);
  const SharedKnowledge knows = core.snapshot(Pipe::Count);
  std::unique_lock<std::mutex> lock(launch.mutex);
  const int32_t number = launch.next_meeting++;
  launch.signals[key].push_back({knows, number});
  Log(core, Step::CrossSet, Pipe::Count, Pipe::S, number, "IBSet", where);
  launch.schedule();
}

void SignalWait(const void* key, Where where) {
  Core& core = Current();
  Launching& launch = *core.launch;
  CheckBlocksFit(core, "IBWait", where);
  std::unique_lock<std::mutex> lock(launch.mutex);
  auto& signal = launch.signals[key];
  // Another core may have taken the signal that woke this one.
  do launch.block(core, lock, where, "IBWait", [&signal] { return !signal.empty(); });
  while (signal.empty());
  const auto [knows, number] = signal.front();
  signal.pop_front();
  ++core.clock[kWaits];
  lock.unlock();
  core.learn(knows);
  Log(core, Step::CrossWait, Pipe::S, Pipe::S, number, "IBWait", where);
}

}  // namespace atbfn::emulator
