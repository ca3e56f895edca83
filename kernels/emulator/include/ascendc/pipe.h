// TPipe hands on-chip memory to queues and buffers; a TQue passes tensors from one pipe to another, with the flags set
// and waited for inside.
#pragma once

#include <memory>
#include <vector>

#include "ascendc/sync.h"

namespace AscendC {

struct TBufType {
  TBufState state = TBufState::FREE;
  uint32_t address = 0;
  uint32_t bytes = 0;
  uint32_t buffer = 0;  // the runtime's number of it
  uint32_t use = 0;
  int enque_event = -1;
  int free_event = -1;
  HardEvent enque_kind = HardEvent::MAX;
  HardEvent free_kind = HardEvent::MAX;
};
using TBufHandle = TBufType*;

namespace detail {

// What EnQue to DeQue (forward) and FreeTensor to AllocTensor order, by the memories a queue lies between.
constexpr HardEvent QueueEvent(TPosition from, TPosition to, bool forward) {
  using emu::Space;
  const Space a = SpaceOf(from), b = SpaceOf(to);
  if (a == Space::GM && b == Space::UB) return forward ? HardEvent::MTE2_V : HardEvent::V_MTE2;
  if (a == Space::UB && b == Space::GM) return forward ? HardEvent::V_MTE3 : HardEvent::MTE3_V;
  if (a == Space::UB && b == Space::UB) {
    if (from == TPosition::VECIN && to == TPosition::VECOUT) return forward ? HardEvent::MTE2_MTE3 : HardEvent::MTE3_MTE2;
    if (from == TPosition::VECOUT && to == TPosition::VECIN) return forward ? HardEvent::MTE3_MTE2 : HardEvent::MTE2_MTE3;
    return forward ? HardEvent::V_V : HardEvent::V_V;
  }
  if (a == Space::GM && b == Space::L1) return forward ? HardEvent::MTE2_MTE1 : HardEvent::MTE1_MTE2;
  if (a == Space::UB && b == Space::L1) return forward ? HardEvent::MTE3_MTE1 : HardEvent::MTE1_MTE3;
  if (a == Space::L1 && (b == Space::L0A || b == Space::L0B || b == Space::BT))
    return forward ? HardEvent::MTE1_M : HardEvent::M_MTE1;
  if (a == Space::L1 && b == Space::FB) return forward ? HardEvent::MTE1_FIX : HardEvent::FIX_MTE1;
  if (a == Space::L1 && b == Space::UB) return forward ? HardEvent::MTE1_V : HardEvent::V_MTE1;
#if __NPU_ARCH__ == 2201 || __NPU_ARCH__ == 3510
  if (a == Space::L0C) return forward ? HardEvent::M_FIX : HardEvent::FIX_M;
#else
  if (a == Space::L0C) return forward ? HardEvent::M_V : HardEvent::V_M;
#endif
  return HardEvent::MAX;
}

// TQue names one position; a queue lies between two.
constexpr TPosition QueueFrom(TPosition p) {
  switch (p) {
    case TPosition::A1: case TPosition::B1: case TPosition::C1: case TPosition::VECIN: case TPosition::TSCM:
      return TPosition::GM;
    case TPosition::A2: return TPosition::A1;
    case TPosition::B2: return TPosition::B1;
    case TPosition::C2: case TPosition::C2PIPE2GM: return TPosition::C1;
    case TPosition::CO2: return TPosition::CO1;
    default: return p;
  }
}
constexpr TPosition QueueTo(TPosition p) {
  switch (p) {
    case TPosition::VECOUT: return TPosition::GM;
    case TPosition::CO1: return TPosition::CO2;
    case TPosition::CO2: return TPosition::GM;
    default: return p;
  }
}
// Where the memory of a queue between two positions lies.
constexpr TPosition BufferPosition(TPosition from, TPosition to) {
  if (from == to) return from;
  if (from == TPosition::GM) return to;
  if (to == TPosition::GM) return from;
  if (from == TPosition::CO1) return from;
  if (SpaceOf(from) == emu::Space::UB && SpaceOf(to) == emu::Space::UB) return from;
  return to;
}

inline emu::Pipe From(HardEvent event) { return PipesOf(event).from; }
inline emu::Pipe To(HardEvent event) { return PipesOf(event).to; }

}  // namespace detail

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
 public:
  static constexpr TPosition srcPosition = src;
  static constexpr TPosition dstPosition = dst;
  static constexpr TPosition position = detail::BufferPosition(src, dst);
  static constexpr bool isTQue = true;

