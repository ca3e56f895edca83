// What the Ascend C headers call: one Instruction object per device instruction says which pipe it runs on and which bytes
// it reads and writes; the runtime checks limits and ordering, counts, and hands out the memory. The headers stay thin.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "atbfn/chip.h"

namespace atbfn::emulator {

// ---------------------------------------------------------------------------------------------------------- places

// A statement of the user's source. Every API function ends with a parameter `Where where = Here()`.
struct Where {
  const char* file;
  int line;
};
constexpr Where Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

enum class Pipe : uint8_t { S, V, M, MTE1, MTE2, MTE3, FIX, Count };
enum class Space : uint8_t { UB, L1, L0A, L0B, L0C, BT, FB, GM, Count };
enum class DType : uint8_t { F16, BF16, F32, F64, I8, U8, I16, U16, I32, U32, I64, U64, I4, Other };
constexpr int kPipes = static_cast<int>(Pipe::Count);
constexpr int kSpaces = static_cast<int>(Space::Count);

const char* Name(Pipe pipe);
const char* Name(Space space);
const char* Name(DType dtype);

// The kinds of kernel: which cores one block consists of (cube, vector).
enum class Kind : uint8_t { Vector, Cube, Mix11, Mix12, Mix01, Mix10 };

// Which cores have an instruction.
enum class Unit : uint8_t { Any, Vector, Cube };

// On-chip memory as an instruction sees it. `address` is in bytes from the start of the space, `size` in elements.
struct Tensor {
  Space space = Space::UB;
  DType dtype = DType::Other;
  uint8_t position = 0;   // TPosition
  uint8_t element = 1;    // bytes of an element
  uint32_t address = 0;
  uint32_t size = 0;
  uint32_t buffer = 0;    // which queue buffer it came from; 0: none
  uint32_t use = 0;       // and which AllocTensor of it
};

struct Global {
  DType dtype = DType::Other;
  uint8_t element = 1;
  uint8_t* address = nullptr;
};

// ---------------------------------------------------------------------------------------------------- instructions

struct Core;

// One instruction. Declare all reads, then all writes, then compute on data(). Ranges are in bytes, relative to the
// tensor's start; `count` pieces of `bytes`, `stride` apart. `argument` is the operand's index in the call, for messages.
class Instruction {
 public:
  Instruction(Pipe pipe, const char* name, Unit unit, Where where);
  ~Instruction();
  Instruction(const Instruction&) = delete;
  Instruction& operator=(const Instruction&) = delete;

  const uint8_t* read(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count = 1,
                      int64_t stride = 0);
  uint8_t* write(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count = 1,
                 int64_t stride = 0);
  const uint8_t* read(const Global& global, int64_t offset, int64_t bytes, int argument, int64_t count = 1,
                      int64_t stride = 0);
  // A read of bytes that may be undefined, by instructions that move whole fractals: see CopyDefined in runtime/copy.h.
  const uint8_t* read_any(const Tensor& tensor, int64_t offset, int64_t bytes, int argument, int64_t count = 1,
                          int64_t stride = 0);
  // Where atomics are on (SetAtomicAdd ...), the result goes to store() instead: it combines with what is there.
  uint8_t* write(const Global& global, int64_t offset, int64_t bytes, int argument, int64_t count = 1,
                 int64_t stride = 0);
  // Stores bytes to GM that write() declared: honours the atomic mode. `to` is the address, dtype that of the tensor.
  void store(uint8_t* to, const void* from, int64_t bytes, DType dtype);

  // The start of a tensor in host memory.
  uint8_t* data(const Tensor& tensor) const;

  // Start address a multiple of `bytes`.
  void align(const Tensor& tensor, uint32_t bytes, int argument);
  // Operands coincide or do not overlap.
  void disjoint(const Tensor& a, int64_t a_offset, int64_t a_bytes, const Tensor& b, int64_t b_offset, int64_t b_bytes,
                int a_argument, int b_argument);
  // The tensor lies in one of the spaces named (a bit set of 1 << Space).
  void lies_in(const Tensor& tensor, uint32_t spaces, int argument);
  // The dtype is one of those named (a bit set of 1 << DType).
  void dtype_in(const Tensor& tensor, uint32_t dtypes, int argument);

