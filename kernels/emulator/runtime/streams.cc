// Streams and events. Launches run at once, but a program must not rely on it: what a launch has written is not there for
// the host until it has waited for the stream.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core.h"

namespace atbfn::emulator {

namespace {

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

struct Work {
  uint64_t number;  // in order of all launches
  std::string kernel;
  Ranges written;
};
struct Moment {  // a stream, up to a launch
  const void* stream;
  uint64_t number;
};
struct Stream {
  std::vector<Work> pending;
  std::vector<std::pair<uint64_t, Moment>> waits;  // for an event: from which launch on, and what for
};

std::mutex mutex;
uint64_t launches = 0;
Ranges last_written;
std::map<const void*, Stream>& Streams() {
  static std::map<const void*, Stream> streams = {{nullptr, {}}};  // the default stream is there always
  return streams;
}
std::map<const void*, Moment>& Events() {
  static std::map<const void*, Moment> events;
  return events;
}

void Finish(Moment until) {
  const auto found = Streams().find(until.stream);
  if (found == Streams().end()) return;
  auto& [pending, waits] = found->second;
  pending.erase(std::remove_if(pending.begin(), pending.end(), [&](const Work& work) { return work.number <= until.number; }),
                pending.end());
  std::vector<Moment> reached;
  for (size_t i = 0; i < waits.size();)
    if (waits[i].first <= until.number) {
      reached.push_back(waits[i].second);
      waits.erase(waits.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  for (const Moment& moment : reached) Finish(moment);
}

}  // namespace

void AddStream(const void* stream) {
  std::lock_guard lock(mutex);
  Streams()[stream] = {};
}
bool RemoveStream(const void* stream) {
  std::lock_guard lock(mutex);
  return stream != nullptr && Streams().erase(stream) != 0;
}
bool KnownStream(const void* stream) {
  std::lock_guard lock(mutex);
  return Streams().count(stream) != 0;
}
void FinishStream(const void* stream) {
  std::lock_guard lock(mutex);
  Finish({stream, launches});
}
void FinishAllStreams() {
  std::lock_guard lock(mutex);
  for (auto& [stream, state] : Streams()) state = {};
}
void RecordEvent(const void* event, const void* stream) {
  std::lock_guard lock(mutex);
  Events()[event] = {stream, launches};
}
void ForgetEvent(const void* event) {
  std::lock_guard lock(mutex);
  Events().erase(event);
}
void FinishEvent(const void* event) {
  std::lock_guard lock(mutex);
  if (const auto found = Events().find(event); found != Events().end()) Finish(found->second);
}
void WaitForEvent(const void* stream, const void* event) {
  std::lock_guard lock(mutex);
  if (const auto found = Events().find(event); found != Events().end())
    Streams()[stream].waits.push_back({launches, found->second});
}

std::string PendingWriter(const void* start, size_t bytes) {
  std::lock_guard lock(mutex);
  const uint64_t begin = reinterpret_cast<uint64_t>(start), end = begin + bytes;
  for (const auto& [stream, state] : Streams())
    for (const Work& work : state.pending)
      for (const auto& [from, to] : work.written)
        if (from < end && begin < to) return work.kernel;
  return "";
}

void RememberWritten(const Launching& launch) {
  Ranges written, merged;
  for (const auto& core : launch.cores)
    for (const GmAccess& access : core->accesses) {
      if (access.kind == GmAccess::Read) continue;
      const uint64_t other = access.begin + access.stride * (access.count - 1);
      written.emplace_back(std::min(access.begin, other), std::max(access.begin, other) + access.bytes);
    }
  std::sort(written.begin(), written.end());
  for (const auto& [begin, end] : written) {
    if (!merged.empty() && begin <= merged.back().second) merged.back().second = std::max(merged.back().second, end);
    else merged.emplace_back(begin, end);
  }
  std::lock_guard lock(mutex);
  last_written = std::move(merged);
}

void BeginLaunch(const void* stream, const char* name, const char* file, int line) {
  if (KnownStream(stream)) return;
  std::fflush(stdout);
  std::fputs(Message("error", {file, line}, "launch",
                     Format("%s<<<...>>>: the stream was not created by aclrtCreateStream, or is destroyed already", name)).c_str(),
             stderr);
  std::fflush(stderr);
  std::_Exit(1);
}

void EndLaunch(const void* stream, const char* name, const char* file, int line) {
  std::lock_guard lock(mutex);
  Streams()[stream].pending.push_back({++launches, Format("kernel %s (%s:%d)", name, file, line), std::move(last_written)});
  last_written.clear();
}

}  // namespace atbfn::emulator