  TQueBind() = default;

  template <class T>
  LocalTensor<T> AllocTensor(emu::Where where = emu::Here()) {
    TBufType& buffer = Take(where);
    return Make<T>(buffer);
  }
  template <class T>
  void AllocTensor(LocalTensor<T>& tensor, emu::Where where = emu::Here()) {
    tensor = AllocTensor<T>(where);
  }
  template <class T>
  void FreeTensor(LocalTensor<T>& tensor, emu::Where where = emu::Here()) {
    TBufType& buffer = Find(tensor, "FreeTensor", where);
    if (buffer.state == TBufState::FREE)
      emu::Refuse("queue", where, "FreeTensor of a tensor of %s that is free already", emu::BufferName(buffer.buffer));
    if (buffer.state == TBufState::ENQUE)
      emu::Refuse("queue", where, "FreeTensor of a tensor that is still in %s; DeQue it first",
                  emu::BufferName(buffer.buffer));
    Give(buffer, where);
  }
  template <class T>
  bool EnQue(const LocalTensor<T>& tensor, emu::Where where = emu::Here()) {
    return Put(Find(tensor, "EnQue", where), detail::QueueEvent(src, dst, true), where);
  }
  // With the positions between which the tensor passes, where the queue's own are not meant.
  template <TPosition from, TPosition to, class T>
  bool EnQue(const LocalTensor<T>& tensor, emu::Where where = emu::Here()) {
    return Put(Find(tensor, "EnQue", where), detail::QueueEvent(from, to, true), where);
  }
  template <class T>
  LocalTensor<T> DeQue(emu::Where where = emu::Here()) {
    return Make<T>(Get(where));
  }
  template <class T>
  void DeQue(LocalTensor<T>& tensor, emu::Where where = emu::Here()) {
    if constexpr (depth == 0) {
      TBufType& buffer = Find(tensor, "DeQue", where);
      if (buffer.state != TBufState::ENQUE)
        emu::Refuse("queue", where, "DeQue of a tensor of %s that was not enqueued", emu::BufferName(buffer.buffer));
      Leave(buffer, where);
    } else {
      tensor = DeQue<T>(where);
    }
  }
  template <TPosition from, TPosition to, class T>
  LocalTensor<T> DeQue(emu::Where where = emu::Here()) {
    return Make<T>(Get(where));
  }

  TBufHandle AllocBuffer(emu::Where where = emu::Here()) { return &Take(where); }
  void FreeBuffer(TBufHandle handle, emu::Where where = emu::Here()) { Give(*handle, where); }
  bool EnQue(TBufHandle handle, emu::Where where = emu::Here()) {
    return Put(*handle, detail::QueueEvent(src, dst, true), where);
  }
  TBufHandle DeQue(emu::Where where = emu::Here()) { return &Get(where); }

  bool VacantInQue() const { return static_cast<int>(waiting_.size()) < depth; }
  bool HasTensorInQue() const { return !waiting_.empty(); }
  int32_t GetTensorCountInQue() const { return static_cast<int32_t>(waiting_.size()); }
  bool HasIdleBuffer() const {
    for (const TBufType& buffer : *buffers_)
      if (buffer.state == TBufState::FREE) return true;
    return false;
  }
  template <class T>
  TBufState GetState(const LocalTensor<T>& tensor) const {
    for (const TBufType& buffer : *buffers_)
      if (buffer.buffer == tensor.Handle().buffer) return buffer.state;
    return TBufState::FREE;
  }
  // Waits for every flag that the queue has set.
  void FreeAllEvent(emu::Where where = emu::Here()) { Drain(*buffers_, where); }

