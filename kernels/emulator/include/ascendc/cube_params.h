// Parameters of the matrix unit. Members, their order and the constructors are those of the public interface.
#pragma once

#include "ascendc/tensor.h"

namespace AscendC {

constexpr uint8_t PAD_SIZE = 4;

enum class HF32Mode { ENABLE, DISABLE };
enum class HF32TransMode { NEAREST_ZERO, NEAREST_EVEN };
enum class FmatrixMode : uint8_t { FMATRIX_LEFT = 0, FMATRIX_RIGHT = 1 };
enum class ClipReluMode { NOCLIP_RELU = 0, CLIP_RELU = 1 };
enum class ReluMode { NO_RELU = 0, NORMAL_RELU = 1, SCALAR_RELU = 2, VECTOR_RELU = 3 };

using LoadData2dParams = struct LoadData2DParams;
struct LoadData2DParams {
  LoadData2DParams() {}
  LoadData2DParams(const Small<uint16_t> startIndexIn, const Small<uint8_t> repeatTimesIn, const Small<uint16_t> srcStrideIn,
                   const Small<uint8_t> sidIn, const Small<uint16_t> dstGapIn, const bool ifTransposeIn, const Small<uint8_t> addrModeIn)
      : startIndex(startIndexIn),
        dstGap(dstGapIn),
        srcStride(srcStrideIn),
        ifTranspose(ifTransposeIn),
        repeatTimes(repeatTimesIn),
        sid(sidIn),
        addrMode(addrModeIn) {}

  Small<uint16_t> startIndex = 0;
  Small<uint16_t> dstGap = 0;
  Small<uint16_t> srcStride = 0;
  bool ifTranspose = 0;
  Small<uint8_t> repeatTimes = 0;
  Small<uint8_t> sid = 0;
  Small<uint8_t> addrMode = 0;
};

struct LoadData2DParamsV2 {
  LoadData2DParamsV2() {}
  LoadData2DParamsV2(const uint32_t mStartPositionIn, const uint32_t kStartPositionIn, const Small<uint16_t> mStepIn,
                     const Small<uint16_t> kStepIn, const int32_t srcStrideIn, const Small<uint16_t> dstStrideIn,
                     const bool ifTransposeIn, const Small<uint8_t> sidIn)
      : mStartPosition(mStartPositionIn),
        kStartPosition(kStartPositionIn),
        mStep(mStepIn),
        kStep(kStepIn),
        srcStride(srcStrideIn),
        dstStride(dstStrideIn),
        ifTranspose(ifTransposeIn),
        sid(sidIn) {}

  uint32_t mStartPosition = 0;
  uint32_t kStartPosition = 0;
  Small<uint16_t> mStep = 0;
  Small<uint16_t> kStep = 0;
  int32_t srcStride = 0;
  Small<uint16_t> dstStride = 0;
  bool ifTranspose = false;
  Small<uint8_t> sid = 0;
};

struct LoadData2dTransposeParams {
  LoadData2dTransposeParams() {}
  LoadData2dTransposeParams(const Small<uint16_t> startIndexIn, const Small<uint8_t> repeatTimesIn, const Small<uint16_t> srcStrideIn,
                            const Small<uint16_t> dstGapIn, const Small<uint16_t> dstfracGapIn, const Small<uint8_t> addrModeIn)
      : startIndex(startIndexIn),
        repeatTimes(repeatTimesIn),
        srcStride(srcStrideIn),
        dstGap(dstGapIn),
        dstFracGap(dstfracGapIn),
        addrMode(addrModeIn) {}
  LoadData2dTransposeParams(const Small<uint16_t> startIndexIn, const Small<uint8_t> repeatTimesIn, const Small<uint16_t> srcStrideIn,
                            const Small<uint16_t> dstGapIn, const Small<uint16_t> dstfracGapIn)
      : LoadData2dTransposeParams(startIndexIn, repeatTimesIn, srcStrideIn, dstGapIn, dstfracGapIn, 0) {}

