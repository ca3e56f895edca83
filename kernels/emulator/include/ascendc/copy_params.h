// Parameters of the copies. Members, their order and the constructors are those of the public interface.
#pragma once

#include "ascendc/tensor.h"

enum pad_t { PAD_NONE = 0, PAD_MODE1, PAD_MODE2, PAD_MODE3, PAD_MODE4, PAD_MODE5, PAD_MODE6, PAD_MODE7, PAD_MODE8 };

namespace AscendC {

constexpr uint8_t DEFAULT_DATA_COPY_NBURST = 1;
constexpr uint8_t DEFAULT_DATA_COPY_STRIDE = 0;

enum class BlockMode : uint8_t {
  BLOCK_MODE_NORMAL = 0, BLOCK_MODE_MATRIX, BLOCK_MODE_VECTOR, BLOCK_MODE_SMALL_CHANNEL, BLOCK_MODE_DEPTHWISE,
};
enum class DeqScale : uint8_t { DEQ_NONE = 0, DEQ, VDEQ, DEQ8, VDEQ8, DEQ16, VDEQ16 };
enum class PaddingMode : uint8_t { Normal = 0, Compact };
enum class DataCopyMVType : uint8_t { UB_TO_OUT = 0, OUT_TO_UB = 1 };

struct DataCopyParams {
  DataCopyParams() {}
  DataCopyParams(const Small<uint16_t> count, const Small<uint16_t> len, const Small<uint16_t> srcStrideIn, const Small<uint16_t> dstStrideIn)
      : blockCount(count), blockLen(len), srcStride(srcStrideIn), dstStride(dstStrideIn) {}

  Small<uint16_t> blockCount = DEFAULT_DATA_COPY_NBURST;
  Small<uint16_t> blockLen = 0;
  union {
    Small<uint16_t> srcGap = 0;
    Small<uint16_t> srcStride;
  };
  union {
    Small<uint16_t> dstGap = 0;
    Small<uint16_t> dstStride;
  };
};

struct DataCopyEnhancedParams {
  DataCopyEnhancedParams() {}
  DataCopyEnhancedParams(const BlockMode blockModeIn, const DeqScale deqScaleIn, const uint64_t deqValueIn,
                         const Small<uint8_t> sidStoreModeIn, const bool isReluIn, const pad_t padModeIn,
                         const uint64_t padValueIn)
      : blockMode(blockModeIn),
        deqScale(deqScaleIn),
        deqValue(deqValueIn),
        sidStoreMode(sidStoreModeIn),
        isRelu(isReluIn),
        padMode(padModeIn),
        padValue(padValueIn) {}

  BlockMode blockMode = BlockMode::BLOCK_MODE_NORMAL;
  DeqScale deqScale = DeqScale::DEQ_NONE;
  uint64_t deqValue = 0;
  Small<uint8_t> sidStoreMode = 0;
  bool isRelu = false;
  pad_t padMode = pad_t::PAD_NONE;
  uint64_t padValue = 0;
  uint64_t deqTensorAddr = 0;
};

struct DataCopyCO12DstParams {
  DataCopyCO12DstParams() {}
  DataCopyCO12DstParams(const Small<uint16_t> nSizeIn, const Small<uint16_t> mSizeIn, const uint32_t dstStrideIn,
                        const Small<uint16_t> srcStrideIn, const QuantMode_t quantPreIn, const Small<uint8_t> reluPreIn,
                        const bool channelSplitIn, const bool nz2ndEnIn)
      : nSize(nSizeIn),
        mSize(mSizeIn),
        dstStride(dstStrideIn),
        srcStride(srcStrideIn),
        quantPre(quantPreIn),
        reluPre(reluPreIn),
        channelSplit(channelSplitIn),
        nz2ndEn(nz2ndEnIn) {}

  Small<uint8_t> sid = 0;
  Small<uint16_t> nSize = 0;
  Small<uint16_t> mSize = 0;
  uint32_t dstStride = DEFAULT_DATA_COPY_STRIDE;
  Small<uint16_t> srcStride = DEFAULT_DATA_COPY_STRIDE;
  Small<uint8_t> unitFlag = 0;
  Small<uint8_t> clipReluPre = 0;
  Small<uint8_t> eltWiseOp = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  Small<uint8_t> reluPre = 0;
  bool channelSplit = false;
  bool nz2ndEn = false;
};

struct DataCopyPadParams {
  DataCopyPadParams() {}
  DataCopyPadParams(const bool isPadValue, const Small<uint8_t> leftPadValue, const Small<uint8_t> rightPadValue,
                    const uint64_t padValue)
      : isPad(isPadValue), leftPadding(leftPadValue), rightPadding(rightPadValue), paddingValue(padValue) {}