  // For TPipe and TBufPool.
  void InitBuffers(uint32_t address, int num, uint32_t bytes, emu::Where where) {
    buffers_->clear();
    waiting_.clear();
    cursor_ = 0;
    for (int i = 0; i < num; ++i) {
      TBufType buffer;
      buffer.address = address + static_cast<uint32_t>(i) * bytes;
      buffer.bytes = bytes;
      buffer.buffer = emu::NewBuffer(SpaceOf(position), static_cast<uint8_t>(position), buffer.address, bytes, where);
      buffers_->push_back(buffer);
    }
  }
  // For pools of the program's own (EXTERN_IMPL_BUFPOOL): the queue's buffers one by one, at addresses that it chooses.
  void InitStartBufHandle(TBufHandle, uint8_t, uint32_t) {
    buffers_->clear();
    waiting_.clear();
    cursor_ = 0;
  }
  template <class Pool>
  void InitBufHandle(Pool*, uint32_t, TBufHandle, uint32_t address, uint32_t bytes, emu::Where where = emu::Here()) {
    TBufType buffer;
    buffer.address = address;
    buffer.bytes = bytes;
    buffer.buffer = emu::NewBuffer(SpaceOf(position), static_cast<uint8_t>(position), address, bytes, where);
    buffers_->push_back(buffer);
  }
  std::shared_ptr<std::vector<TBufType>> Buffers() { return buffers_; }
  static void Drain(std::vector<TBufType>& buffers, emu::Where where) {
    for (TBufType& buffer : buffers) {
      if (buffer.free_event >= 0) {
        emu::WaitFlag(detail::From(buffer.free_kind), detail::To(buffer.free_kind), buffer.free_event, where);
        emu::ReleaseEvent(detail::From(buffer.free_kind), detail::To(buffer.free_kind), buffer.free_event, where);
        buffer.free_event = -1;
      }
      if (buffer.enque_event >= 0) {
        emu::WaitFlag(detail::From(buffer.enque_kind), detail::To(buffer.enque_kind), buffer.enque_event, where);
        emu::ReleaseEvent(detail::From(buffer.enque_kind), detail::To(buffer.enque_kind), buffer.enque_event, where);
        buffer.enque_event = -1;
      }
    }
  }

 private:
  template <class T>
  LocalTensor<T> Make(const TBufType& buffer) const {
    emu::Tensor tensor;
    tensor.space = SpaceOf(position);
    tensor.position = static_cast<uint8_t>(position);
    tensor.address = buffer.address;
    tensor.buffer = buffer.buffer;
    tensor.use = buffer.use;
    LocalTensor<T> result(tensor);
    result.SetSize(std::is_same_v<T, int4b_t> ? buffer.bytes * 2 : buffer.bytes / static_cast<uint32_t>(sizeof(T)));
    return result;
  }

  template <class T>
  TBufType& Find(const LocalTensor<T>& tensor, const char* api, emu::Where where) {
    const emu::Tensor& handle = tensor.Handle();
    for (TBufType& buffer : *buffers_) {
      if (buffer.buffer != handle.buffer || handle.buffer == 0) continue;
      if (buffer.use != handle.use || buffer.state == TBufState::FREE)
        emu::Refuse("queue", where, "%s of a tensor of %s that was given back with FreeTensor", api,
                    emu::BufferName(buffer.buffer));
      return buffer;
    }
    if (buffers_->empty()) emu::Refuse("queue", where, "%s on a queue that InitBuffer did not initialise", api);
    if (handle.buffer != 0)
      emu::Refuse("queue", where, "%s: the tensor is of %s, not of %s", api, emu::BufferName(handle.buffer),
                  emu::BufferName(buffers_->front().buffer));
    emu::Refuse("queue", where, "%s: the tensor was not allocated from %s", api,
                emu::BufferName(buffers_->front().buffer));
  }

