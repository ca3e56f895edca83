// Where a core is, what it prints, and the tiling data it was given.
#pragma once

#include <cstdio>
#include <string>

#include "ascendc/pipe.h"

namespace AscendC {

inline int64_t GetBlockNum() { return emu::BlockCount(); }
inline int64_t GetBlockIdx() { return emu::BlockIndex(); }
inline int64_t GetSubBlockIdx() { return emu::SubBlockIndex(); }
inline int64_t GetSubBlockNum() { return emu::SubBlockCount(); }
inline int64_t GetTaskRatio() { return emu::TaskRatio(); }
inline int64_t GetTaskRation() { return emu::TaskRatio(); }
inline constexpr int16_t GetDataBlockSizeInBytes() { return ONE_BLK_SIZE; }
inline void GetArchVersion(uint32_t& version) { version = __NPU_ARCH__; }
inline int64_t GetSystemCycle() { return emu::Cycles(); }
inline int64_t GetProgramCounter() { return emu::Cycles(); }
inline void InitSocState() {}  // a core starts in the state that this establishes
[[noreturn]] inline void Trap(emu::Where where = emu::Here()) { emu::Refuse("trap", where, "the kernel called Trap"); }

// Scalar bit operations.
template <int value>
inline int64_t ScalarGetCountOfValue(uint64_t bits) {
  return value == 1 ? __builtin_popcountll(bits) : 64 - __builtin_popcountll(bits);
}
template <int value>
inline int64_t GetBitCount(uint64_t bits) { return ScalarGetCountOfValue<value>(bits); }
inline int64_t ScalarCountLeadingZero(uint64_t bits) { return bits == 0 ? 64 : __builtin_clzll(bits); }
inline int64_t CountLeadingZero(uint64_t bits) { return ScalarCountLeadingZero(bits); }
inline int64_t CountBitsCntSameAsSignBit(int64_t bits) {
  const int64_t different = bits < 0 ? ~bits : bits;
  return different == 0 ? -1 : ScalarCountLeadingZero(static_cast<uint64_t>(different)) - 1;
}
template <int value>
inline int64_t ScalarGetSFFValue(uint64_t bits) {
  const uint64_t wanted = value == 1 ? bits : ~bits;
  return wanted == 0 ? -1 : __builtin_ctzll(wanted);
}
template <int value>
inline int64_t GetSFFValue(uint64_t bits) { return ScalarGetSFFValue<value>(bits); }

// ------------------------------------------------------------------------------------------------------------ output

namespace detail {
inline double Printable(half value) { return static_cast<double>(value); }
inline double Printable(bfloat16_t value) { return static_cast<float>(value); }
template <class T>
inline T Printable(T value) { return value; }
}  // namespace detail

template <class... Args>
inline void printf(const char* format, Args&&... args) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  const int size = std::snprintf(nullptr, 0, format, detail::Printable(args)...);
  std::string text(static_cast<size_t>(size) + 1, '\0');
  std::snprintf(text.data(), text.size(), format, detail::Printable(args)...);
#pragma GCC diagnostic pop
  emu::Print(text.c_str());
}
#define PRINTF AscendC::printf

template <class T>
inline void DumpTensor(const LocalTensor<T>& tensor, uint32_t desc, uint32_t size, emu::Where where = emu::Here()) {
  emu::DumpElements(tensor.Handle(), desc, size, where);
}
template <class T>
inline void DumpTensor(const GlobalTensor<T>& tensor, uint32_t desc, uint32_t size, emu::Where where = emu::Here()) {
  emu::DumpElements(tensor.Handle(), desc, size, where);
}
template <class T>
inline void DumpTensor(const LocalTensor<T>& tensor, uint32_t desc, uint32_t size, const ShapeInfo&,
                       emu::Where where = emu::Here()) {
  emu::DumpElements(tensor.Handle(), desc, size, where);
}
template <class T>
inline void DumpTensor(const GlobalTensor<T>& tensor, uint32_t desc, uint32_t size, const ShapeInfo&,
                       emu::Where where = emu::Here()) {
  emu::DumpElements(tensor.Handle(), desc, size, where);
}
template <class T>
inline void DumpAccChkPoint(const LocalTensor<T>& tensor, uint32_t index, uint32_t offset, uint32_t size,
                            emu::Where where = emu::Here()) {
  emu::DumpElements(tensor[offset].Handle(), index, size, where);
}
template <class T>
inline void DumpAccChkPoint(const GlobalTensor<T>& tensor, uint32_t index, uint32_t offset, uint32_t size,
                            emu::Where where = emu::Here()) {
  emu::DumpElements(tensor[offset].Handle(), index, size, where);
}