  Small<uint16_t> startIndex = 0;
  Small<uint8_t> repeatTimes = 0;
  Small<uint16_t> srcStride = 0;
  Small<uint16_t> dstGap = 0;
  Small<uint16_t> dstFracGap = 0;
  Small<uint8_t> addrMode = 0;
};

struct LoadData2dTransposeParamsV2 {
  LoadData2dTransposeParamsV2() {}
  LoadData2dTransposeParamsV2(const Small<uint16_t> startIndexIn, const Small<uint8_t> repeatTimesIn, const Small<uint16_t> srcStrideIn,
                              const Small<uint16_t> dstGapIn, const Small<uint16_t> dstFracGapIn, const Small<uint16_t> srcFracGapIn,
                              const Small<uint8_t> addrModeIn)
      : startIndex(startIndexIn),
        repeatTimes(repeatTimesIn),
        srcStride(srcStrideIn),
        dstGap(dstGapIn),
        dstFracGap(dstFracGapIn),
        srcFracGap(srcFracGapIn),
        addrMode(addrModeIn) {}
  LoadData2dTransposeParamsV2(const Small<uint16_t> startIndexIn, const Small<uint8_t> repeatTimesIn, const Small<uint16_t> srcStrideIn,
                              const Small<uint16_t> dstGapIn, const Small<uint16_t> dstFracGapIn, const Small<uint16_t> srcFracGapIn)
      : LoadData2dTransposeParamsV2(startIndexIn, repeatTimesIn, srcStrideIn, dstGapIn, dstFracGapIn, srcFracGapIn, 0) {}

  Small<uint16_t> startIndex = 0;
  Small<uint8_t> repeatTimes = 0;
  Small<uint16_t> srcStride = 0;
  Small<uint16_t> dstGap = 0;
  Small<uint16_t> dstFracGap = 0;
  Small<uint16_t> srcFracGap = 0;
  Small<uint8_t> addrMode = 0;
};

struct LoadData2DMxParams {
  LoadData2DMxParams() {}
  LoadData2DMxParams(const Small<uint16_t> xStartPositionIn, const Small<uint16_t> yStartPositionIn, const Small<uint8_t> xStepIn,
                     const Small<uint8_t> yStepIn, const Small<uint16_t> srcStrideIn, const Small<uint16_t> dstStrideIn)
      : xStartPosition(xStartPositionIn),
        yStartPosition(yStartPositionIn),
        xStep(xStepIn),
        yStep(yStepIn),
        srcStride(srcStrideIn),
        dstStride(dstStrideIn) {}

  Small<uint16_t> xStartPosition = 0;
  Small<uint16_t> yStartPosition = 0;
  Small<uint8_t> xStep = 0;
  Small<uint8_t> yStep = 0;
  Small<uint16_t> srcStride = 0;
  Small<uint16_t> dstStride = 0;
};

template <typename T>
struct LoadData3DParamsV1 {
  LoadData3DParamsV1() {}
  LoadData3DParamsV1(const uint8_t padListIn[PAD_SIZE], const Small<uint16_t> l1HIn, const Small<uint16_t> l1WIn,
                     const Small<uint16_t> c1IndexIn, const Small<uint8_t> fetchFilterWIn, const Small<uint8_t> fetchFilterHIn,
                     const Small<int16_t> leftTopWIn, const Small<int16_t> leftTopHIn, const Small<uint8_t> strideWIn,
                     const Small<uint8_t> strideHIn, const Small<uint8_t> filterWIn, const Small<uint8_t> filterHIn,
                     const Small<uint8_t> dilationFilterWIn, const Small<uint8_t> dilationFilterHIn, const Small<uint8_t> jumpStrideIn,
                     const Small<uint8_t> repeatModeIn, const Small<uint8_t> repeatTimeIn, const Small<uint8_t> cSizeIn, const T padValueIn)
      : strideW(strideWIn),
        strideH(strideHIn),
        filterW(filterWIn),
        filterH(filterHIn),
        dilationFilterW(dilationFilterWIn),
        dilationFilterH(dilationFilterHIn),
        jumpStride(jumpStrideIn),
        repeatMode(repeatModeIn),
        repeatTime(repeatTimeIn),
        cSize(cSizeIn),
        padValue(padValueIn),
        fetchFilterW(fetchFilterWIn),
        fetchFilterH(fetchFilterHIn),
        l1H(l1HIn),
        l1W(l1WIn),
        c1Index(c1IndexIn),
        leftTopW(leftTopWIn),
        leftTopH(leftTopHIn) {
    for (int i = 0; i < PAD_SIZE; ++i) padList[i] = padListIn[i];
  }