  TBufType& Take(emu::Where where) {
    if (buffers_->empty()) emu::Refuse("queue", where, "AllocTensor on a queue that InitBuffer did not initialise");
    for (size_t tried = 0; tried < buffers_->size(); ++tried) {
      TBufType& buffer = (*buffers_)[cursor_];
      cursor_ = (cursor_ + 1) % buffers_->size();
      if (buffer.state != TBufState::FREE) continue;
      if (buffer.free_event >= 0) {
        emu::WaitFlag(detail::From(buffer.free_kind), detail::To(buffer.free_kind), buffer.free_event, where);
        emu::ReleaseEvent(detail::From(buffer.free_kind), detail::To(buffer.free_kind), buffer.free_event, where);
        buffer.free_event = -1;
      }
      buffer.state = TBufState::OCCUPIED;
      buffer.use = emu::UseBuffer(buffer.buffer, where);
      return buffer;
    }
    emu::Refuse("queue", where,
                "AllocTensor: all %zu buffers of %s are in use, so the core waits for ever; FreeTensor one first, or "
                "initialise the queue with more",
                buffers_->size(), emu::BufferName(buffers_->front().buffer));
  }

  bool Put(TBufType& buffer, HardEvent event, emu::Where where) {
    if (buffer.state == TBufState::ENQUE)
      emu::Refuse("queue", where, "EnQue of a tensor that is in %s already", emu::BufferName(buffer.buffer));
    if (buffer.state == TBufState::FREE)
      emu::Refuse("queue", where, "EnQue of a tensor of %s that is free", emu::BufferName(buffer.buffer));
    if (depth != 0 && static_cast<int>(waiting_.size()) >= depth)
      emu::Refuse("queue", where, "EnQue: %s has depth %d and holds %zu tensors; DeQue one first, or give it more depth",
                  emu::BufferName(buffer.buffer), static_cast<int>(depth), waiting_.size());
    if (event == HardEvent::MAX)
      emu::Refuse("queue", where, "EnQue: no pipe moves data between the positions of %s on this chip",
                  emu::BufferName(buffer.buffer));
    buffer.enque_kind = event;
    buffer.enque_event = emu::AllocEvent(detail::From(event), detail::To(event), where);
    emu::SetFlag(detail::From(event), detail::To(event), buffer.enque_event, where);
    buffer.state = TBufState::ENQUE;
    waiting_.push_back(static_cast<size_t>(&buffer - buffers_->data()));
    return true;
  }

  TBufType& Get(emu::Where where) {
    if (waiting_.empty()) {
      if (buffers_->empty()) emu::Refuse("queue", where, "DeQue on a queue that InitBuffer did not initialise");
      emu::Refuse("queue", where, "DeQue: nothing is in %s; EnQue a tensor first",
                  emu::BufferName(buffers_->front().buffer));
    }
    TBufType& buffer = (*buffers_)[waiting_.front()];
    Leave(buffer, where);
    return buffer;
  }
  void Leave(TBufType& buffer, emu::Where where) {
    const size_t index = static_cast<size_t>(&buffer - buffers_->data());
    for (size_t i = 0; i < waiting_.size(); ++i)
      if (waiting_[i] == index) {
        waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
        break;
      }
    emu::WaitFlag(detail::From(buffer.enque_kind), detail::To(buffer.enque_kind), buffer.enque_event, where);
    emu::ReleaseEvent(detail::From(buffer.enque_kind), detail::To(buffer.enque_kind), buffer.enque_event, where);
    buffer.enque_event = -1;
    buffer.state = TBufState::DEQUE;
  }