  bool isPad = false;
  Small<uint8_t> leftPadding = 0;
  Small<uint8_t> rightPadding = 0;
  uint64_t paddingValue = 0;
};

#if __NPU_ARCH__ == 3510
using CopyStride = int64_t;
using MatrixStride = uint64_t;
using MatrixSize = uint32_t;
#else
using CopyStride = uint32_t;
using MatrixStride = uint16_t;
using MatrixSize = uint16_t;
#endif

struct DataCopyExtParams {
  DataCopyExtParams() {}
  DataCopyExtParams(const Small<uint16_t> count, const uint32_t len, const CopyStride srcStrideIn,
                    const CopyStride dstStrideIn, const uint32_t rsvIn)
      : blockCount(count), blockLen(len), srcStride(srcStrideIn), dstStride(dstStrideIn), rsv(rsvIn) {}

  Small<uint16_t> blockCount = DEFAULT_DATA_COPY_NBURST;
  uint32_t blockLen = 0;
  CopyStride srcStride = DEFAULT_DATA_COPY_STRIDE;
  CopyStride dstStride = DEFAULT_DATA_COPY_STRIDE;
  uint32_t rsv = 0;
};

template <typename T>
struct DataCopyPadExtParams {
  DataCopyPadExtParams() {}
  DataCopyPadExtParams(const bool isPadValue, const Small<uint8_t> leftPadValue, const Small<uint8_t> rightPadValue, T padValue)
      : isPad(isPadValue), leftPadding(leftPadValue), rightPadding(rightPadValue), paddingValue(padValue) {}

  bool isPad = false;
  Small<uint8_t> leftPadding = 0;
  Small<uint8_t> rightPadding = 0;
  T paddingValue = 0;
};

struct Nd2NzParams {
  Nd2NzParams() {}
  Nd2NzParams(const Small<uint16_t> ndNumIn, const Small<uint16_t> nValueIn, const MatrixSize dValueIn,
              const MatrixStride srcNdMatrixStrideIn, const MatrixStride srcDValueIn, const Small<uint16_t> dstNzC0StrideIn,
              const Small<uint16_t> dstNzNStrideIn, const MatrixSize dstNzMatrixStrideIn)
      : ndNum(ndNumIn),
        nValue(nValueIn),
        dValue(dValueIn),
        srcNdMatrixStride(srcNdMatrixStrideIn),
        srcDValue(srcDValueIn),
        dstNzC0Stride(dstNzC0StrideIn),
        dstNzNStride(dstNzNStrideIn),
        dstNzMatrixStride(dstNzMatrixStrideIn) {}

  Small<uint16_t> ndNum = 0;
  Small<uint16_t> nValue = 0;
  MatrixSize dValue = 0;
  MatrixStride srcNdMatrixStride = 0;
  MatrixStride srcDValue = 0;
  Small<uint16_t> dstNzC0Stride = 0;
  Small<uint16_t> dstNzNStride = 0;
  MatrixSize dstNzMatrixStride = 0;
};

struct Nz2NdParamsFull {
  Nz2NdParamsFull() {}
  Nz2NdParamsFull(const Small<uint16_t> ndNumIn, const Small<uint16_t> nValueIn, const Small<uint16_t> dValueIn,
                  const Small<uint16_t> srcNdMatrixStrideIn, const Small<uint16_t> srcNStrideIn, const Small<uint16_t> dstDStrideIn,
                  const Small<uint16_t> dstNdMatrixStrideIn)
      : ndNum(ndNumIn),
        nValue(nValueIn),
        dValue(dValueIn),
        srcNdMatrixStride(srcNdMatrixStrideIn),
        srcNStride(srcNStrideIn),
        dstDStride(dstDStrideIn),
        dstNdMatrixStride(dstNdMatrixStrideIn) {}

  Small<uint16_t> ndNum = 1;
  Small<uint16_t> nValue = 0;
  Small<uint16_t> dValue = 0;
  Small<uint16_t> srcNdMatrixStride = 1;
  Small<uint16_t> srcNStride = 0;
  Small<uint16_t> dstDStride = 0;
  Small<uint16_t> dstNdMatrixStride = 1;
};

struct Dn2NzParams {
  Dn2NzParams() {}
  Dn2NzParams(const Small<uint16_t> dnNumIn, const Small<uint16_t> nValueIn, const uint32_t dValueIn,
              const uint64_t srcDnMatrixStrideIn, const uint64_t srcDValueIn, const Small<uint16_t> dstNzC0StrideIn,
              const Small<uint16_t> dstNzNStrideIn, const uint32_t dstNzMatrixStrideIn)
      : dnNum(dnNumIn),
        nValue(nValueIn),
        dValue(dValueIn),
        srcDnMatrixStride(srcDnMatrixStrideIn),
        srcDValue(srcDValueIn),
        dstNzC0Stride(dstNzC0StrideIn),
        dstNzNStride(dstNzNStrideIn),
        dstNzMatrixStride(dstNzMatrixStrideIn) {}