  uint8_t padList[PAD_SIZE] = {0};
  Small<uint8_t> strideW = 0;
  Small<uint8_t> strideH = 0;
  Small<uint8_t> filterW = 0;
  Small<uint8_t> filterH = 0;
  Small<uint8_t> dilationFilterW = 0;
  Small<uint8_t> dilationFilterH = 0;
  Small<uint8_t> jumpStride = 0;
  Small<uint8_t> repeatMode = 0;
  Small<uint8_t> repeatTime = 0;
  Small<uint8_t> cSize = 0;
  T padValue = 0;
  Small<uint8_t> fetchFilterW = 0;
  Small<uint8_t> fetchFilterH = 0;
  Small<uint16_t> l1H = 0;
  Small<uint16_t> l1W = 0;
  Small<uint16_t> c1Index = 0;
  Small<int16_t> leftTopW = 0;
  Small<int16_t> leftTopH = 0;
};

template <typename T>
struct LoadData3DParamsV2 {
  LoadData3DParamsV2() {}
  LoadData3DParamsV2(const uint8_t padListIn[PAD_SIZE], const Small<uint16_t> l1HIn, const Small<uint16_t> l1WIn,
                     const Small<uint16_t> channelSizeIn, const Small<uint16_t> kExtensionIn, const Small<uint16_t> mExtensionIn,
                     const Small<uint16_t> kStartPtIn, const Small<uint16_t> mStartPtIn, const Small<uint8_t> strideWIn,
                     const Small<uint8_t> strideHIn, const Small<uint8_t> filterWIn, const Small<uint8_t> filterHIn,
                     const Small<uint8_t> dilationFilterWIn, const Small<uint8_t> dilationFilterHIn, const bool enTransposeIn,
                     const bool enSmallKIn, const T padValueIn)
      : LoadData3DParamsV2(padListIn, l1HIn, l1WIn, channelSizeIn, kExtensionIn, mExtensionIn, kStartPtIn, mStartPtIn,
                           strideWIn, strideHIn, filterWIn, filterHIn, dilationFilterWIn, dilationFilterHIn,
                           enTransposeIn, enSmallKIn, padValueIn, false, false, false) {}
  LoadData3DParamsV2(const uint8_t padListIn[PAD_SIZE], const Small<uint16_t> l1HIn, const Small<uint16_t> l1WIn,
                     const Small<uint16_t> channelSizeIn, const Small<uint16_t> kExtensionIn, const Small<uint16_t> mExtensionIn,
                     const Small<uint16_t> kStartPtIn, const Small<uint16_t> mStartPtIn, const Small<uint8_t> strideWIn,
                     const Small<uint8_t> strideHIn, const Small<uint8_t> filterWIn, const Small<uint8_t> filterHIn,
                     const Small<uint8_t> dilationFilterWIn, const Small<uint8_t> dilationFilterHIn, const bool enTransposeIn,
                     const bool enSmallKIn, const T padValueIn, const bool filterSizeWIn, const bool filterSizeHIn,
                     const bool fMatrixCtrlIn)
      : l1H(l1HIn),
        l1W(l1WIn),
        channelSize(channelSizeIn),
        kExtension(kExtensionIn),
        mExtension(mExtensionIn),
        kStartPt(kStartPtIn),
        mStartPt(mStartPtIn),
        strideW(strideWIn),
        strideH(strideHIn),
        filterW(filterWIn),
        filterH(filterHIn),
        dilationFilterW(dilationFilterWIn),
        dilationFilterH(dilationFilterHIn),
        enTranspose(enTransposeIn),
        enSmallK(enSmallKIn),
        padValue(padValueIn),
        filterSizeW(filterSizeWIn),
        filterSizeH(filterSizeHIn),
        fMatrixCtrl(fMatrixCtrlIn) {
    for (int i = 0; i < PAD_SIZE; ++i) padList[i] = padListIn[i];
  }