  void Give(TBufType& buffer, emu::Where where) {
    constexpr HardEvent event = detail::QueueEvent(src, dst, false);
    if constexpr (event != HardEvent::MAX) {
      buffer.free_kind = event;
      buffer.free_event = emu::AllocEvent(detail::From(event), detail::To(event), where);
      emu::SetFlag(detail::From(event), detail::To(event), buffer.free_event, where);
    }
    buffer.state = TBufState::FREE;
    emu::EndBuffer(buffer.buffer, where);
  }

  // Shared, so that the pipe can drain queues whose lifetime ended before its own.
  std::shared_ptr<std::vector<TBufType>> buffers_ = std::make_shared<std::vector<TBufType>>();
  std::vector<size_t> waiting_;
  size_t cursor_ = 0;
};

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue : public TQueBind<detail::QueueFrom(pos), detail::QueueTo(pos), depth, mask> {};

// Scratch memory without a queue: Get() gives it as a tensor, ordering is the kernel's own affair.
template <TPosition pos = TPosition::LCM>
class TBuf {
 public:
  static constexpr TPosition position = pos;
  static constexpr bool isTQue = false;

  template <class T>
  LocalTensor<T> Get(emu::Where where = emu::Here()) {
    return GetWithOffset<T>(0, 0, where, true);
  }
  template <class T>
  LocalTensor<T> Get(uint32_t count, emu::Where where = emu::Here()) {
    return GetWithOffset<T>(count, 0, where);
  }
  // `offset` in bytes.
  template <class T>
  LocalTensor<T> GetWithOffset(uint32_t count, uint32_t offset, emu::Where where = emu::Here(), bool whole = false) {
    if (buffer_ == 0) emu::Refuse("queue", where, "Get on a TBuf that InitBuffer did not initialise");
    const uint64_t bytes = whole ? bytes_ : BytesOf<T>(count);
    if (offset + bytes > bytes_)
      emu::Refuse("capacity", where, "Get: %llu bytes at offset %u do not fit into %s, which has %u",
                  static_cast<unsigned long long>(bytes), offset, emu::BufferName(buffer_), bytes_);
    emu::Tensor tensor;
    tensor.space = SpaceOf(pos);
    tensor.position = static_cast<uint8_t>(pos);
    tensor.address = address_ + offset;
    tensor.buffer = buffer_;
    tensor.use = 0;
    LocalTensor<T> result(tensor);
    result.SetSize(whole ? (std::is_same_v<T, int4b_t> ? bytes_ * 2 : bytes_ / static_cast<uint32_t>(sizeof(T))) : count);
    return result;
  }
  template <class T>
  LocalTensor<T> AllocTensor(emu::Where where = emu::Here()) { return Get<T>(where); }
  template <class T>
  void FreeTensor(LocalTensor<T>&) {}
  template <class T>
  void EnQue(const LocalTensor<T>&) {}
  template <class T>
  LocalTensor<T> DeQue(emu::Where where = emu::Here()) { return Get<T>(where); }

  void InitStartBufHandle(TBufHandle, uint8_t, uint32_t) {}
  template <class Pool>
  void InitBufHandle(Pool*, uint32_t, TBufHandle, uint32_t address, uint32_t bytes, emu::Where where = emu::Here()) {
    InitBuffers(address, bytes, where);
  }
  void InitBuffers(uint32_t address, uint32_t bytes, emu::Where where) {
    address_ = address;
    bytes_ = bytes;
    buffer_ = emu::NewBuffer(SpaceOf(pos), static_cast<uint8_t>(pos), address, bytes, where);
  }
  uint32_t Number() const { return buffer_; }

 private:
  uint32_t address_ = 0, bytes_ = 0, buffer_ = 0;
};

