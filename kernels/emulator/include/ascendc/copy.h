// Copies between GM and on-chip memory, and within it; caches; tensors by list; scalar atomics.
#pragma once

#include "ascendc/copy_params.h"
#include "ascendc/pipe.h"
#include "atbfn/copy.h"
#include "atbfn/cube.h"

namespace AscendC {

namespace detail {

inline emu::Blocks Of(const DataCopyParams& p) { return {p.blockCount, p.blockLen, p.srcGap, p.dstGap}; }
inline emu::Blocks Of(const DataCopyExtParams& p) {
  return {p.blockCount, p.blockLen, static_cast<int64_t>(p.srcStride), static_cast<int64_t>(p.dstStride)};
}
inline emu::NdToNz Of(const Nd2NzParams& p, bool small_c0 = false) {
  return {p.ndNum, p.nValue, p.dValue, p.srcNdMatrixStride, p.srcDValue,
          p.dstNzC0Stride, p.dstNzNStride, p.dstNzMatrixStride, false, small_c0};
}
// The bits of a value, in the low bytes.
template <class T>
uint64_t Bits(const T& value) {
  static_assert(sizeof(T) <= 8, "values of up to 64 bits");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}
template <class T>
T FromBits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
emu::Global At(__gm__ T* address) {
  return {DTypeOf<T>(), static_cast<uint8_t>(sizeof(T)), reinterpret_cast<uint8_t*>(address)};
}

}  // namespace detail

// ---------------------------------------------------------------------------------------------------------- DataCopy

template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& repeatParams,
                     emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(repeatParams), where);
}
template <typename T>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams,
                     emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(repeatParams), where);
}
template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams,
                     emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(repeatParams), where);
}
template <typename T, typename U>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const DataCopyParams& repeatParams,
                     emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(repeatParams), where);
}

template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const uint32_t count,
                     emu::Where where = emu::Here()) {
  emu::CopyCount(dst.Handle(), src.Handle(), count, where);
}
template <typename T>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
                     emu::Where where = emu::Here()) {
  emu::CopyCount(dst.Handle(), src.Handle(), count, where);
}
template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
                     emu::Where where = emu::Here()) {
  emu::CopyCount(dst.Handle(), src.Handle(), count, where);
}

#if __NPU_ARCH__ == 3510
template <typename T, bool enableSmallC0 = false>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& intriParams,
                     emu::Where where = emu::Here()) {
  emu::CopyNdToNz(dst.Handle(), src.Handle(), detail::Of(intriParams, enableSmallC0), where);
}
template <typename T, bool enableSmallC0 = false>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Dn2NzParams& p,
                     emu::Where where = emu::Here()) {
  emu::CopyNdToNz(dst.Handle(), src.Handle(),
                  {p.dnNum, p.nValue, p.dValue, p.srcDnMatrixStride, p.srcDValue, p.dstNzC0Stride, p.dstNzNStride,
                   p.dstNzMatrixStride, true, enableSmallC0},
                  where);
}
template <typename T, uint8_t dim, const NdDmaConfig& config = kDefaultNdDmaConfig>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const MultiCopyParams<T, dim>& params,
                     emu::Where where = emu::Here()) {
  emu::Dimension dimensions[dim];
  for (int i = 0; i < dim; ++i)
    dimensions[i] = {params.loopInfo.loopSrcStride[i], params.loopInfo.loopDstStride[i], params.loopInfo.loopSize[i],
                     config.loopLpSize == NdDmaConfig::unsetPad ? params.loopInfo.loopLpSize[i]
                                                                : static_cast<uint8_t>(config.loopLpSize),
                     config.loopRpSize == NdDmaConfig::unsetPad ? params.loopInfo.loopRpSize[i]
                                                                : static_cast<uint8_t>(config.loopRpSize)};
  emu::CopyDimensions(dst.Handle(), src.Handle(), dimensions, dim, detail::Bits(params.constantValue),
                      config.isNearestValueMode, where);
}
inline void NdDmaDci() {}  // drops what NDDMA has cached; copies here read GM itself
#else
template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const Nd2NzParams& intriParams,
                     emu::Where where = emu::Here()) {
  emu::CopyNdToNz(dst.Handle(), src.Handle(), detail::Of(intriParams), where);
}
#endif
template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const Nd2NzParams& intriParams,
                     emu::Where where = emu::Here()) {
  emu::CopyNdToNz(dst.Handle(), src.Handle(), detail::Of(intriParams), where);
}
template <typename T>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const Nz2NdParamsFull& p,
                     emu::Where where = emu::Here()) {
  emu::CopyNzToNd(dst.Handle(), src.Handle(), {p.ndNum, p.nValue, p.dValue, p.srcNdMatrixStride, p.srcNStride,
                                               p.dstDStride, p.dstNdMatrixStride}, where);
}