  uint8_t padList[PAD_SIZE] = {0};
  Small<uint16_t> l1H = 0;
  Small<uint16_t> l1W = 0;
  Small<uint16_t> channelSize = 0;
  Small<uint16_t> kExtension = 0;
  Small<uint16_t> mExtension = 0;
  Small<uint16_t> kStartPt = 0;
  Small<uint16_t> mStartPt = 0;
  Small<uint8_t> strideW = 1;
  Small<uint8_t> strideH = 1;
  Small<uint8_t> filterW = 1;
  Small<uint8_t> filterH = 1;
  Small<uint8_t> dilationFilterW = 1;
  Small<uint8_t> dilationFilterH = 1;
  bool enTranspose = false;
  bool enSmallK = false;
  T padValue = 0;
  bool filterSizeW = false;
  bool filterSizeH = false;
  bool fMatrixCtrl = false;
};

struct LoadData3DParamsV2Pro {
  LoadData3DParamsV2Pro() {}
  LoadData3DParamsV2Pro(const Small<uint16_t> channelSizeIn, const bool enTransposeIn, const bool enSmallKIn,
                        const bool filterSizeWIn, const bool filterSizeHIn, const bool fMatrixCtrlIn,
                        const uint64_t extConfigIn, const uint64_t filterConfigIn)
      : channelSize(channelSizeIn),
        enTranspose(enTransposeIn),
        enSmallK(enSmallKIn),
        filterSizeW(filterSizeWIn),
        filterSizeH(filterSizeHIn),
        fMatrixCtrl(fMatrixCtrlIn),
        extConfig(extConfigIn),
        filterConfig(filterConfigIn) {}

  Small<uint16_t> channelSize = 0;
  bool enTranspose = false;
  bool enSmallK = false;
  bool filterSizeW = false;
  bool filterSizeH = false;
  bool fMatrixCtrl = false;
  uint64_t extConfig = 0;
  uint64_t filterConfig = 0X10101010101;
};

struct MmadParams {
  MmadParams() {}
  MmadParams(const Small<uint16_t> mIn, const Small<uint16_t> nIn, const Small<uint16_t> kIn, const bool isBiasIn, const int32_t fmOffsetIn,
             const bool enSsparseIn, const bool enWinogradAIn, const bool enWinogradBIn)
      : m(mIn),
        n(nIn),
        k(kIn),
        isBias(isBiasIn),
        fmOffset(fmOffsetIn),
        enSsparse(enSsparseIn),
        enWinogradA(enWinogradAIn),
        enWinogradB(enWinogradBIn) {}
  MmadParams(const Small<uint16_t> mIn, const Small<uint16_t> nIn, const Small<uint16_t> kIn, const Small<uint8_t> unitFlagIn,
             const bool cmatrixSourceIn, const bool cmatrixInitValIn)
      : m(mIn), n(nIn), k(kIn), unitFlag(unitFlagIn), cmatrixSource(cmatrixSourceIn), cmatrixInitVal(cmatrixInitValIn) {}