class TPipe {
 public:
  explicit TPipe(emu::Where where = emu::Here()) { Init(where); }
  ~TPipe() noexcept(false) {
    if (!destroyed_ && !emu::Unwinding()) Give("its TPipe ended", where_);
  }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  void Init(emu::Where where = emu::Here()) {
    if (const void* other = emu::CorePointer(0); other != nullptr && other != this)
      emu::Refuse("use-after-free", where, "a second TPipe while another one lives: both would give out the same memory; "
                  "Destroy() the first, or let it end");
    emu::ResetReserved();
    destroyed_ = false;
    emu::SetCorePointer(0, this);
#if __NPU_ARCH__ == 2201
    // The matrix library owns ids 0 to 2 of this event while a TPipe lives on a cube core.
    if (emu::IsCubeCore())
      for (int i = 0; i < 3; ++i)
        emu::SetFlag(emu::Pipe::M, emu::Pipe::MTE1, emu::AllocEvent(emu::Pipe::M, emu::Pipe::MTE1, where), where);
#endif
    where_ = where;
  }
  template <class Queue>
  bool InitBuffer(Queue& queue, Small<uint8_t> num, uint32_t bytes, emu::Where where = emu::Here()) {
    static_assert(Queue::isTQue, "InitBuffer(buffer, num, bytes) is for queues; a TBuf takes InitBuffer(buffer, bytes)");
    if (num == 0 || bytes == 0)
      emu::Refuse("capacity", where, "InitBuffer: %u buffers of %u bytes; both must be above 0", num, bytes);
    buffers_ += num;
    if (buffers_ > 64) emu::Refuse("capacity", where, "InitBuffer: a TPipe holds 64 buffers, this makes %d", buffers_);
    const uint32_t each = (bytes + 31) / 32 * 32;
    const uint32_t address =
        emu::Reserve(SpaceOf(Queue::position), static_cast<uint64_t>(each) * num, "InitBuffer", where);
    queue.InitBuffers(address, num, each, where);
    queues_.push_back(queue.Buffers());
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes, emu::Where where = emu::Here()) {
    const uint32_t size = (bytes + 31) / 32 * 32;
    if (bytes == 0) emu::Refuse("capacity", where, "InitBuffer: 0 bytes");
    if (++buffers_ > 64) emu::Refuse("capacity", where, "InitBuffer: a TPipe holds 64 buffers, this makes %d", buffers_);
    buffer.InitBuffers(emu::Reserve(SpaceOf(position), size, "InitBuffer", where), size, where);
    return true;
  }
  template <class Pool>
  bool InitBufPool(Pool& pool, uint32_t bytes, emu::Where where = emu::Here()) {
    const uint32_t size = (bytes + 31) / 32 * 32;
    pool.Give(emu::Reserve(SpaceOf(Pool::poolPos), size, "InitBufPool", where), size);
    return true;
  }
  // Shares the memory of another pool, which must not be in use at the same time.
  template <class Pool, class Other>
  bool InitBufPool(Pool& pool, uint32_t bytes, Other& shared, emu::Where where = emu::Here()) {
    if (bytes > shared.Bytes())
      emu::Refuse("capacity", where, "InitBufPool: %u bytes do not fit into the shared pool of %u", bytes, shared.Bytes());
    pool.Give(shared.Address(), bytes);
    return true;
  }
  template <HardEvent event>
  TEventID AllocEventID(emu::Where where = emu::Here()) {
    return static_cast<TEventID>(emu::AllocEvent(PipesOf(event).from, PipesOf(event).to, where));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id, emu::Where where = emu::Here()) {
    emu::ReleaseEvent(PipesOf(event).from, PipesOf(event).to, id, where);
  }
  template <HardEvent event>
  TEventID FetchEventID(emu::Where where = emu::Here()) { return FetchEventID(event, where); }
  TEventID FetchEventID(HardEvent event, emu::Where where = emu::Here()) {
    return static_cast<TEventID>(emu::FetchEvent(PipesOf(event).from, PipesOf(event).to, where));
  }
  // Gives all memory back, to be initialised again.
  void Reset(emu::Where where = emu::Here()) {
    Drain(where);
    emu::Barrier(emu::Pipe::Count, where);
    emu::TakeBuffers("TPipe::Reset took its memory back", where);
    emu::ResetReserved();
    buffers_ = 0;
  }
  void Destroy(emu::Where where = emu::Here()) { Give("TPipe::Destroy took its memory back", where); }

