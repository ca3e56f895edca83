// What a launch did: bytes per level, instructions per pipe, and a timeline from a cost model.
//
// The cost model. The scalar pipe issues instructions in program order, one a cycle. Every other pipe does what it was
// issued in order, one instruction after the other; an instruction starts when its pipe is free and the flags that it waits
// for are set. It takes the cycles that the vendor's tables of instruction throughput give or, if that is longer, the time
// its traffic takes: through the core's copy engine, and through HBM and L2, which serve all cores' requests in the order
// they come. A flag is set when its pipe has done what came before. Unknown figures of a chip cost nothing.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <queue>
#include <set>

#include "core.h"
#include "numeric.h"

namespace atbfn::emulator {

namespace {

// One core during the simulation.
struct Player {
  explicit Player(Core* core) : core(core) {}
  Core* core;
  size_t next = 0;     // to be issued
  double issue = 0;    // when
  struct Issued {
    size_t event;
    double at;
  };
  std::deque<Issued> queue[kPipes];
  double free[kPipes] = {};
  bool started[kPipes] = {};  // its first instruction waits in the heap
  std::deque<double> flag[kPipes][kPipes][8];

  bool idle() const {
    for (const auto& q : queue)
      if (!q.empty()) return false;
    return true;
  }
  double last() const {
    double at = issue;
    for (double f : free) at = std::max(at, f);
    return at;
  }
};

struct Simulation {
  explicit Simulation(Launching& launch) : chip(CurrentChip()) {
    hz = chip.clock_hz > 0 ? chip.clock_hz : 1e9;
    for (auto& core : launch.cores) players.push_back(std::make_unique<Player>(core.get()));
    for (auto& core : launch.cores)
      for (const Event& event : core->events)
        if (event.step == Step::CrossSet && event.id >= 0) ++meetings[event.id].first;
  }

  void Run() {
    Settle();
    while (!heap.empty()) {
      const Start next = heap.top();
      heap.pop();
      Player& player = *players[next.player];
      Event& event = player.core->events[player.queue[next.pipe].front().event];
      player.queue[next.pipe].pop_front();
      player.started[next.pipe] = false;
      event.start = next.at;
      event.end = next.at + event.cycles / hz;
      if (event.hbm_bytes + event.l2_bytes > 0) {
        if (chip.mte_bytes_per_cycle > 0)
          event.end = std::max(event.end, next.at + (event.hbm_bytes + event.l2_bytes) / (chip.mte_bytes_per_cycle * hz));
        event.end = std::max(event.end, Serve(hbm_free, next.at, event.hbm_bytes, chip.hbm_bytes_per_s));
        event.end = std::max(event.end, Serve(l2_free, next.at, event.l2_bytes, chip.l2_bytes_per_s));
      }
      player.free[next.pipe] = event.end;
      Settle(next.player);
    }
  }

 private:
  struct Start {
    double at;
    size_t player;
    int pipe;
    bool operator<(const Start& other) const {  // the heap's top is the earliest
      return std::tie(at, player, pipe) > std::tie(other.at, other.player, other.pipe);
    }
  };

  static double Serve(double& free, double at, double bytes, double rate) {
    if (bytes <= 0 || rate <= 0) return at;
    free = std::max(free, at) + bytes / rate;
    return free;
  }

  void Settle() {
    for (size_t p = 0; p < players.size(); ++p) Settle(p);
  }
  // Does all that takes no time; other cores follow where a meeting became complete.
  void Settle(size_t index) {
    std::vector<size_t> todo = {index};
    while (!todo.empty()) {
      const size_t p = todo.back();
      todo.pop_back();
      bool met = false;
      while (Issue(*players[p], met) | Advance(p, met)) {}
      if (met)
        for (size_t other = 0; other < players.size(); ++other)
          if (other != p) todo.push_back(other);
    }
  }