  Small<uint16_t> m = 0;
  Small<uint16_t> n = 0;
  Small<uint16_t> k = 0;
  bool isBias = false;
  int32_t fmOffset = 0;
  bool enSsparse = false;
  bool enWinogradA = false;
  bool enWinogradB = false;
  Small<uint8_t> unitFlag = 0;
  bool kDirectionAlign = false;
  bool cmatrixSource = false;
  bool cmatrixInitVal = true;
#if __NPU_ARCH__ == 3510
  bool disableGemv = false;
#endif
};

template <typename T>
struct InitConstValueParams {
  InitConstValueParams() {}
  InitConstValueParams(const Small<uint16_t> repeatTimesIn, const Small<uint16_t> blockNumIn, const Small<uint16_t> dstGapIn,
                       const T initValueIn)
      : repeatTimes(repeatTimesIn), blockNum(blockNumIn), dstGap(dstGapIn), initValue(initValueIn) {}
  InitConstValueParams(const Small<uint16_t> repeatTimesIn, const T initValueIn)
      : repeatTimes(repeatTimesIn), initValue(initValueIn) {}

  Small<uint16_t> repeatTimes = 0;
  Small<uint16_t> blockNum = 0;
  Small<uint16_t> dstGap = 0;
  T initValue = 0;
};

struct LoadDataRepeatParam {
  LoadDataRepeatParam() {}
  LoadDataRepeatParam(const Small<uint16_t> repeatStrideIn, const Small<uint8_t> repeatTimeIn, const Small<uint8_t> repeatModeIn)
      : repeatStride(repeatStrideIn), repeatTime(repeatTimeIn), repeatMode(repeatModeIn) {}

  Small<uint16_t> repeatStride = 0;
  Small<uint8_t> repeatTime = 1;
  Small<uint8_t> repeatMode = 0;
  Small<uint8_t> reserved = 0;
};

#if __NPU_ARCH__ == 3510
struct LoadDataRepeatParamWithStride {
  LoadDataRepeatParamWithStride() {}
  LoadDataRepeatParamWithStride(const Small<uint16_t> repeatStrideIn, const Small<uint8_t> repeatTimeIn, const Small<uint8_t> repeatModeIn,
                                const Small<uint16_t> dstStrideIn)
      : repeatStride(repeatStrideIn), repeatTime(repeatTimeIn), repeatMode(repeatModeIn), dstStride(dstStrideIn) {}

  Small<uint16_t> repeatStride = 0;
  Small<uint8_t> repeatTime = 1;
  Small<uint8_t> repeatMode = 0;
  Small<uint16_t> dstStride = 0;
};
#endif

struct IsResetLoad3dConfig {
  constexpr IsResetLoad3dConfig(const bool isSetFMatrixIn, const bool isSetPaddingIn)
      : isSetFMatrix(isSetFMatrixIn), isSetPadding(isSetPaddingIn) {}
  bool isSetFMatrix = true;
  bool isSetPadding = true;
};
constexpr IsResetLoad3dConfig IS_RESER_LOAD3D_DEFAULT_CONFIG = {true, true};

// -------------------------------------------------------------------------------------------------------- fixpipe

enum class CO2Layout : uint8_t { NZ = 0, ROW_MAJOR, COLUMN_MAJOR };

struct FixpipeConfig {
  CO2Layout format;
#if __NPU_ARCH__ == 3510
  bool isToUB;
  constexpr FixpipeConfig(CO2Layout format_, bool isToUB_ = false) : format(format_), isToUB(isToUB_) {}
#else
  constexpr FixpipeConfig(CO2Layout format_) : format(format_) {}
  constexpr FixpipeConfig(CO2Layout format_, bool) : format(format_) {}
#endif
};
constexpr FixpipeConfig CFG_NZ = {CO2Layout::NZ};
constexpr FixpipeConfig CFG_ROW_MAJOR = {CO2Layout::ROW_MAJOR};
constexpr FixpipeConfig CFG_COLUMN_MAJOR = {CO2Layout::COLUMN_MAJOR};

struct QuantParams {
  QuantParams() {}
  QuantParams(const QuantMode_t quantPreIn) : quantPre(quantPreIn) {}
  QuantParams(const QuantMode_t quantPreIn, const uint64_t deqScalarIn) : quantPre(quantPreIn), deqScalar(deqScalarIn) {}
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
};

struct Nz2NdParams {
  Nz2NdParams() {}
#if __NPU_ARCH__ == 3510
  Nz2NdParams(const Small<uint16_t> ndNumIn, const Small<uint16_t> srcNdStrideIn, const uint32_t dstNdStrideIn)
      : ndNum(ndNumIn), srcNdStride(srcNdStrideIn), dstNdStride(dstNdStrideIn) {}

