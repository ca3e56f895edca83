// The host's side: device memory, copies, streams. Everything happens at once; what the host may know of it, streams.cc says.
#include "acl/acl.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.h"

namespace {

using atbfn::emulator::AddAllocation;
using atbfn::emulator::FindAllocation;
using atbfn::emulator::Format;
using atbfn::emulator::FreedName;
using atbfn::emulator::KnownStream;
using atbfn::emulator::PendingWriter;
using atbfn::emulator::RemoveAllocation;

int allocations = 0;
std::string recent;

aclError Fail(aclError code, const std::string& text) {
  recent = text;
  std::fprintf(stderr, "acl: error: %s\n", text.c_str());
  return code;
}

bool Device(const void* p) { return FindAllocation(reinterpret_cast<uint64_t>(p)) != nullptr; }

// A range that a copy or fill names must lie inside one allocation.
bool Inside(const void* p, size_t bytes) {
  const auto* allocation = FindAllocation(reinterpret_cast<uint64_t>(p));
  return allocation == nullptr || reinterpret_cast<uint64_t>(p) + bytes <= allocation->end;
}

aclError NoStream(const char* api) {
  return Fail(ACL_ERROR_INVALID_PARAM,
              Format("%s: the stream was not created by aclrtCreateStream, or is destroyed already", api));
}
aclError CheckStream(const char* api, aclrtStream stream) { return KnownStream(stream) ? ACL_SUCCESS : NoStream(api); }

// What `p` is, when it is not the kind of memory that a copy says.
std::string Kind(const void* p) {
  if (p == nullptr) return "null";
  if (Device(p)) return "device memory";
  const std::string freed = FreedName(reinterpret_cast<uint64_t>(p));
  return freed.empty() ? "host memory" : "memory that was freed: " + freed;
}

// The host may touch this memory: no kernel that it has not waited for has written there.
aclError CheckWaited(const char* api, const void* p, size_t bytes, const char* verb) {
  if (bytes == 0 || !Device(p)) return ACL_SUCCESS;
  const std::string writer = PendingWriter(p, bytes);
  if (writer.empty()) return ACL_SUCCESS;
  return Fail(ACL_ERROR_INVALID_PARAM, Format("%s %s memory that %s writes, and nothing has waited for it: call "
                                              "aclrtSynchronizeStream with its stream first", api, verb, writer.c_str()));
}

aclError Copy(const char* api, void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind, bool waited) {
  if (bytes > room)
    return Fail(ACL_ERROR_INVALID_PARAM, Format("%s: %zu bytes do not fit into a destination of %zu", api, bytes, room));
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  for (const bool destination : {true, false}) {
    const void* p = destination ? to : from;
    const bool wanted = destination ? to_device : from_device, checked = kind <= ACL_MEMCPY_DEVICE_TO_DEVICE;
    const bool freed = !Device(p) && !FreedName(reinterpret_cast<uint64_t>(p)).empty() && wanted;
    if ((p == nullptr && bytes != 0) || freed || (checked && Device(p) != wanted))
      return Fail(ACL_ERROR_INVALID_PARAM, Format("%s: the %s is %s, and the kind of copy says %s memory", api,
                                                  destination ? "destination" : "source", Kind(p).c_str(),
                                                  !checked ? "host or device" : wanted ? "device" : "host"));
  }
  if (!Inside(to, bytes) || !Inside(from, bytes))
    return Fail(ACL_ERROR_INVALID_PARAM, Format("%s: %zu bytes reach behind the end of device memory", api, bytes));
  if (waited) {
    if (const aclError error = CheckWaited(api, from, bytes, "reads"); error != ACL_SUCCESS) return error;
    if (const aclError error = CheckWaited(api, to, bytes, "writes"); error != ACL_SUCCESS) return error;
  }
  std::memmove(to, from, bytes);
  return ACL_SUCCESS;
}

}  // namespace

