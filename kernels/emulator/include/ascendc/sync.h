// Ordering between pipes of a core, and between cores.
#pragma once

#include "ascendc/tensor.h"

namespace AscendC {

template <HardEvent event>
inline void SetFlag(int32_t eventID, emu::Where where = emu::Here()) {
  emu::SetFlag(PipesOf(event).from, PipesOf(event).to, eventID, where);
}
template <HardEvent event>
inline void WaitFlag(int32_t eventID, emu::Where where = emu::Here()) {
  emu::WaitFlag(PipesOf(event).from, PipesOf(event).to, eventID, where);
}
template <pipe_t pipe>
inline void PipeBarrier(emu::Where where = emu::Here()) {
  static_assert(pipe != PIPE_S, "PipeBarrier<PIPE_S> is not allowed: the scalar pipe hangs on it");
  emu::Barrier(PipeOf(pipe), where);
}
template <MemDsbT kind>
inline void DataSyncBarrier(emu::Where where = emu::Here()) {
  emu::Barrier(emu::Pipe::S, where);
}

template <pipe_t from, pipe_t to>
class TQueSync {
 public:
  void SetFlag(TEventID id, emu::Where where = emu::Here()) { emu::SetFlag(PipeOf(from), PipeOf(to), id, where); }
  void WaitFlag(TEventID id, emu::Where where = emu::Here()) { emu::WaitFlag(PipeOf(from), PipeOf(to), id, where); }
};

// Between cores: mode 0 all cores of a kind, 1 the vector cores of a block, 2 the cube core of a block and its vector cores.
template <uint8_t mode, pipe_t pipe>
inline void CrossCoreSetFlag(Small<uint16_t> flagId, emu::Where where = emu::Here()) {
  static_assert(mode <= 2, "CrossCoreSetFlag: the mode is 0, 1 or 2");
  static_assert(pipe != PIPE_ALL && pipe != PIPE_S, "CrossCoreSetFlag: the pipe may not be PIPE_ALL or PIPE_S");
  emu::CrossCoreSet(mode, PipeOf(pipe), flagId, where);
}
template <uint8_t mode = 0, pipe_t pipe = PIPE_S>
inline void CrossCoreWaitFlag(Small<uint16_t> flagId, emu::Where where = emu::Here()) {
  emu::CrossCoreWait(flagId, where);
}

// All cores: of vector kind (isAIVOnly) or, in a mixed kernel, of both.
template <bool isAIVOnly = true>
inline void SyncAll(emu::Where where = emu::Here()) {
  emu::SyncAllCores(isAIVOnly, 0, nullptr, where);
}
// The same through a workspace in GM. The workspace must have been cleared; every core needs 32 bytes of both.
template <bool isAIVOnly = true>
inline void SyncAll(const GlobalTensor<int32_t>& gmWorkspace, const LocalTensor<int32_t>& ubWorkspace,
                    const int32_t usedCores = 0, emu::Where where = emu::Here()) {
  // On the device every core counts in its own 32 bytes of the workspace, and polls everyone's through UB.
  const int cores = usedCores != 0 ? usedCores : emu::BlockCount() * emu::TaskRatio();
  if (static_cast<int64_t>(ubWorkspace.GetSize()) < cores * 8)
    emu::Refuse("size", where, "SyncAll: ubWorkspace has %u elements; %d cores need %d (32 bytes each)",
                ubWorkspace.GetSize(), cores, cores * 8);
  emu::SyncWorkspace("SyncAll", gmWorkspace.Handle(), 0, cores * 32, ubWorkspace.Handle(), cores * 32, where);
  emu::SyncAllCores(isAIVOnly, cores, gmWorkspace.Handle().address, where);
}

// A core tells another, through GM: IBSet(i) by one meets IBWait(i) by the other, with the same eventID.
template <bool isAIVOnly = true>
inline void IBSet(const GlobalTensor<int32_t>& gmWorkspace, const LocalTensor<int32_t>& ubWorkspace, int32_t blockIdx,
                  int32_t eventID, emu::Where where = emu::Here()) {
  emu::Barrier(emu::Pipe::Count, where);
  const int64_t blocks = emu::BlockCount() * emu::TaskRatio();
  emu::SyncWorkspace("IBSet", gmWorkspace.Handle(), (blocks * eventID + blockIdx) * 32, 32, ubWorkspace.Handle(), 32, where);
  emu::SignalSet(gmWorkspace.GetPhyAddr(static_cast<uint64_t>((blocks * eventID + blockIdx) * 8)), where);
}
template <bool isAIVOnly = true>
inline void IBWait(const GlobalTensor<int32_t>& gmWorkspace, const LocalTensor<int32_t>& ubWorkspace, int32_t blockIdx,
                   int32_t eventID, emu::Where where = emu::Here()) {
  const int64_t blocks = emu::BlockCount() * emu::TaskRatio();
  emu::SyncWorkspace("IBWait", gmWorkspace.Handle(), (blocks * eventID + blockIdx) * 32, 32, ubWorkspace.Handle(), 32, where);
  emu::SignalWait(gmWorkspace.GetPhyAddr(static_cast<uint64_t>((blocks * eventID + blockIdx) * 8)), where);
  emu::Barrier(emu::Pipe::Count, where);
}

}  // namespace AscendC