  Small<uint16_t> ndNum = 1;
  Small<uint16_t> srcNdStride = 0;
  uint32_t dstNdStride = 0;
#else
  Nz2NdParams(const bool nz2ndEnIn, const Small<uint16_t> ndNumIn, const Small<uint16_t> srcNdStrideIn, const Small<uint16_t> dstNdStrideIn,
              const Small<uint16_t> originalNSizeIn)
      : nz2ndEn(nz2ndEnIn),
        ndNum(ndNumIn),
        srcNdStride(srcNdStrideIn),
        dstNdStride(dstNdStrideIn),
        originalNSize(originalNSizeIn) {}

  bool nz2ndEn = false;
  Small<uint16_t> ndNum = 1;
  Small<uint16_t> srcNdStride = 0;
  Small<uint16_t> dstNdStride = 0;
  Small<uint16_t> originalNSize = 0;
#endif
};

struct Nz2DnParams {
  Nz2DnParams() {}
  Nz2DnParams(const Small<uint16_t> dnNumIn, const Small<uint16_t> srcNzMatrixStrideIn, const uint32_t dstDnMatrixStrideIn,
              const Small<uint16_t> srcNzC0StrideIn)
      : dnNum(dnNumIn),
        srcNzMatrixStride(srcNzMatrixStrideIn),
        dstDnMatrixStride(dstDnMatrixStrideIn),
        srcNzC0Stride(srcNzC0StrideIn) {}

  Small<uint16_t> dnNum = 1;
  Small<uint16_t> srcNzMatrixStride = 0;
  uint32_t dstDnMatrixStride = 0;
  Small<uint16_t> srcNzC0Stride = 0;
};

struct FixpipeParamsV220 {
  FixpipeParamsV220() {}
  FixpipeParamsV220(const Small<uint16_t> nSizeIn, const Small<uint16_t> mSizeIn, const Small<uint16_t> srcStrideIn,
                    const uint32_t dstStrideIn, const bool reluEnIn)
      : nSize(nSizeIn), mSize(mSizeIn), srcStride(srcStrideIn), dstStride(dstStrideIn), reluEn(reluEnIn) {}
  FixpipeParamsV220(const Small<uint16_t> nSizeIn, const Small<uint16_t> mSizeIn, const Small<uint16_t> srcStrideIn,
                    const uint32_t dstStrideIn, const bool reluEnIn, const QuantMode_t quantPreIn,
                    const int64_t deqScalarIn, const Small<uint16_t> ndNumIn, const Small<uint16_t> srcNdStrideIn,
                    const Small<uint16_t> dstNdStrideIn, const Small<uint8_t> unitFlagIn)
      : FixpipeParamsV220(nSizeIn, mSizeIn, srcStrideIn, dstStrideIn, reluEnIn, quantPreIn, deqScalarIn, ndNumIn,
                          srcNdStrideIn, dstNdStrideIn, unitFlagIn, false) {}
  FixpipeParamsV220(const Small<uint16_t> nSizeIn, const Small<uint16_t> mSizeIn, const Small<uint16_t> srcStrideIn,
                    const uint32_t dstStrideIn, const bool reluEnIn, const QuantMode_t quantPreIn,
                    const int64_t deqScalarIn, const Small<uint16_t> ndNumIn, const Small<uint16_t> srcNdStrideIn,
                    const Small<uint16_t> dstNdStrideIn, const Small<uint8_t> unitFlagIn, const bool isChannelSplitIn)
      : nSize(nSizeIn),
        mSize(mSizeIn),
        srcStride(srcStrideIn),
        dstStride(dstStrideIn),
        quantPre(quantPreIn),
        deqScalar(static_cast<uint64_t>(deqScalarIn)),
        ndNum(ndNumIn),
        srcNdStride(srcNdStrideIn),
        dstNdStride(dstNdStrideIn),
        reluEn(reluEnIn),
        unitFlag(unitFlagIn),
        isChannelSplit(isChannelSplitIn) {}

