// The host's side: device memory, copies, streams. Everything happens at once, so streams and events only count.
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

}  // namespace

extern "C" {

aclError aclInit(const char*) { return ACL_SUCCESS; }
aclError aclFinalize() { return ACL_SUCCESS; }
const char* aclGetRecentErrMsg() { return recent.c_str(); }
aclError aclrtSetDevice(int32_t id) {
  return id == 0 ? ACL_SUCCESS : Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtSetDevice(%d): the emulator has device 0 only", id));
}
aclError aclrtResetDevice(int32_t) { return ACL_SUCCESS; }
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

aclError aclrtCreateStream(aclrtStream* stream) { return *stream = std::malloc(1), ACL_SUCCESS; }
aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) { return aclrtCreateStream(stream); }
aclError aclrtDestroyStream(aclrtStream stream) { return std::free(stream), ACL_SUCCESS; }
aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }
aclError aclrtSynchronizeStream(aclrtStream) { return ACL_SUCCESS; }
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream, int32_t) { return ACL_SUCCESS; }
aclError aclrtSynchronizeDevice() { return ACL_SUCCESS; }
aclError aclrtCreateEvent(aclrtEvent* event) { return *event = std::malloc(1), ACL_SUCCESS; }
aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) { return aclrtCreateEvent(event); }
aclError aclrtDestroyEvent(aclrtEvent event) { return std::free(event), ACL_SUCCESS; }
aclError aclrtRecordEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtResetEvent(aclrtEvent, aclrtStream) { return ACL_SUCCESS; }
aclError aclrtSynchronizeEvent(aclrtEvent) { return ACL_SUCCESS; }
aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent) { return ACL_SUCCESS; }
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
aclError aclrtFreeHost(void* pointer) { return std::free(pointer), ACL_SUCCESS; }

aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind) {
  if (bytes > room)
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMemcpy: %zu bytes do not fit into a destination of %zu", bytes, room));
  const bool to_device = kind == ACL_MEMCPY_HOST_TO_DEVICE || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  const bool from_device = kind == ACL_MEMCPY_DEVICE_TO_HOST || kind == ACL_MEMCPY_DEVICE_TO_DEVICE;
  if (kind <= ACL_MEMCPY_DEVICE_TO_DEVICE && (Device(to) != to_device || Device(from) != from_device))
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMemcpy: the destination is %s memory and the source is %s memory, "
                                                "which the kind of copy contradicts",
                                                Device(to) ? "device" : "host", Device(from) ? "device" : "host"));
  if (!Inside(to, bytes) || !Inside(from, bytes))
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMemcpy: %zu bytes reach behind the end of device memory", bytes));
  std::memmove(to, from, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind, aclrtStream) {
  return aclrtMemcpy(to, room, from, bytes, kind);
}
aclError aclrtMemset(void* to, size_t room, int32_t value, size_t bytes) {
  if (bytes > room || !Inside(to, bytes))
    return Fail(ACL_ERROR_INVALID_PARAM, Format("aclrtMemset: %zu bytes do not fit", bytes));
  std::memset(to, value, bytes);
  return ACL_SUCCESS;
}
aclError aclrtMemsetAsync(void* to, size_t room, int32_t value, size_t bytes, aclrtStream) {
  return aclrtMemset(to, room, value, bytes);
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