namespace detail {
inline void Assert(bool ok, const char* text, emu::Where where) {
  if (!ok) emu::Refuse("assert", where, "assertion failed: %s", text);
}
}  // namespace detail
#define ascendc_assert(condition, ...) \
  ::AscendC::detail::Assert(static_cast<bool>(condition), #condition, ::atbfn::emulator::Here())
#define ASCENDC_ASSERT(condition, behaviour) ascendc_assert(condition)

// --------------------------------------------------------------------------------------------------------- workspace

inline __gm__ uint8_t* GetSysWorkSpacePtr() { return static_cast<uint8_t*>(emu::CorePointer(1)); }
inline void SetSysWorkspace(__gm__ uint8_t* workspace) { emu::SetCorePointer(1, workspace); }
inline void SetSysWorkspaceForce(__gm__ uint8_t* workspace) { emu::SetCorePointer(1, workspace); }
// The part of the workspace that the system leaves to the kernel. The emulator needs none for itself.
inline __gm__ uint8_t* GetUserWorkspace(__gm__ uint8_t* workspace) { return workspace; }

}  // namespace AscendC

using AscendC::GetSysWorkSpacePtr;
using AscendC::GetUserWorkspace;
using AscendC::SetSysWorkspace;

// -------------------------------------------------------------------------------------------------------- tiling data

#define KERNEL_TYPE_AIV_ONLY 0
#define KERNEL_TYPE_AIC_ONLY 1
#define KERNEL_TYPE_MIX_AIV_1_0 2
#define KERNEL_TYPE_MIX_AIC_1_0 3
#define KERNEL_TYPE_MIX_AIC_1_1 4
#define KERNEL_TYPE_MIX_AIC_1_2 5
#define KERNEL_TYPE_AICORE 6
#define KERNEL_TYPE_VECTORCORE 7
// Which cores a kernel runs on: the launch rewriter reads these from the source.
#define KERNEL_TASK_TYPE_DEFAULT(type)
#define KERNEL_TASK_TYPE(key, type)

#define REGISTER_TILING_DEFAULT(Struct) using AtbfnTilingDefault = Struct
#define REGISTER_TILING_FOR_TILINGKEY(expression, Struct)
#define GET_TILING_DATA_WITH_STRUCT(Struct, name, pointer) \
  Struct name;                                             \
  ::AscendC::detail::CopyTiling(&name, pointer, sizeof(Struct))
#define GET_TILING_DATA(name, pointer) GET_TILING_DATA_WITH_STRUCT(AtbfnTilingDefault, name, pointer)
#define GET_TILING_DATA_MEMBER(Struct, member, name, pointer) \
  decltype(Struct::member) name;                              \
  ::AscendC::detail::CopyTiling(&name, (pointer) + offsetof(Struct, member), sizeof(name))
#define GET_TILING_DATA_PTR_WITH_STRUCT(Struct, name, pointer) \
  const Struct* name = reinterpret_cast<const Struct*>(pointer)
#define COPY_TILING_WITH_STRUCT(Struct, source, target) \
  const Struct* target = reinterpret_cast<const Struct*>(source)
#define TILING_KEY_IS(key) (TILING_KEY_VAR == (key))
#ifndef TILING_KEY_VAR
#define TILING_KEY_VAR 0
#endif

namespace AscendC::detail {
inline void CopyTiling(void* to, const __gm__ uint8_t* from, size_t bytes) { std::memcpy(to, from, bytes); }
}  // namespace AscendC::detail