  // Refuses unless ok; the message says what came and what to do instead. `rule` is one word, such as "repeat".
  void require(bool ok, const char* rule, const char* format, ...) __attribute__((format(printf, 4, 5)));
  [[noreturn]] void fail(const char* rule, const char* format, ...) __attribute__((format(printf, 3, 4)));

  // Ordering against earlier instructions of `other` is guaranteed by hardware for this one (unit flags, accumulation).
  void ordered_after(Pipe other) { ordered_ |= 1u << static_cast<int>(other); }

  // It moves whole blocks of 32 bytes: what nothing wrote may go along with a value beside it, and the last block may end
  // behind the last byte asked of aclrtMalloc. All others are exact to the byte.
  void moves_blocks() { blocks_ = true; }

  // The compare register (CMPMASK) is written, or read: by instructions of the vector unit, which may overlap.
  void compare_register(bool writing);

  // For the timeline: cycles that the instruction occupies its pipe (GM traffic is added by the runtime).
  void cycles(double n) { cycles_ += n; }
  void cube_macs(uint64_t n) { macs_ += n; }
  void vector_elements(uint64_t n) { elements_ += n; }

  Core& core() const { return core_; }
  Where where() const { return where_; }
  const char* name() const { return name_; }

 private:
  void hazard(const Tensor&, uint32_t address, bool writing, Pipe other, uint32_t clock, bool other_writes, int argument);
  void touch(const Tensor&, int64_t offset, int64_t bytes, int argument, int64_t count, int64_t stride, bool writing);
  uint8_t* touch(const Global&, int64_t offset, int64_t bytes, int argument, int64_t count, int64_t stride, bool writing);