  Small<uint16_t> dnNum = 0;
  Small<uint16_t> nValue = 0;
  uint32_t dValue = 0;
  uint64_t srcDnMatrixStride = 0;
  uint64_t srcDValue = 0;
  Small<uint16_t> dstNzC0Stride = 0;
  Small<uint16_t> dstNzNStride = 0;
  uint32_t dstNzMatrixStride = 0;
};

struct LoopModeParams {
  LoopModeParams() {}
  LoopModeParams(const uint32_t loop1SizeIn, const uint32_t loop2SizeIn, const uint64_t loop1SrcStrideIn,
                 const uint64_t loop1DstStrideIn, const uint64_t loop2SrcStrideIn, const uint64_t loop2DstStrideIn)
      : loop1Size(loop1SizeIn),
        loop2Size(loop2SizeIn),
        loop1SrcStride(loop1SrcStrideIn),
        loop1DstStride(loop1DstStrideIn),
        loop2SrcStride(loop2SrcStrideIn),
        loop2DstStride(loop2DstStrideIn) {}

  uint32_t loop1Size = 0;
  uint32_t loop2Size = 0;
  uint64_t loop1SrcStride = 0;
  uint64_t loop1DstStride = 0;
  uint64_t loop2SrcStride = 0;
  uint64_t loop2DstStride = 0;
};

struct SliceInfo {
  SliceInfo() {}
  SliceInfo(const uint32_t startIndexIn, const uint32_t endIndexIn, const uint32_t strideIn,
            const uint32_t burstLenIn, const uint32_t shapeValueIn = 0)
      : startIndex(startIndexIn),
        endIndex(endIndexIn),
        stride(strideIn),
        burstLen(burstLenIn),
        shapeValue(shapeValueIn) {}

  uint32_t startIndex = 0;
  uint32_t endIndex = ONE_BLK_SIZE - 1;
  uint32_t stride = 0;
  uint32_t burstLen = ONE_BLK_SIZE;
  uint32_t shapeValue = 0;
};

struct CopyRepeatParams {
  CopyRepeatParams() {}
  CopyRepeatParams(const Small<uint16_t> dstStrideIn, const Small<uint16_t> srcStrideIn, Small<uint16_t> dstRepeatSizeIn,
                   Small<uint16_t> srcRepeatSizeIn)
      : dstStride(dstStrideIn),
        srcStride(srcStrideIn),
        dstRepeatSize(dstRepeatSizeIn),
        srcRepeatSize(srcRepeatSizeIn) {}

  Small<uint16_t> dstStride = DEFAULT_DATA_COPY_STRIDE;
  Small<uint16_t> srcStride = DEFAULT_DATA_COPY_STRIDE;
  Small<uint16_t> dstRepeatSize = DEFAULT_REPEAT_STRIDE;
  Small<uint16_t> srcRepeatSize = DEFAULT_REPEAT_STRIDE;
};

struct NdDmaConfig {
  static constexpr uint16_t unsetPad = 0xffff;
  bool isNearestValueMode = false;
  Small<uint16_t> loopLpSize = unsetPad;
  Small<uint16_t> loopRpSize = unsetPad;
  bool ascOptimize = false;
};
using MultiCopyConfig = NdDmaConfig;
constexpr NdDmaConfig kDefaultNdDmaConfig = {false, NdDmaConfig::unsetPad, NdDmaConfig::unsetPad, false};
constexpr NdDmaConfig kDefaultMultiCopyConfig = {false, NdDmaConfig::unsetPad, NdDmaConfig::unsetPad, false};

template <uint8_t dim>
struct MultiCopyLoopInfo {
  static_assert(dim >= 1 && dim <= 5, "MultiCopy has 1 to 5 dimensions");
  uint64_t loopSrcStride[dim] = {0};
  uint32_t loopDstStride[dim] = {0};
  uint32_t loopSize[dim] = {0};
  uint8_t loopLpSize[dim] = {0};
  uint8_t loopRpSize[dim] = {0};
};
template <uint8_t dim>
using NdDmaLoopInfo = MultiCopyLoopInfo<dim>;
template <typename T, uint8_t dim>
struct MultiCopyParams {
  MultiCopyLoopInfo<dim> loopInfo;
  T constantValue;
};
template <typename T, uint8_t dim>
using NdDmaParams = MultiCopyParams<T, dim>;

}  // namespace AscendC