namespace detail {
// A shape of 0 stands for the one that SetShapeInfo gave the tensor.
template <class Dst, class Src>
void Slices(const Dst& dst, const Src& src, const SliceInfo to[], const SliceInfo from[], uint32_t dimensions,
            emu::Where where) {
  emu::Slice a[K_MAX_SHAPE_DIM], b[K_MAX_SHAPE_DIM];
  if (dimensions < 1 || dimensions > K_MAX_SHAPE_DIM)
    emu::Refuse("size", where, "DataCopy: dimValue is %u; slices have 1 to 8 dimensions", dimensions);
  const bool given = from[0].shapeValue != 0;
  for (uint32_t i = 0; i < dimensions; ++i) {
    a[i] = {to[i].startIndex, to[i].endIndex, to[i].stride, to[i].burstLen,
            given ? to[i].shapeValue : dst.GetShapeInfo().shape[i]};
    b[i] = {from[i].startIndex, from[i].endIndex, from[i].stride, from[i].burstLen,
            given ? from[i].shapeValue : src.GetShapeInfo().shape[i]};
  }
  emu::CopySlices(dst.Handle(), src.Handle(), a, b, dimensions, where);
}
}  // namespace detail

template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const SliceInfo dstSliceInfo[],
                     const SliceInfo srcSliceInfo[], const uint32_t dimValue = 1, emu::Where where = emu::Here()) {
  detail::Slices(dst, src, dstSliceInfo, srcSliceInfo, dimValue, where);
}
template <typename T>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const SliceInfo dstSliceInfo[],
                     const SliceInfo srcSliceInfo[], const uint32_t dimValue = 1, emu::Where where = emu::Here()) {
  detail::Slices(dst, src, dstSliceInfo, srcSliceInfo, dimValue, where);
}

// With a mode of the blocks and a conversion: between L0C and UB where one core has both, otherwise a plain copy.
template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& intriParams,
                     const DataCopyEnhancedParams&, emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(intriParams), where);
}
template <typename T>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& intriParams,
                     const DataCopyEnhancedParams&, emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(intriParams), where);
}
namespace detail {
inline emu::Enhanced Of(const DataCopyEnhancedParams& p) {
  return {static_cast<uint8_t>(p.blockMode), static_cast<uint8_t>(p.deqScale), p.deqValue, p.sidStoreMode, p.isRelu};
}
}  // namespace detail
template <typename T>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& intriParams,
                     const DataCopyEnhancedParams& enhancedParams, emu::Where where = emu::Here()) {
  emu::CopyEnhanced(dst.Handle(), src.Handle(), detail::Of(intriParams), detail::Of(enhancedParams), where);
}
template <typename T, typename U>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const DataCopyParams& intriParams,
                     const DataCopyEnhancedParams& enhancedParams, emu::Where where = emu::Here()) {
  emu::CopyEnhanced(dst.Handle(), src.Handle(), detail::Of(intriParams), detail::Of(enhancedParams), where);
}

// From L0C, with the conversions that SetFixpipe... configured.
namespace detail {
inline emu::Fix Of(const DataCopyCO12DstParams& p) {
  const emu::Registers& r = emu::CoreRegisters();
  emu::Fix fix{};
  fix.n = p.nSize;
  fix.m = p.mSize;
  fix.src_stride = p.srcStride;
  fix.dst_stride = p.dstStride;
  fix.quant = static_cast<uint8_t>(p.quantPre);
  fix.scale = r.fixpipe_quant;
  fix.relu = p.reluPre != 0;
  fix.unit_flag = p.unitFlag;
  fix.channel_split = p.channelSplit;
  fix.layout = p.nz2ndEn ? emu::FixLayout::Rows : emu::FixLayout::NZ;
  fix.matrices = p.nz2ndEn ? r.fixpipe_nd : 1;
  fix.src_matrix_stride = r.fixpipe_src_nd_stride;
  fix.dst_matrix_stride = r.fixpipe_dst_nd_stride;
  fix.elements = __NPU_ARCH__ == 3510;
  fix.clip = p.clipReluPre != 0;
  fix.name = "DataCopy";
  return fix;
}
}  // namespace detail
template <typename T, typename U>
inline void DataCopy(const LocalTensor<T>& dst, const LocalTensor<U>& src, const DataCopyCO12DstParams& intriParams,
                     emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), nullptr, detail::Of(intriParams), where);
}
template <typename T, typename U>
inline void DataCopy(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const DataCopyCO12DstParams& intriParams,
                     emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), nullptr, detail::Of(intriParams), where);
}

