// The parameter structs of vector instructions.
#pragma once

#include "ascendc/tensor.h"

namespace AscendC {

struct UnaryRepeatParams {
  UnaryRepeatParams() {}
  UnaryRepeatParams(Small<uint16_t> dstBlkStride, Small<uint16_t> srcBlkStride, Small<uint8_t> dstRepStride, Small<uint8_t> srcRepStride)
      : dstBlkStride(dstBlkStride), srcBlkStride(srcBlkStride), dstRepStride(dstRepStride), srcRepStride(srcRepStride) {}
  UnaryRepeatParams(Small<uint16_t> dstBlkStride, Small<uint16_t> srcBlkStride, Small<uint8_t> dstRepStride, Small<uint8_t> srcRepStride, bool halfBlock)
      : dstBlkStride(dstBlkStride), srcBlkStride(srcBlkStride), dstRepStride(dstRepStride), srcRepStride(srcRepStride),
        halfBlock(halfBlock) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  Small<uint16_t> dstBlkStride = DEFAULT_BLK_STRIDE;
  Small<uint16_t> srcBlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> dstRepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> srcRepStride = DEFAULT_REPEAT_STRIDE;
  bool repeatStrideMode = false;
  bool strideSizeMode = false;
  bool halfBlock = false;
};

struct BinaryRepeatParams {
  BinaryRepeatParams() {}
  BinaryRepeatParams(Small<uint8_t> dstBlkStride, Small<uint8_t> src0BlkStride, Small<uint8_t> src1BlkStride, Small<uint8_t> dstRepStride,
                     Small<uint8_t> src0RepStride, Small<uint8_t> src1RepStride)
      : dstBlkStride(dstBlkStride), src0BlkStride(src0BlkStride), src1BlkStride(src1BlkStride),
        dstRepStride(dstRepStride), src0RepStride(src0RepStride), src1RepStride(src1RepStride) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  Small<uint8_t> dstBlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src0BlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src1BlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> dstRepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> src0RepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> src1RepStride = DEFAULT_REPEAT_STRIDE;
  bool repeatStrideMode = false;
  bool strideSizeMode = false;
};

struct BrcbRepeatParams {
  BrcbRepeatParams() {}
  BrcbRepeatParams(Small<uint16_t> dstBlkStride, Small<uint16_t> dstRepStride) : dstRepStride(dstRepStride), dstBlkStride(dstBlkStride) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  Small<uint16_t> dstRepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint16_t> dstBlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src0BlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src1BlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src0RepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> src1RepStride = DEFAULT_REPEAT_STRIDE;
  bool repeatStrideMode = false;
  bool strideSizeMode = false;
};

struct GatherRepeatParams {
  GatherRepeatParams() {}
  GatherRepeatParams(Small<uint8_t> dstBlkStride, Small<uint8_t> dstRepStride) : dstRepStride(dstRepStride), dstBlkStride(dstBlkStride) {}
  uint32_t blockNumber = DEFAULT_BLK_NUM;
  Small<uint16_t> dstRepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> dstBlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src0BlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src1BlkStride = DEFAULT_BLK_STRIDE;
  Small<uint8_t> src0RepStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> src1RepStride = DEFAULT_REPEAT_STRIDE;
  bool repeatStrideMode = false;
  bool strideSizeMode = false;
};

enum class GatherMaskMode : uint8_t { VERSION_V1 = 0, VERSION_V2 = 1 };
#if __NPU_ARCH__ == 2201
constexpr GatherMaskMode defaultGatherMaskMode = GatherMaskMode::VERSION_V2;
#else
constexpr GatherMaskMode defaultGatherMaskMode = GatherMaskMode::VERSION_V1;
#endif
struct GatherMaskParams {
  GatherMaskParams() {}
  GatherMaskParams(Small<uint8_t> src0BlockStride, Small<uint16_t> repeatTimes, Small<uint16_t> src0RepeatStride, Small<uint8_t> src1RepeatStride)
      : src0BlockStride(src0BlockStride), repeatTimes(repeatTimes), src0RepeatStride(src0RepeatStride),
        src1RepeatStride(src1RepeatStride) {}
  Small<uint8_t> src0BlockStride = DEFAULT_BLK_STRIDE;
  Small<uint16_t> repeatTimes = 0;
  Small<uint16_t> src0RepeatStride = DEFAULT_REPEAT_STRIDE;
  Small<uint8_t> src1RepeatStride = DEFAULT_REPEAT_STRIDE;
};

enum class TransposeType : uint8_t {
  TRANSPOSE_TYPE_NONE, TRANSPOSE_NZ2ND_0213, TRANSPOSE_NZ2NZ_0213, TRANSPOSE_NZ2NZ_012_WITH_N,
  TRANSPOSE_NZ2ND_012_WITH_N, TRANSPOSE_NZ2ND_012_WITHOUT_N, TRANSPOSE_NZ2NZ_012_WITHOUT_N, TRANSPOSE_ND2ND_ONLY,
  TRANSPOSE_ND_UB_GM, TRANSPOSE_GRAD_ND_UB_GM, TRANSPOSE_ND2ND_B16, TRANSPOSE_NCHW2NHWC, TRANSPOSE_NHWC2NCHW,
};
constexpr int32_t NCHW_CONV_ADDR_LIST_SIZE = 16;
struct TransDataTo5HDParams {
  TransDataTo5HDParams() {}
  TransDataTo5HDParams(bool dstHighHalf, bool srcHighHalf, Small<uint8_t> repeatTimes, Small<uint16_t> dstRepStride, Small<uint16_t> srcRepStride)
      : dstHighHalf(dstHighHalf), srcHighHalf(srcHighHalf), repeatTimes(repeatTimes), dstRepStride(dstRepStride),
        srcRepStride(srcRepStride) {}
  bool dstHighHalf = false;
  bool srcHighHalf = false;
  Small<uint8_t> repeatTimes = 1;
  Small<uint16_t> dstRepStride = 0;
  Small<uint16_t> srcRepStride = 0;
};
struct TransposeParamsExt {
  TransposeParamsExt() {}
  TransposeParamsExt(Small<uint16_t> nSize, Small<uint16_t> cSize, Small<uint16_t> hSize, Small<uint16_t> wSize, TransposeType transposeType)
      : nSize(nSize), cSize(cSize), hSize(hSize), wSize(wSize), transposeType(transposeType) {}
  Small<uint16_t> nSize = 0;
  Small<uint16_t> cSize = 0;
  Small<uint16_t> hSize = 0;
  Small<uint16_t> wSize = 0;
  TransposeType transposeType = TransposeType::TRANSPOSE_ND2ND_B16;
};

constexpr int32_t MRG_SORT_ELEMENT_LEN = 4;
struct MrgSort4Info {
  MrgSort4Info() {}
  MrgSort4Info(const uint16_t lengths[MRG_SORT_ELEMENT_LEN], bool ifExhaustedSuspension, Small<uint16_t> validBit, Small<uint16_t> repeatTimes)
      : ifExhaustedSuspension(ifExhaustedSuspension), validBit(validBit), repeatTimes(repeatTimes) {
    for (int i = 0; i < MRG_SORT_ELEMENT_LEN; ++i) elementLengths[i] = lengths[i];
  }
  uint16_t elementLengths[MRG_SORT_ELEMENT_LEN] = {0};
  bool ifExhaustedSuspension = false;
  Small<uint16_t> validBit = 0;
  Small<uint8_t> repeatTimes = 1;
};
template <class T>
struct MrgSortSrcList {
  MrgSortSrcList() {}
  MrgSortSrcList(const LocalTensor<T>& src1, const LocalTensor<T>& src2, const LocalTensor<T>& src3, const LocalTensor<T>& src4)
      : src1(src1), src2(src2), src3(src3), src4(src4) {}
  LocalTensor<T> src1, src2, src3, src4;
};

constexpr int32_t VDEQ_TENSOR_SIZE = 16;
struct VdeqInfo {
  VdeqInfo() {}
  VdeqInfo(const float scale[VDEQ_TENSOR_SIZE], const int16_t offset[VDEQ_TENSOR_SIZE], const bool sign[VDEQ_TENSOR_SIZE]) {
    for (int i = 0; i < VDEQ_TENSOR_SIZE; ++i) {
      vdeqScale[i] = scale[i];
      vdeqOffset[i] = offset[i];
      vdeqSignMode[i] = sign[i];
    }
  }
  float vdeqScale[VDEQ_TENSOR_SIZE] = {0};
  int16_t vdeqOffset[VDEQ_TENSOR_SIZE] = {0};
  bool vdeqSignMode[VDEQ_TENSOR_SIZE] = {0};
};

enum class ReduceType { NONE = -1, SUM = 0, MAX, MIN };
enum class SaturationMode : uint8_t { FLOAT, FLOAT8, INT, CAST };
enum class OverrideStrategy : uint8_t { USE_API = 0, USE_GLOBAL = 1 };
enum class SpecialPurposeReg { AR = 0 };

}  // namespace AscendC