  Small<uint16_t> nSize = 0;
  Small<uint16_t> mSize = 0;
  Small<uint16_t> srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  Small<uint16_t> ndNum = 1;
  Small<uint16_t> srcNdStride = 0;
  Small<uint16_t> dstNdStride = 0;
  bool reluEn = false;
  Small<uint8_t> unitFlag = 0;
  bool isChannelSplit = false;
};
using FixpipeParamsM300 = FixpipeParamsV220;
using FixpipeParamsM310 = FixpipeParamsV220;

template <CO2Layout format>
struct TransformParams {};
template <>
struct TransformParams<CO2Layout::NZ> {
  using PARAMS = uint8_t;
};
template <>
struct TransformParams<CO2Layout::ROW_MAJOR> {
  using PARAMS = Nz2NdParams;
};
template <>
struct TransformParams<CO2Layout::COLUMN_MAJOR> {
  using PARAMS = Nz2DnParams;
};

template <CO2Layout format = CO2Layout::ROW_MAJOR>
struct FixpipeParamsArch3510 {
  FixpipeParamsArch3510() {}
  FixpipeParamsArch3510(const Small<uint16_t> nSizeIn, const Small<uint16_t> mSizeIn, const Small<uint16_t> srcStrideIn,
                        const uint32_t dstStrideIn)
      : nSize(nSizeIn), mSize(mSizeIn), srcStride(srcStrideIn), dstStride(dstStrideIn) {}

  ReluMode preReluMode = ReluMode::NO_RELU;
  ClipReluMode preClipReluMode = ClipReluMode::NOCLIP_RELU;
  uint64_t reluScalar = 0;
  uint64_t vectorRelu = 0;
  Small<uint16_t> nSize = 0;
  Small<uint16_t> mSize = 0;
  Small<uint16_t> srcStride = 0;
  uint32_t dstStride = 0;
  QuantMode_t quantPre = QuantMode_t::NoQuant;
  uint64_t deqScalar = 0;
  bool reluEn = false;
  Small<uint8_t> unitFlag = 0;
  Small<uint8_t> dualDstCtl = 0;
  bool subBlockId = false;
  typename TransformParams<format>::PARAMS params{};
  bool isChannelSplit = false;
};

template <CO2Layout format = CO2Layout::ROW_MAJOR>
struct FixpipeParamsC310 : FixpipeParamsArch3510<format> {
  FixpipeParamsC310() {}
  FixpipeParamsC310(const Small<uint16_t> nSizeIn, const Small<uint16_t> mSizeIn, const Small<uint16_t> srcStrideIn,
                    const uint32_t dstStrideIn)
      : FixpipeParamsArch3510<format>(nSizeIn, mSizeIn, srcStrideIn, dstStrideIn) {}
};

template <typename T = int32_t>
struct FixpipeParams {
  FixpipeParams() {}
  FixpipeParams(const Small<uint16_t> count, const Small<uint16_t> len, const Small<uint16_t> srcStrideIn, const uint32_t dstStrideIn)
      : cburstNum(count), burstLen(len), dstStride(dstStrideIn), srcStride(srcStrideIn) {}

  Small<uint16_t> cburstNum = 1;
  Small<uint16_t> burstLen = 1;
  uint32_t dstStride = 0;
  Small<uint16_t> srcStride = 0;
  QuantParams quantParams;
  bool reluEn = false;
  Nz2NdParams nz2ndParams;
  Small<uint8_t> unitFlag = 0;
};

}  // namespace AscendC