template <typename T, uint8_t subBlockId = 0>
inline void DataCopyL1ToUB(const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
                           emu::Where where = emu::Here()) {
  emu::CopyCount(dst.Handle(), src.Handle(), count, where);
}
template <typename T, uint8_t subBlockId = 0>
inline void DataCopyL1ToUB(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& repeatParams,
                           emu::Where where = emu::Here()) {
  emu::CopyBlocks(dst.Handle(), src.Handle(), detail::Of(repeatParams), where);
}

// -------------------------------------------------------------------------------------------------------- DataCopyPad

#if __NPU_ARCH__ == 3510
#define ATBFN_PADDING_MODE , PaddingMode mode = PaddingMode::Normal
#define ATBFN_COMPACT (mode == PaddingMode::Compact)
#else
#define ATBFN_PADDING_MODE
#define ATBFN_COMPACT false
#endif
template <typename T ATBFN_PADDING_MODE>
inline void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyParams& dataCopyParams,
                        const DataCopyPadParams& padParams, emu::Where where = emu::Here()) {
  emu::CopyPad(dst.Handle(), src.Handle(), detail::Of(dataCopyParams),
               {padParams.isPad, padParams.leftPadding, padParams.rightPadding, padParams.paddingValue}, ATBFN_COMPACT,
               where);
}
template <typename T ATBFN_PADDING_MODE>
inline void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& dataCopyParams,
                        emu::Where where = emu::Here()) {
  emu::CopyPad(dst.Handle(), src.Handle(), detail::Of(dataCopyParams), ATBFN_COMPACT, where);
}
template <typename T ATBFN_PADDING_MODE>
inline void DataCopyPad(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
                        const DataCopyPadExtParams<T>& padParams, emu::Where where = emu::Here()) {
  emu::CopyPad(dst.Handle(), src.Handle(), detail::Of(dataCopyParams),
               {padParams.isPad, padParams.leftPadding, padParams.rightPadding, detail::Bits(padParams.paddingValue)},
               ATBFN_COMPACT, where);
}
template <typename T ATBFN_PADDING_MODE>
inline void DataCopyPad(const GlobalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
                        emu::Where where = emu::Here()) {
  emu::CopyPad(dst.Handle(), src.Handle(), detail::Of(dataCopyParams), ATBFN_COMPACT, where);
}
#undef ATBFN_PADDING_MODE
#undef ATBFN_COMPACT
template <typename T>
inline void DataCopyPad(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyParams& dataCopyParams,
                        const Nd2NzParams& nd2nzParams, emu::Where where = emu::Here()) {
  emu::CopyPad(dst.Handle(), src.Handle(), detail::Of(dataCopyParams), detail::Of(nd2nzParams), where);
}
template <typename T>
inline void DataCopyPad(const LocalTensor<T>& dst, const LocalTensor<T>& src, const DataCopyExtParams& dataCopyParams,
                        const Nd2NzParams& nd2nzParams, emu::Where where = emu::Here()) {
  emu::CopyPad(dst.Handle(), src.Handle(), detail::Of(dataCopyParams), detail::Of(nd2nzParams), where);
}
template <typename T, TPosition pos = TPosition::MAX>
inline void SetPadValue(T paddingValue) {
  emu::CoreRegisters().pad_value = detail::Bits(paddingValue);
  emu::CoreRegisters().pad_set = true;
}