  bool Issue(Player& player, bool& met) {
    bool moved = false;
    auto& events = player.core->events;
    while (player.next < events.size()) {
      Event& event = events[player.next];
      if (event.step == Step::CrossWait) {
        const auto meeting = meetings.find(event.id);
        if (meeting != meetings.end() && meeting->second.first > 0) return moved;
        event.start = player.issue;
        if (meeting != meetings.end()) player.issue = std::max(player.issue, meeting->second.second);
        event.end = player.issue;
      } else if (event.step == Step::WaitFlag && event.to == Pipe::S) {
        auto& flags = player.flag[static_cast<int>(event.pipe)][static_cast<int>(event.to)][event.id];
        if (flags.empty()) return moved;
        event.start = player.issue;
        player.issue = event.end = std::max(player.issue, flags.front());
        flags.pop_front();
      } else if (event.pipe == Pipe::Count) {  // PipeBarrier<PIPE_ALL>, SyncAll, IBSet
        if (!player.idle()) return moved;
        event.start = player.issue;
        player.issue = event.end = player.last();
        if (event.step == Step::CrossSet) met |= Meet(event, event.end);
      } else if (event.pipe == Pipe::S && event.step != Step::WaitFlag) {
        event.start = event.end = player.issue;
        if (event.step == Step::Instruction) player.issue = event.end = event.start + std::max(1.0f, event.cycles) / hz;
        if (event.step == Step::SetFlag)
          player.flag[static_cast<int>(Pipe::S)][static_cast<int>(event.to)][event.id].push_back(event.end);
        if (event.step == Step::CrossSet) met |= Meet(event, event.end);
      } else {
        player.issue += 1 / hz;
        const Pipe pipe = event.step == Step::WaitFlag ? event.to : event.pipe;
        player.queue[static_cast<int>(pipe)].push_back({player.next, player.issue});
      }
      ++player.next;
      moved = true;
    }
    return moved;
  }

  bool Advance(size_t index, bool& met) {
    Player& player = *players[index];
    bool moved = false;
    for (int p = 0; p < kPipes; ++p) {
      auto& queue = player.queue[p];
      while (!queue.empty() && !player.started[p]) {
        Event& event = player.core->events[queue.front().event];
        const double at = std::max(player.free[p], queue.front().at);
        if (event.step == Step::Instruction) {
          heap.push({at, index, p});
          player.started[p] = true;
          break;
        }
        event.start = event.end = at;
        if (event.step == Step::SetFlag) {
          player.flag[p][static_cast<int>(event.to)][event.id].push_back(at);
        } else if (event.step == Step::CrossSet) {
          met |= Meet(event, at);
        } else if (event.step == Step::WaitFlag) {
          auto& flags = player.flag[static_cast<int>(event.pipe)][p][event.id];
          if (flags.empty()) break;
          event.end = std::max(at, flags.front());
          player.free[p] = event.end;
          flags.pop_front();
        }
        queue.pop_front();
        moved = true;
      }
    }
    return moved;
  }

  bool Meet(const Event& event, double at) {
    if (event.id < 0) return false;
    auto& [missing, time] = meetings[event.id];
    time = std::max(time, at);
    return --missing == 0;
  }