 private:
  void Give(const char* how, emu::Where where) {
    Drain(where);
#if __NPU_ARCH__ == 2201
    if (emu::IsCubeCore())
      for (int i = 0; i < 3; ++i) {
        emu::WaitFlag(emu::Pipe::M, emu::Pipe::MTE1, i, where);
        emu::ReleaseEvent(emu::Pipe::M, emu::Pipe::MTE1, i, where);
      }
#endif
    emu::Barrier(emu::Pipe::Count, where);
    emu::TakeBuffers(how, where);
    emu::ResetReserved();
    emu::SetCorePointer(0, nullptr);
    destroyed_ = true;
  }
  void Drain(emu::Where where) {
    for (auto& queue : queues_) TQueBind<TPosition::VECIN, TPosition::VECIN, 1>::Drain(*queue, where);
    queues_.clear();
  }
  std::vector<std::shared_ptr<std::vector<TBufType>>> queues_;
  int buffers_ = 0;
  bool destroyed_ = false;
  emu::Where where_{};
};

// Part of a memory, handed out again and again: Reset() takes all of it back.
template <TPosition pos, uint32_t count = 4>
class TBufPool {
 public:
  static constexpr TPosition poolPos = pos;
  static constexpr bool isTbufPool = true;

  ~TBufPool() noexcept(false) {
    if (!emu::Unwinding()) Reset();
  }
  template <class Queue>
  bool InitBuffer(Queue& queue, Small<uint8_t> num, uint32_t bytes, emu::Where where = emu::Here()) {
    const uint32_t each = (bytes + 31) / 32 * 32;
    queue.InitBuffers(Take(static_cast<uint64_t>(each) * num, SpaceOf(Queue::position), num, where), num, each, where);
    queues_.push_back(queue.Buffers());
    for (const TBufType& one : *queue.Buffers()) numbers_.push_back(one.buffer);
    return true;
  }
  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes, emu::Where where = emu::Here()) {
    const uint32_t size = (bytes + 31) / 32 * 32;
    buffer.InitBuffers(Take(size, SpaceOf(position), 1, where), size, where);
    numbers_.push_back(buffer.Number());
    return true;
  }
  template <class Pool>
  bool InitBufPool(Pool& pool, uint32_t bytes, emu::Where where = emu::Here()) {
    const uint32_t size = (bytes + 31) / 32 * 32;
    pool.Give(Take(size, SpaceOf(Pool::poolPos), 0, where), size);
    return true;
  }
  template <class Pool, class Other>
  bool InitBufPool(Pool& pool, uint32_t bytes, Other& shared, emu::Where where = emu::Here()) {
    if (bytes > shared.Bytes())
      emu::Refuse("capacity", where, "InitBufPool: %u bytes do not fit into the shared pool of %u", bytes, shared.Bytes());
    pool.Give(shared.Address(), bytes);
    return true;
  }
  void Reset(emu::Where where = emu::Here()) {
    for (auto& queue : queues_) TQueBind<TPosition::VECIN, TPosition::VECIN, 1>::Drain(*queue, where);
    queues_.clear();
    for (const uint32_t number : numbers_) emu::TakeBuffer(number, "its pool took the memory back", where);
    numbers_.clear();
    taken_ = 0;
    buffers_ = 0;
  }

  void Give(uint32_t address, uint32_t bytes) {
    address_ = address;
    bytes_ = bytes;
    taken_ = 0;
    buffers_ = 0;
  }
  uint32_t Address() const { return address_; }
  uint32_t Bytes() const { return bytes_; }

 private:
  uint32_t Take(uint64_t bytes, emu::Space space, uint32_t num, emu::Where where) {
    if (space != SpaceOf(pos))
      emu::Refuse("position", where, "InitBuffer: the pool lies in %s, the buffer in %s", emu::Name(SpaceOf(pos)),
                  emu::Name(space));
    buffers_ += num;
    if (buffers_ > count)
      emu::Refuse("capacity", where, "InitBuffer: this pool holds %u buffers (its second template argument), this makes %u",
                  count, buffers_);
    if (taken_ + bytes > bytes_)
      emu::Refuse("capacity", where, "InitBuffer: %llu bytes do not fit into this pool: %u of its %u are taken",
                  static_cast<unsigned long long>(bytes), taken_, bytes_);
    const uint32_t address = address_ + taken_;
    taken_ += static_cast<uint32_t>(bytes);
    return address;
  }
  uint32_t address_ = 0, bytes_ = 0, taken_ = 0, buffers_ = 0;
  std::vector<std::shared_ptr<std::vector<TBufType>>> queues_;
  std::vector<uint32_t> numbers_;  // of all buffers
};