#if __NPU_ARCH__ == 3510
inline void SetLoopModePara(const LoopModeParams& loopParams, DataCopyMVType type) {
  emu::Registers::Loop& loop = emu::CoreRegisters().copy_loops[static_cast<int>(type)];
  loop = {{loopParams.loop1Size, loopParams.loop2Size},
          {loopParams.loop1SrcStride, loopParams.loop2SrcStride},
          {loopParams.loop1DstStride, loopParams.loop2DstStride}};
}
inline void ResetLoopModePara(DataCopyMVType type) { emu::CoreRegisters().copy_loops[static_cast<int>(type)] = {}; }
#endif

// ------------------------------------------------------------------------------------------------- whole GM buffers

template <typename T>
inline void InitOutput(GlobalTensor<T> gmWorkspaceAddr, uint32_t size, T value = 0, emu::Where where = emu::Here()) {
  emu::FillGlobal(gmWorkspaceAddr.Handle(), size, detail::Bits(value), "InitOutput", where);
}
template <typename T>
inline void InitGlobalMemory(GlobalTensor<T>& gmWorkspaceAddr, const uint64_t size, const T value,
                             emu::Where where = emu::Here()) {
  emu::FillGlobal(gmWorkspaceAddr.Handle(), size, detail::Bits(value), "InitGlobalMemory", where);
}
template <typename T>
inline void Fill(GlobalTensor<T>& gmWorkspaceAddr, const uint64_t size, const T value,
                 emu::Where where = emu::Here()) {
  emu::FillGlobal(gmWorkspaceAddr.Handle(), size, detail::Bits(value), "Fill", where);
}

// -------------------------------------------------------------------------------------------- caches and the scalar unit

// The scalar unit reads and writes GM here without a cache of its own, so these have nothing to do.
template <typename T>
inline void DataCachePreload(const GlobalTensor<uint64_t>&, const T) {}
template <typename T, CacheLine entireType, DcciDst dcciDst>
inline void DataCacheCleanAndInvalid(const GlobalTensor<T>&) {}
template <typename T, CacheLine entireType, DcciDst dcciDst>
inline void DataCacheCleanAndInvalid(const LocalTensor<T>&) {}
template <typename T, CacheLine entireType>
inline void DataCacheCleanAndInvalid(const GlobalTensor<T>&) {}
inline void ICachePreLoad(const int64_t) {}
inline int64_t GetICachePreloadStatus() { return 0; }

template <typename T>
inline T ReadGmByPassDCache(__gm__ T* addr, emu::Where where = emu::Here()) {
  return detail::FromBits<T>(emu::ScalarLoad(detail::At(addr), "ReadGmByPassDCache", where));
}
template <typename T>
inline void WriteGmByPassDCache(__gm__ T* addr, T value, emu::Where where = emu::Here()) {
  emu::ScalarStore(detail::At(addr), detail::Bits(value), "WriteGmByPassDCache", where);
}

template <typename T>
inline T AtomicAdd(__gm__ T* address, T value, emu::Where where = emu::Here()) {
  return detail::FromBits<T>(emu::ScalarAtomic(detail::At(address), detail::Bits(value), 0, 1, "AtomicAdd", where));
}
template <typename T>
inline T AtomicMax(__gm__ T* address, T value, emu::Where where = emu::Here()) {
  return detail::FromBits<T>(emu::ScalarAtomic(detail::At(address), detail::Bits(value), 0, 2, "AtomicMax", where));
}
template <typename T>
inline T AtomicMin(__gm__ T* address, T value, emu::Where where = emu::Here()) {
  return detail::FromBits<T>(emu::ScalarAtomic(detail::At(address), detail::Bits(value), 0, 3, "AtomicMin", where));
}
template <typename T>
inline T AtomicExch(__gm__ T* address, T value, emu::Where where = emu::Here()) {
  return detail::FromBits<T>(emu::ScalarAtomic(detail::At(address), detail::Bits(value), 0, 4, "AtomicExch", where));
}
template <typename T>
inline T AtomicCas(__gm__ T* address, T value1, T value2, emu::Where where = emu::Here()) {
  return detail::FromBits<T>(
      emu::ScalarAtomic(detail::At(address), detail::Bits(value2), detail::Bits(value1), 5, "AtomicCas", where));
}

// ------------------------------------------------------------------------------------------------------ tensor lists