  const Chip& chip;
  double hz, hbm_free = 0, l2_free = 0;
  std::vector<std::unique_ptr<Player>> players;
  std::priority_queue<Start> heap;
  std::map<int32_t, std::pair<int, double>> meetings;  // cores still to come, and when the last so far came
};

std::string Escape(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out;
}

double EndOf(const Launching& launch) {
  double end = 0;
  for (auto& core : launch.cores)
    for (const Event& event : core->events) end = std::max(end, event.end);
  return end;
}

const char* KindOf(const Core& core) { return core.cube && core.vector ? "unified" : core.cube ? "AIC" : "AIV"; }

std::vector<std::string>& TraceEvents() {
  static std::vector<std::string> events;
  return events;
}

}  // namespace

void BuildTimeline(Launching& launch) { Simulation(launch).Run(); }

std::string ReportJson(Launching& launch) {
  const Chip& chip = CurrentChip();
  const double seconds = EndOf(launch);
  std::string out = Format("{\"kernel\": \"%s\", \"file\": \"%s\", \"line\": %d, \"chip\": \"%s\", \"blocks\": %lld",
                           Escape(launch.kernel).c_str(), Escape(launch.file).c_str(), launch.line, chip.name,
                           static_cast<long long>(launch.blocks));
  uint64_t instructions[kPipes] = {}, read[kSpaces] = {}, written[kSpaces] = {};
  uint64_t hbm_read = 0, hbm_written = 0, l2_read = 0, l2_written = 0, macs = 0, elements = 0;
  double busy[kPipes] = {};
  int have[kPipes] = {};
  out += ", \"cores\": [";
  for (size_t c = 0; c < launch.cores.size(); ++c) {
    Core& core = *launch.cores[c];
    double core_busy[kPipes] = {};
    for (const Event& event : core.events)
      if (event.step == Step::Instruction) core_busy[static_cast<int>(event.pipe)] += event.end - event.start;
    out += Format("%s{\"kind\": \"%s\", \"index\": %d, \"block\": %d, \"pipes\": {", c ? ", " : "", KindOf(core),
                  core.cube ? core.block : core.block * launch.per_block_vector + core.sub, core.block);
    bool first = true;
    for (int p = 0; p < kPipes; ++p) {
      instructions[p] += core.instructions[p];
      busy[p] += core_busy[p];
      const Pipe pipe = static_cast<Pipe>(p);
      const bool has = pipe == Pipe::V ? core.vector
                       : pipe == Pipe::M || pipe == Pipe::MTE1 || pipe == Pipe::FIX ? core.cube : true;
      have[p] += has ? 1 : 0;
      if (!has) continue;
      out += Format("%s\"%s\": {\"instructions\": %llu, \"busy_s\": %.9g}", first ? "" : ", ", Name(pipe),
                    static_cast<unsigned long long>(core.instructions[p]), core_busy[p]);
      first = false;
    }
    out += "}, \"peak\": {";
    first = true;
    for (int s = 0; s < static_cast<int>(Space::GM); ++s) {
      read[s] += core.read_bytes[s];
      written[s] += core.written_bytes[s];
      if (core.memory[s].capacity == 0) continue;
      out += Format("%s\"%s\": %u", first ? "" : ", ", Name(static_cast<Space>(s)), core.memory[s].peak);
      first = false;
    }
    out += "}}";
    hbm_read += core.hbm_read;
    hbm_written += core.hbm_written;
    l2_read += core.l2_read;
    l2_written += core.l2_written;
    macs += core.macs;
    elements += core.elements;
  }
  out += "], \"bytes\": {";
  const auto level = [&](const char* name, uint64_t r, uint64_t w) {
    out += Format("\"%s\": {\"read\": %llu, \"written\": %llu}, ", name, static_cast<unsigned long long>(r),
                  static_cast<unsigned long long>(w));
  };
  level("HBM", hbm_read, hbm_written);
  level("L2", l2_read, l2_written);
  for (int s = 0; s < static_cast<int>(Space::GM); ++s) level(Name(static_cast<Space>(s)), read[s], written[s]);
  out.resize(out.size() - 2);
  out += "}, \"instructions\": {";
  for (int p = 0; p < kPipes; ++p)
    out += Format("%s\"%s\": %llu", p ? ", " : "", Name(static_cast<Pipe>(p)), static_cast<unsigned long long>(instructions[p]));
  out += Format("}, \"operations\": {\"cube_macs\": %llu, \"vector_elements\": %llu}, \"time_s\": %.9g, \"utilisation\": {",
                static_cast<unsigned long long>(macs), static_cast<unsigned long long>(elements), seconds);
  if (chip.hbm_bytes_per_s > 0 && seconds > 0)
    out += Format("\"HBM\": %.4f, ", static_cast<double>(hbm_read + hbm_written) / chip.hbm_bytes_per_s / seconds);
  bool first = true;
  for (int p = 0; p < kPipes; ++p) {
    if (have[p] == 0) continue;
    out += Format("%s\"%s\": %.4f", first ? "" : ", ", Name(static_cast<Pipe>(p)),
                  seconds > 0 ? busy[p] / (seconds * have[p]) : 0.0);
    first = false;
  }
  out += "}, \"capacity\": {";
  for (int s = 0; s < static_cast<int>(Space::GM); ++s)
    out += Format("%s\"%s\": %u", s ? ", " : "", Name(static_cast<Space>(s)), Capacity(static_cast<Space>(s)));
  out += "}, \"warnings\": [";
  std::set<std::string> warnings;
  for (auto& core : launch.cores)
    for (const auto& [key, text] : core->warnings) warnings.insert(text.substr(0, text.find("\n   in:")));
  first = true;
  for (const std::string& text : warnings) {
    out += Format("%s\"%s\"", first ? "" : ", ", Escape(text).c_str());
    first = false;
  }
  return out + "]}";
}

// Chrome's trace format, which Perfetto opens: a process for each core, a thread for each pipe. Launches follow each other.
void AddTrace(Launching& launch) {
  static double offset = 0;
  static std::set<int> named;
  auto& out = TraceEvents();
  for (auto& core : launch.cores) {
    const int pid = core->cube && !core->vector ? 1000 + core->block
                                                : 2000 + core->block * launch.per_block_vector + core->sub;
    if (named.insert(pid).second) {
      out.push_back(Format("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"%s\"}}", pid,
                           core->label.c_str()));
      out.push_back(Format("{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": %d, \"args\": {\"sort_index\": %d}}",
                           pid, core->index));
      for (int p = 0; p < kPipes; ++p)
        out.push_back(Format("{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
                             pid, p, Name(static_cast<Pipe>(p))));
    }
    for (const Event& event : core->events) {
      const bool waits = event.step == Step::WaitFlag || event.step == Step::CrossWait || event.step == Step::Barrier;
      if (event.step != Step::Instruction && !(waits && event.end > event.start)) continue;
      const Pipe pipe = event.step == Step::WaitFlag ? event.to : event.step == Step::Instruction ? event.pipe : Pipe::S;
      out.push_back(Format(
          "{\"ph\": \"X\", \"name\": \"%s\", \"cat\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.6f, \"dur\": %.6f, "
          "\"args\": {\"line\": \"%s:%d\", \"kernel\": \"%s\", \"hbm_bytes\": %.0f, \"l2_bytes\": %.0f, \"cycles\": %.0f}}",
          event.name, event.step == Step::Instruction ? "instruction" : "wait", pid, static_cast<int>(pipe),
          (offset + event.start) * 1e6, (event.end - event.start) * 1e6, Escape(event.where.file ? event.where.file : "").c_str(),
          event.where.line, Escape(launch.kernel).c_str(), event.hbm_bytes, event.l2_bytes, event.cycles));
    }
  }
  offset += EndOf(launch);
}

std::string TraceJson() {
  std::string text = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [\n";
  const auto& events = TraceEvents();
  for (size_t i = 0; i < events.size(); ++i) text += events[i] + (i + 1 < events.size() ? ",\n" : "\n");
  return text + "]}\n";
}

// ------------------------------------------------------------------------------------------------------------- dumps

double ToDouble(const void* value, DType dtype) {
  const auto as = [value](auto zero) {
    std::memcpy(&zero, value, sizeof(zero));
    return zero;
  };
  switch (dtype) {
    case DType::F16: return HalfToFloat(as(uint16_t{}));
    case DType::BF16: return BfloatToFloat(as(uint16_t{}));
    case DType::F32: return as(float{});
    case DType::F64: return as(double{});
    case DType::I8: return as(int8_t{});
    case DType::U8: return as(uint8_t{});
    case DType::I16: return as(int16_t{});
    case DType::U16: return as(uint16_t{});
    case DType::I32: return as(int32_t{});
    case DType::U32: return as(uint32_t{});
    case DType::I64: return static_cast<double>(as(int64_t{}));
    case DType::U64: return static_cast<double>(as(uint64_t{}));
    default: return as(uint8_t{});
  }
}

namespace {

template <class Read>
void Dump(const char* where_from, DType dtype, int element, uint32_t description, uint32_t count, Read&& read) {
  std::string text = Format("[DumpTensor %u] %s, %u elements of %s:", description, where_from, count, Name(dtype));
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t bytes[8];
    read(i * static_cast<uint32_t>(element), bytes);
    if (i % 16 == 0) text += "\n ";
    text += Format(" %g", ToDouble(bytes, dtype));
  }
  Print((text + "\n").c_str());
}

}  // namespace

void DumpElements(const Tensor& tensor, uint32_t description, uint32_t count, Where where) {
  Barrier(Pipe::Count, where);  // a dump sees what has been issued so far
  Dump(Name(tensor.space), tensor.dtype, tensor.element, description, count, [&](uint32_t offset, void* to) {
    Instruction in(Pipe::S, "DumpTensor", Unit::Any, where);
    in.read(tensor, offset, tensor.element, 0);
    std::copy_n(in.data(tensor) + offset, tensor.element, static_cast<uint8_t*>(to));
  });
  Barrier(Pipe::Count, where);
}

void DumpElements(const Global& global, uint32_t description, uint32_t count, Where where) {
  Barrier(Pipe::Count, where);
  Dump("GM", global.dtype, global.element, description, count, [&](uint32_t offset, void* to) {
    ScalarRead(global, offset, to, global.element, where);
  });
  Barrier(Pipe::Count, where);
}

}  // namespace atbfn::emulator