extern "C" {

aclError aclInit(const char*) { return ACL_SUCCESS; }
aclError aclFinalize() { return ACL_SUCCESS; }
const char* aclGetRecentErrMsg() { return recent.c_str(); }
aclError aclrtSetDevice(int32_t id) {
  return id == 0 ? ACL_SUCCESS : Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtSetDevice(%d): the emulator has device 0 only", id));
}
aclError aclrtResetDevice(int32_t) { return atbfn::emulator::FinishAllStreams(), ACL_SUCCESS; }
aclError aclrtGetDevice(int32_t* id) { return *id = 0, ACL_SUCCESS; }
aclError aclrtGetDeviceCount(uint32_t* count) { return *count = 1, ACL_SUCCESS; }
const char* aclrtGetSocName() { return atbfn::emulator::CurrentChip().name; }
aclError aclrtGetRunMode(aclrtRunMode* mode) { return *mode = ACL_HOST, ACL_SUCCESS; }
aclError aclrtCreateContext(aclrtContext* context, int32_t) {
  static int one;
  return *context = &one, ACL_SUCCESS;
}
aclError aclrtDestroyContext(aclrtContext) { return ACL_SUCCESS; }
aclError aclrtSetCurrentContext(aclrtContext) { return ACL_SUCCESS; }
aclError aclrtGetCurrentContext(aclrtContext* context) { return aclrtCreateContext(context, 0); }

aclError aclrtCreateStream(aclrtStream* stream) {
  *stream = std::malloc(1);
  atbfn::emulator::AddStream(*stream);
  return ACL_SUCCESS;
}
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }
aclError aclrtDestroyStream(aclrtStream stream) {
  if (!atbfn::emulator::RemoveStream(stream)) return NoStream("aclrtDestroyStream");
  std::free(stream);
  return ACL_SUCCESS;
}
aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
aclError aclrtSynchronizeStream(aclrtStream stream) {
  if (const aclError error = CheckStream("aclrtSynchronizeStream", stream); error != ACL_SUCCESS) return error;
  return atbfn::emulator::FinishStream(stream), ACL_SUCCESS;
}
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) { return aclrtSynchronizeStream(stream); }
aclError aclrtSynchronizeDevice() { return atbfn::emulator::FinishAllStreams(), ACL_SUCCESS; }
aclError aclrtCreateEvent(aclrtEvent* event) { return *event = std::malloc(1), ACL_SUCCESS; }
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtDestroyEvent(aclrtEvent event) { return atbfn::emulator::ForgetEvent(event), std::free(event), ACL_SUCCESS; }
aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  if (const aclError error = CheckStream("aclrtRecordEvent", stream); error != ACL_SUCCESS) return error;
  return atbfn::emulator::RecordEvent(event, stream), ACL_SUCCESS;
}
aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtSynchronizeEvent(aclrtEvent event) { return atbfn::emulator::FinishEvent(event), ACL_SUCCESS; }
aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  if (const aclError error = CheckStream("aclrtStreamWaitEvent", stream); error != ACL_SUCCESS) return error;
  return atbfn::emulator::WaitForEvent(stream, event), ACL_SUCCESS;
}
aclError aclrtEventElapsedTime(float* ms, aclrtEvent, aclrtEvent) { return *ms = 0, ACL_SUCCESS; }

aclError aclrtMalloc(void** pointer, size_t size, aclrtMemMallocPolicy) {
  if (pointer == nullptr || size == 0)
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMalloc: the size is %zu", size));
  // As on the device, a copy of whole 32-byte blocks may end behind the last element; what is exact to the byte may not.
  const size_t rounded = (size + 31) / 32 * 32;
  *pointer = std::aligned_alloc(512, (rounded + 511) / 512 * 512 + 512);
  if (*pointer == nullptr) return Fail(ACL_ERROR_BAD_ALLOC, Format("aclrtMalloc: no memory for %zu bytes", size));
  // Device memory holds whatever it held. Programs have come to rely on zeros; strictly they may not.
  std::memset(*pointer, atbfn::emulator::GlobalOptions().strict ? 0x7f : 0, rounded);
  AddAllocation(*pointer, size, Format("allocation %d (%zu bytes)", ++allocations, size), rounded);
  return ACL_SUCCESS;
}
aclError aclrtMallocAlign32(void** pointer, size_t size, aclrtMemMallocPolicy policy) { return aclrtMalloc(pointer, size, policy); }
aclError aclrtMallocCached(void** pointer, size_t size, aclrtMemMallocPolicy policy) { return aclrtMalloc(pointer, size, policy); }
aclError aclrtFree(void* pointer) {
  if (!RemoveAllocation(pointer))
    return Fail(ACL_ERROR_INVALID_PARAM, "aclrtFree: the address was not given by aclrtMalloc, or is free already");
  std::free(pointer);
  return ACL_SUCCESS;
}
aclError aclrtMallocHost(void** pointer, size_t size) {
  const size_t rounded = (size + 63) / 64 * 64 + 64;
  *pointer = std::aligned_alloc(64, rounded);
  if (*pointer != nullptr) std::memset(*pointer, 0, rounded);  // fresh pages, as programs have come to rely on
  return *pointer != nullptr ? ACL_SUCCESS : Fail(ACL_ERROR_BAD_ALLOC, Format("aclrtMallocHost: no memory for %zu bytes", size));
}
aclError aclrtFreeHost(void* pointer) {
  if (Device(pointer)) return Fail(ACL_ERROR_INVALID_PARAM, "aclrtFreeHost: the address is device memory, which aclrtFree frees");
  return std::free(pointer), ACL_SUCCESS;
}

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind) {
  return Copy("aclrtMemcpy", to, room, from, bytes, kind, true);
}
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind, aclrtStream stream) {
  if (const aclError error = CheckStream("aclrtMemcpyAsync", stream); error != ACL_SUCCESS) return error;
  return Copy("aclrtMemcpyAsync", to, room, from, bytes, kind, false);
}
aclError aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
  if (bytes > room || !Inside(to, bytes))
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMemset: %zu bytes do not fit", bytes));
  if (const aclError error = CheckWaited("aclrtMemset", to, bytes, "writes"); error != ACL_SUCCESS) return error;
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream stream) {
  if (const aclError error = CheckStream("aclrtMemsetAsync", stream); error != ACL_SUCCESS) return error;
  if (bytes > room || !Inside(to, bytes))
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMemsetAsync: %zu bytes do not fit", bytes));
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}
aclError aclrtGetMemInfo(aclrtMemAttr, size_t* free, size_t* total) {
  return *free = *total = size_t{1} << 36, ACL_SUCCESS;
}

float aclFloat16ToFloat(aclFloat16 value) {
  _Float16 half;
  std::memcpy(&half, &value, 2);
  return static_cast<float>(half);
}
aclFloat16 aclFloatToFloat16(float value) {
  const _Float16 half = static_cast<_Float16>(value);
  aclFloat16 bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}

}  // extern "C"