// A list of tensors in GM: [offset of the pointers in bytes][per tensor: its index or count, rank; its shape][pointers].
template <class T>
class TensorDesc {
 public:
  void SetShapeAddr(uint64_t* shapePtr) { shape_ = shapePtr; }
  uint64_t GetDim() { return dim_; }
  uint64_t GetIndex() { return index_; }
  uint64_t GetShape(uint32_t offset, emu::Where where = emu::Here()) {
    if (shape_ == nullptr || offset >= dim_)
      emu::Refuse("size", where, "GetShape(%u): the tensor has %u dimensions", offset, dim_);
    return shape_[offset];
  }
  __gm__ T* GetDataPtr() { return pointer_; }
  GlobalTensor<T> GetDataObj() {
    uint64_t size = 1;
    for (uint32_t i = 0; i < dim_; ++i) size *= shape_[i];
    GlobalTensor<T> tensor;
    tensor.SetGlobalBuffer(pointer_, size);
    return tensor;
  }

 private:
  friend class ListTensorDesc;
  uint32_t dim_ = 0, index_ = 0;
  uint64_t* shape_ = nullptr;
  __gm__ T* pointer_ = nullptr;
};

class ListTensorDesc {
 public:
  ListTensorDesc() = default;
  explicit ListTensorDesc(__gm__ void* data, uint32_t length = 0xffffffff, uint32_t shapeSize = 0xffffffff,
                          emu::Where where = emu::Here()) {
    Init(data, length, shapeSize, where);
  }
  void Init(__gm__ void* data, uint32_t length = 0xffffffff, uint32_t shapeSize = 0xffffffff,
            emu::Where where = emu::Here()) {
    if (data == nullptr) emu::Refuse("size", where, "ListTensorDesc: the list's address is null");
    __gm__ uint64_t* words = reinterpret_cast<__gm__ uint64_t*>(data);
    const auto word = [&](int64_t i) { return emu::ScalarLoad(detail::At(words + i), "ListTensorDesc", where); };
    const uint64_t offset = word(0), first = word(1);
    shapes_ = words + 1;
    pointers_ = words + offset / sizeof(uint64_t);
    dim_ = static_cast<uint32_t>(first & 0xffffffff);
    entry_ = dim_ == 0 ? 2 : 1 + dim_;
    const uint32_t stated = static_cast<uint32_t>(first >> 32);
    count_ = stated != 0 ? stated
                         : static_cast<uint32_t>(word(static_cast<int64_t>(offset / sizeof(uint64_t)) - entry_) >> 32) + 1;
    const bool whole = dim_ == 0 ? offset == 24 : count_ == (offset - sizeof(uint64_t)) / (entry_ * sizeof(uint64_t));
    if (!whole || (shapeSize != 0xffffffff && count_ != shapeSize) ||
        (length != 0xffffffff && shapeSize != 0xffffffff && length != offset + count_ * sizeof(uint64_t)))
      emu::Refuse("size", where, "ListTensorDesc: the memory holds no list of %u tensors of rank %u", count_, dim_);
  }
  template <class T>
  void GetDesc(TensorDesc<T>& desc, uint32_t index, emu::Where where = emu::Here()) {
    if (index >= count_) emu::Refuse("size", where, "GetDesc(%u): the list has %u tensors", index, count_);
    if (desc.shape_ == nullptr) emu::Refuse("size", where, "GetDesc: SetShapeAddr must give the descriptor memory first");
    desc.dim_ = dim_;
    desc.index_ = index;
    desc.pointer_ = GetDataPtr<T>(index, where);
    for (uint32_t i = 0; i < dim_; ++i)
      desc.shape_[i] = emu::ScalarLoad(detail::At(shapes_ + index * entry_ + 1 + i), "GetDesc", where);
  }
  template <class T>
  __gm__ T* GetDataPtr(uint32_t index, emu::Where where = emu::Here()) {
    if (index >= count_) emu::Refuse("size", where, "GetDataPtr(%u): the list has %u tensors", index, count_);
    return reinterpret_cast<__gm__ T*>(emu::ScalarLoad(detail::At(pointers_ + index), "GetDataPtr", where));
  }
  uint32_t GetSize() { return count_; }

 private:
  __gm__ uint64_t* shapes_ = nullptr;
  __gm__ uint64_t* pointers_ = nullptr;
  uint32_t dim_ = 0, entry_ = 0, count_ = 0;
};

}  // namespace AscendC