// What a pool of the program's own needs: it hands out its memory itself, in an InitBuffer that it defines.
#define EXTERN_IMPL_BUFPOOL(POOL, POSITION, COUNT)                                       \
 public:                                                                                 \
  static constexpr ::AscendC::TPosition poolPos = POSITION;                              \
  static constexpr bool isTbufPool = true;                                               \
  void Reset() {                                                                         \
    atbfn_current_ = atbfn_address_;                                                     \
    atbfn_count_ = 0;                                                                    \
  }                                                                                      \
  void Init() { Reset(); }                                                               \
  ::AscendC::TBufHandle GetBufHandle(uint8_t offset) { return &atbfn_handles_[offset]; } \
  void SetCurAddr(uint32_t address) { atbfn_current_ = address; }                        \
  uint32_t GetCurAddr() { return atbfn_current_; }                                       \
  void SetCurBufSize(uint8_t size) { atbfn_count_ = size; }                              \
  uint8_t GetCurBufSize() { return atbfn_count_; }                                       \
  void Give(uint32_t address, uint32_t bytes) {                                          \
    atbfn_address_ = atbfn_current_ = address;                                           \
    atbfn_bytes_ = bytes;                                                                \
    atbfn_count_ = 0;                                                                    \
  }                                                                                      \
  uint32_t Address() const { return atbfn_address_; }                                    \
  uint32_t Bytes() const { return atbfn_bytes_; }                                        \
                                                                                         \
 private:                                                                                \
  ::AscendC::TBufType atbfn_handles_[COUNT];                                             \
  uint32_t atbfn_address_ = 0, atbfn_bytes_ = 0, atbfn_current_ = 0;                     \
  uint8_t atbfn_count_ = 0

// L1 memory that vector cores fill for the cube core.
template <TPosition pos, int32_t depth = 1, auto mask = 0>
class TSCM : public TQueBind<pos, TPosition::TSCM, depth, mask> {};

inline TPipe* CurrentPipe() { return static_cast<TPipe*>(emu::CorePointer(0)); }

// All that is left of the unified buffer.
template <TPosition position, class T>
inline bool PopStackBuffer(LocalTensor<T>& tensor, emu::Where where = emu::Here()) {
  const uint32_t start = emu::ReservedEnd(SpaceOf(position)), end = emu::Capacity(SpaceOf(position));
  if (end < start + sizeof(T))
    emu::Refuse("capacity", where, "PopStackBuffer: nothing is left of %s", emu::Name(SpaceOf(position)));
  tensor = LocalTensor<T>(position, start, (end - start) / static_cast<uint32_t>(sizeof(T)), where);
  return true;
}

}  // namespace AscendC

inline AscendC::TPipe* GetTPipePtr(AscendC::emu::Where where = AscendC::emu::Here()) {
  AscendC::TPipe* pipe = AscendC::CurrentPipe();
  if (pipe == nullptr)
    AscendC::emu::Refuse("queue", where, "GetTPipePtr: this core has no TPipe; declare one (TPipe pipe;) before this");
  return pipe;
}
namespace AscendC {
using ::GetTPipePtr;
}