  Core& core_;
  Pipe pipe_;
  const char* name_;
  Where where_;
  uint32_t clock_;
  uint32_t ordered_ = 0;
  bool undefined_allowed_ = false;
  bool blocks_ = false;
  double cycles_ = 0;
  uint64_t macs_ = 0, elements_ = 0;
  uint64_t gm_read_ = 0, gm_written_ = 0;
  friend struct Core;
};

constexpr uint32_t Bit(Space space) { return 1u << static_cast<int>(space); }
constexpr uint32_t Bit(DType dtype) { return 1u << static_cast<int>(dtype); }

// Per-core registers that instructions consult.
struct Registers {
  uint64_t mask_high = ~0ull, mask_low = ~0ull;  // SetVectorMask
  bool mask_count = false;                       // SetMaskCount: the mask is a number of elements
  uint64_t compare_mask[4] = {0, 0, 0, 0};       // CMPMASK: 256 bits
  int64_t reserved_count = 0;                    // GatherMask's count of kept elements (RSVDCNT)
  uint64_t accumulated = 0;                      // ACC_VAL of ReduceSum and its kin (bits)
  uint64_t extreme[2] = {0, 0};                  // MAX_MIN_CNT: value and index bits
  bool saturate = false;                         // SetSaturationFlag / CTRL[48] inverted: half results saturate
  uint64_t ctrl = 1ull << 56 | 1ull << 60;
  uint8_t atomic = 0;                            // 0 none, 1 add, 2 max, 3 min
  DType atomic_dtype = DType::Other;
  uint64_t fixpipe_quant = 0;                    // SetFixpipePreQuantFlag
  uint64_t fixpipe_relu = 0;                     // SetFixPipeClipRelu
  uint32_t fixpipe_nd = 1, fixpipe_src_nd_stride = 0, fixpipe_dst_nd_stride = 0;
  Tensor fixpipe_quant_tensor, fixpipe_relu_tensor;  // SetFixPipeConfig
  bool hf32 = false, hf32_to_even = true;
  uint64_t load_padding = 0;                     // SetLoadDataPaddingValue
  uint16_t fmatrix_h[2] = {0, 0}, fmatrix_w[2] = {0, 0};
  uint8_t fmatrix_pad[2][4] = {};
  uint32_t load_boundary = 0;
  uint64_t load_repeat = 0;
  float deq_scale = 1.0f;
  int16_t deq_offset = 0;
  bool deq_sign = false;
  Tensor deq_tensor;
  bool mm_row_major = true;
  uint64_t unit_flags[8] = {};                   // a bit for each 512 bytes of L0C: written, not yet moved out
  uint64_t pad_value = 0;                        // SetPadValue, or the last padding value of DataCopyPad
  bool pad_set = false;
  uint64_t fixpipe_elementwise = 0;              // SetFixPipeAddr
  uint32_t load_dst_stride = 0;                  // SetLoadDataRepeatWithStride, in fractals
  bool load_repeat_set = false;
  struct Loop {                                  // SetLoopModePara: [0] UB to GM, [1] GM to UB; sizes of 1 are off
    uint32_t size[2] = {1, 1};
    uint64_t src_stride[2] = {0, 0}, dst_stride[2] = {0, 0};
  } copy_loops[2];
};
Registers& CoreRegisters();

// ------------------------------------------------------------------------------------------------- synchronisation

void SetFlag(Pipe from, Pipe to, int id, Where where);
void WaitFlag(Pipe from, Pipe to, int id, Where where);
void Barrier(Pipe pipe, Where where);   // Pipe::Count: all pipes
int AllocEvent(Pipe from, Pipe to, Where where);
int FetchEvent(Pipe from, Pipe to, Where where);
void ReleaseEvent(Pipe from, Pipe to, int id, Where where);
void CrossCoreSet(int mode, Pipe pipe, int id, Where where);
void CrossCoreWait(int id, Where where);
// participants 0: all cores. A workspace is that of the soft form: only cores that name the same one meet.
void SyncAllCores(bool vector_only, int participants, const void* workspace, Where where);
// The memories of the soft forms: so many bytes of GM, cleared, and of UB, which hold nothing afterwards.
void SyncWorkspace(const char* api, const Global& global, int64_t offset, int64_t bytes, const Tensor& local, int64_t local_bytes,
                   Where where);
// A counter in GM that one core raises and another waits for and lowers (IBSet and IBWait): `key` is its address.
void SignalSet(const void* key, Where where);
void SignalWait(const void* key, Where where);

// ----------------------------------------------------------------------------------------------- on-chip allocation

uint32_t Capacity(Space space);          // usable bytes
// Takes `bytes` of a space for a TPipe; an error if it does not fit. Returns the address.
uint32_t Reserve(Space space, uint64_t bytes, const char* what, Where where);
// A range placed by the program itself (static tensors): only checked and counted towards the peak.
void Place(Space space, uint64_t address, uint64_t bytes, Where where);
void ResetReserved();                    // TPipe::Reset and its end
uint32_t ReservedEnd(Space space);
void SetReservedEnd(Space space, uint32_t address);

// Buffers that queues manage.
// Returns its number, from 1. Buffers that lay there are gone from then on.
uint32_t NewBuffer(Space space, uint8_t position, uint32_t address, uint32_t bytes, Where where);
uint32_t UseBuffer(uint32_t buffer, Where where);  // a new AllocTensor: contents are undefined again; returns the use
void EndBuffer(uint32_t buffer, Where where);  // FreeTensor: tensors of this use are dead
// The memory of a buffer is given back for good: `how` says by what.
void TakeBuffer(uint32_t buffer, const char* how, Where where);
void TakeBuffers(const char* how, Where where);  // of all of the core's
void CheckUse(const Tensor& tensor, const char* api, Where where);  // the tensor is of the buffer's present use
const char* BufferName(uint32_t buffer); // "`inQueueX` (initialised at add.asc:23)"
[[noreturn]] void Refuse(const char* rule, Where where, const char* format, ...) __attribute__((format(printf, 3, 4)));
// A value that a parameter of so many bits cannot hold.
void RefuseValue(int64_t value, int bits, bool is_signed, Where where);
// The text of argument `index` in the statement at `where` ("xLocal"), or "" if it cannot be found.
const char* ArgumentText(Where where, int index);

// ---------------------------------------------------------------------------------------------------------- system

bool IsCubeCore();
bool IsVectorCore();
int BlockIndex();        // GetBlockIdx
int RawBlockIndex();     // block_idx
int BlockCount();
int SubBlockIndex();
int SubBlockCount();
int TaskRatio();
int64_t Cycles();        // of the core's scalar pipe, by the cost model
bool Unwinding();        // a refusal is on its way out of this core
void* CorePointer(int slot);
void SetCorePointer(int slot, void* value);
void Print(const char* text);            // one core's output, not interleaved with others'
void DumpElements(const Tensor& tensor, uint32_t description, uint32_t count, Where where);
void DumpElements(const Global& global, uint32_t description, uint32_t count, Where where);
double ToDouble(const void* value, DType dtype);

// Scalar access to on-chip memory and GM (GetValue, SetValue).
void ScalarRead(const Tensor& tensor, int64_t offset, void* to, int64_t bytes, Where where);
void ScalarWrite(const Tensor& tensor, int64_t offset, const void* from, int64_t bytes, Where where);
void ScalarRead(const Global& global, int64_t offset, void* to, int64_t bytes, Where where);
void ScalarWrite(const Global& global, int64_t offset, const void* from, int64_t bytes, Where where);

// --------------------------------------------------------------------------------------------------------- launches

// Runs a kernel on every core of every block. Refusals end the program unless `refused` is asked for.
bool RunKernel(Kind kind, const char* name, const char* file, int line, int64_t blocks,
               const std::function<void()>& body);

// Around a launch: the stream exists, and what was written waits for it.
void BeginLaunch(const void* stream, const char* name, const char* file, int line);
void EndLaunch(const void* stream, const char* name, const char* file, int line);

struct Launch {
  Kind kind;
  const char* name;
  const char* file;
  int line;
  int64_t blocks;
  const void* stream = nullptr;
  template <class Control = std::nullptr_t, class Stream = std::nullptr_t>
  Launch(Kind kind, const char* name, const char* file, int line, int64_t blocks, Control&& = nullptr,
         Stream&& given = nullptr)
      : kind(kind), name(name), file(file), line(line), blocks(blocks) {
    if constexpr (std::is_convertible_v<Stream&&, const void*>) stream = given;
  }
  // The arguments become the kernel's parameters at the call itself, with whatever conversions that takes.
  template <class Body, class... Args>
  void operator()(Body body, Args&&... args) const {
    BeginLaunch(stream, name, file, line);
    RunKernel(kind, name, file, line, blocks, [&] { body(args...); });
    EndLaunch(stream, name, file, line);
  }
};

bool PackedArgument(const char* kernel, int index, size_t size, size_t expected);
template <class... Parameters, size_t... I>
int LaunchPacked(Kind kind, const char* name, int64_t blocks, void (*kernel)(Parameters...), void** args,
                 const size_t* sizes, int count, std::index_sequence<I...>) {
  if (!PackedArgument(name, -1, static_cast<size_t>(count), sizeof...(Parameters))) return 1;
  if (!(PackedArgument(name, I, sizes[I], sizeof(Parameters)) && ...)) return 1;
  std::tuple<std::decay_t<Parameters>...> values(*static_cast<std::decay_t<Parameters>*>(args[I])...);
  return RunKernel(kind, name, name, 0, blocks, [&] { std::apply(kernel, values); }) ? 0 : 1;
}
// The kernel with its arguments as bytes. 0 when it ran, 1 when it was refused (see atbfn_emulator_error).
template <class... Parameters>
int LaunchPacked(Kind kind, const char* name, int64_t blocks, void (*kernel)(Parameters...), void** args,
                 const size_t* sizes, int count) {
  return LaunchPacked(kind, name, blocks, kernel, args, sizes, count, std::index_sequence_for<Parameters...>{});
}

}  // namespace atbfn::emulator

extern "C" {
// For callers that launch in-process (atbfn.ascendc.run): refusals are returned, not fatal.
int atbfn_emulator_register(void* address, size_t bytes, const char* name);
void atbfn_emulator_unregister(void* address);
const char* atbfn_emulator_error();
const char* atbfn_emulator_report();
void atbfn_emulator_options(int strict, int threads, long seed, const char* trace_path);
}
