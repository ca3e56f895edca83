// The matrix unit: loading L0A and L0B, multiplying, and taking results out of L0C.
#pragma once

#include "ascendc/copy.h"
#include "ascendc/cube_params.h"
#include "atbfn/cube.h"

namespace AscendC {

namespace detail {

inline emu::Load2D Of(const LoadData2DParams& p) {
  return {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.ifTranspose, p.addrMode != 0};
}
inline emu::Load2DV2 Of(const LoadData2DParamsV2& p) {
  return {p.mStartPosition, p.kStartPosition, p.mStep, p.kStep, p.srcStride, p.dstStride, p.ifTranspose};
}
template <class U>
emu::Load3D Of(const LoadData3DParamsV2<U>& p) {
  return {p.channelSize, p.kExtension, p.mExtension, p.kStartPt, p.mStartPt, p.strideW, p.strideH,
          p.filterW + (p.filterSizeW ? 256u : 0u), p.filterH + (p.filterSizeH ? 256u : 0u), p.dilationFilterW,
          p.dilationFilterH, p.enTranspose, p.fMatrixCtrl};
}
inline emu::Load3D Of(const LoadData3DParamsV2Pro& p) {
  const auto ext = [&](int bit) { return static_cast<uint32_t>(p.extConfig >> bit & 0xffff); };
  const auto filter = [&](int bit) { return static_cast<uint32_t>(p.filterConfig >> bit & 0xff); };
  return {p.channelSize, ext(0), ext(16), ext(32), ext(48), filter(0), filter(8),
          filter(16) + (p.filterSizeW ? 256u : 0u), filter(24) + (p.filterSizeH ? 256u : 0u), filter(32), filter(40),
          p.enTranspose, p.fMatrixCtrl};
}
inline emu::Multiply Of(const MmadParams& p, bool with_bias) {
  emu::Multiply result{p.m, p.n, p.k, p.unitFlag, p.kDirectionAlign, p.cmatrixSource, p.cmatrixInitVal, true};
  if (!with_bias && p.isBias) result.start_at_zero = false;
#if __NPU_ARCH__ == 3510
  result.gemv = !p.disableGemv;
#endif
  return result;
}

}  // namespace detail

// ---------------------------------------------------------------------------------------------------------- LoadData

template <typename T>
inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParams& loadDataParams,
                     emu::Where where = emu::Here()) {
  emu::LoadFractals(dst.Handle(), src.Handle(), detail::Of(loadDataParams), where);
}
template <typename T>
inline void LoadData(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const LoadData2DParams& loadDataParams,
                     emu::Where where = emu::Here()) {
  emu::LoadFractals(dst.Handle(), src.Handle(), detail::Of(loadDataParams), where);
}
template <typename T>
inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData2DParamsV2& loadDataParams,
                     emu::Where where = emu::Here()) {
  emu::LoadFractals(dst.Handle(), src.Handle(), detail::Of(loadDataParams), where);
}
template <typename T>
inline void LoadData(const LocalTensor<T>& dst, const GlobalTensor<T>& src, const LoadData2DParamsV2& loadDataParams,
                     emu::Where where = emu::Here()) {
  emu::LoadFractals(dst.Handle(), src.Handle(), detail::Of(loadDataParams), where);
}

template <typename T>
inline void SetLoadDataPaddingValue(const T padValue) {
  emu::CoreRegisters().load_padding = detail::Bits(padValue);
}
inline void SetFmatrix(Small<uint16_t> l1H, Small<uint16_t> l1W, const uint8_t padList[4], const FmatrixMode& fmatrixMode) {
  emu::SetImage(static_cast<int>(fmatrixMode), l1H, l1W, padList);
}
inline void SetLoadDataBoundary(uint32_t boundaryValue) { emu::CoreRegisters().load_boundary = boundaryValue; }
inline void SetLoadDataRepeat(const LoadDataRepeatParam& p) {
  emu::CoreRegisters().load_repeat = p.repeatStride | static_cast<uint64_t>(p.repeatTime) << 16 |
                                     static_cast<uint64_t>(p.repeatMode) << 24;
  emu::CoreRegisters().load_repeat_set = true;
}
#if __NPU_ARCH__ == 3510
inline void SetLoadDataRepeatWithStride(const LoadDataRepeatParamWithStride& p) {
  SetLoadDataRepeat({p.repeatStride, p.repeatTime, p.repeatMode});
  emu::CoreRegisters().load_dst_stride = p.dstStride;
}
#endif

template <typename T, const IsResetLoad3dConfig& defaultConfig = IS_RESER_LOAD3D_DEFAULT_CONFIG, typename U = PrimT<T>,
          typename std::enable_if<std::is_same<PrimT<T>, U>::value, bool>::type = true>
inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData3DParamsV1<U>& p,
                     emu::Where where = emu::Here()) {
  if (defaultConfig.isSetFMatrix) emu::SetImage(0, p.l1H, p.l1W, p.padList);
  if (defaultConfig.isSetPadding) SetLoadDataPaddingValue(p.padValue);
  emu::LoadImage(dst.Handle(), src.Handle(),
                 {p.c1Index, p.fetchFilterW, p.fetchFilterH, p.strideW, p.strideH, p.filterW, p.filterH,
                  p.dilationFilterW, p.dilationFilterH, p.leftTopW, p.leftTopH, p.jumpStride, p.repeatMode,
                  p.repeatTime, p.cSize},
                 where);
}
template <typename T, const IsResetLoad3dConfig& defaultConfig = IS_RESER_LOAD3D_DEFAULT_CONFIG, typename U = PrimT<T>,
          typename std::enable_if<std::is_same<PrimT<T>, U>::value, bool>::type = true>
inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData3DParamsV2<U>& p,
                     emu::Where where = emu::Here()) {
  if (defaultConfig.isSetFMatrix) emu::SetImage(0, p.l1H, p.l1W, p.padList);
  if (defaultConfig.isSetPadding) SetLoadDataPaddingValue(p.padValue);
  emu::LoadImage(dst.Handle(), src.Handle(), detail::Of(p), false, "LoadData", where);
}
template <const IsResetLoad3dConfig& defaultConfig>
inline void LoadData(const LocalTensor<bfloat16_t>& dst, const LocalTensor<bfloat16_t>& src,
                     const LoadData3DParamsV2<bfloat16_t>& p, emu::Where where = emu::Here()) {
  LoadData<bfloat16_t, defaultConfig>(dst, src, p, where);
}
template <typename T>
inline void LoadData(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData3DParamsV2Pro& p,
                     emu::Where where = emu::Here()) {
  emu::LoadImage(dst.Handle(), src.Handle(), detail::Of(p), false, "LoadData", where);
}
template <typename T, const IsResetLoad3dConfig& defaultConfig = IS_RESER_LOAD3D_DEFAULT_CONFIG, typename U = PrimT<T>,
          typename std::enable_if<std::is_same<PrimT<T>, U>::value, bool>::type = true>
inline void LoadDataWithStride(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LoadData3DParamsV2<U>& p,
                               emu::Where where = emu::Here()) {
  if (defaultConfig.isSetFMatrix) emu::SetImage(0, p.l1H, p.l1W, p.padList);
  if (defaultConfig.isSetPadding) SetLoadDataPaddingValue(p.padValue);
  emu::LoadImage(dst.Handle(), src.Handle(), detail::Of(p), true, "LoadDataWithStride", where);
}

template <typename T>
inline void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                  const LoadData2dTransposeParams& p, emu::Where where = emu::Here()) {
  emu::LoadTransposed(dst.Handle(), src.Handle(),
                      {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.dstFracGap, 0, p.addrMode != 0, false},
                      where);
}
template <typename T>
inline void LoadDataWithTranspose(const LocalTensor<T>& dst, const LocalTensor<T>& src,
                                  const LoadData2dTransposeParamsV2& p, emu::Where where = emu::Here()) {
  emu::LoadTransposed(
      dst.Handle(), src.Handle(),
      {p.startIndex, p.repeatTimes, p.srcStride, p.dstGap, p.dstFracGap, p.srcFracGap, p.addrMode != 0, true}, where);
}

template <typename T = int8_t, typename U = uint8_t,
          typename std::enable_if<std::is_same<PrimT<T>, int8_t>::value, bool>::type = true,
          typename std::enable_if<std::is_same<PrimT<U>, uint8_t>::value, bool>::type = true>
inline void LoadDataWithSparse(const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<U>& idx,
                               const LoadData2dParams& loadDataParam, emu::Where where = emu::Here()) {
  emu::LoadSparse(dst.Handle(), src.Handle(), idx.Handle(), loadDataParam.startIndex, loadDataParam.repeatTimes, where);
}

template <typename T, typename U = PrimT<T>,
          typename std::enable_if<std::is_same<PrimT<T>, U>::value, bool>::type = true>
inline void Fill(const LocalTensor<T>& dst, const InitConstValueParams<U>& p, emu::Where where = emu::Here()) {
  emu::FillConstant(dst.Handle(), p.repeatTimes, p.blockNum, p.dstGap, detail::Bits(p.initValue), where);
}
template <typename T, typename U = PrimT<T>,
          typename std::enable_if<std::is_same<PrimT<T>, U>::value, bool>::type = true>
inline void InitConstValue(const LocalTensor<T>& dst, const InitConstValueParams<U>& p,
                           emu::Where where = emu::Here()) {
  emu::FillConstant(dst.Handle(), p.repeatTimes, p.blockNum, p.dstGap, detail::Bits(p.initValue), where);
}

// -------------------------------------------------------------------------------------------------------------- Mmad

template <typename T, typename U, typename S>
inline void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter,
                 const MmadParams& mmadParams, emu::Where where = emu::Here()) {
  emu::Mmad(dst.Handle(), fm.Handle(), filter.Handle(), nullptr, detail::Of(mmadParams, false), where);
}
template <typename T, typename U, typename S, typename V>
inline void Mmad(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<S>& filter,
                 const LocalTensor<V>& bias, const MmadParams& mmadParams, emu::Where where = emu::Here()) {
  emu::Mmad(dst.Handle(), fm.Handle(), filter.Handle(), &bias.Handle(), detail::Of(mmadParams, true), where);
}
template <typename T = int32_t, typename U = int8_t,
          typename std::enable_if<std::is_same<PrimT<T>, int32_t>::value, bool>::type = true,
          typename std::enable_if<std::is_same<PrimT<U>, int8_t>::value, bool>::type = true>
inline void MmadWithSparse(const LocalTensor<T>& dst, const LocalTensor<U>& fm, const LocalTensor<U>& filter,
                           const MmadParams& mmadParams, emu::Where where = emu::Here()) {
  emu::MmadSparse(dst.Handle(), fm.Handle(), filter.Handle(), detail::Of(mmadParams, true), where);
}

inline void SetHF32Mode(bool hf32Mode) { emu::CoreRegisters().hf32 = hf32Mode; }
inline void SetHF32Mode(HF32Mode mode) { SetHF32Mode(mode == HF32Mode::ENABLE); }
// True: halves go towards zero; false: to even.
inline void SetHF32TransMode(bool hf32TransMode) { emu::CoreRegisters().hf32_to_even = !hf32TransMode; }
inline void SetHF32TransMode(HF32TransMode mode) { SetHF32TransMode(mode == HF32TransMode::NEAREST_ZERO); }
inline void SetMMLayoutTransform(bool mmLayoutMode) { emu::CoreRegisters().mm_row_major = mmLayoutMode; }
inline void SetMMRowMajor() { SetMMLayoutTransform(true); }
inline void SetMMColumnMajor() { SetMMLayoutTransform(false); }

// ----------------------------------------------------------------------------------------------------------- Fixpipe

template <typename T>
inline void SetFixPipeConfig(const LocalTensor<T>& reluPre, const LocalTensor<T>& quantPre, bool isUnitFlag = false) {
  emu::Registers& r = emu::CoreRegisters();
  r.fixpipe_relu_tensor = reluPre.Handle();
  r.fixpipe_quant_tensor = quantPre.Handle();
  if (isUnitFlag) std::memset(r.unit_flags, 0, sizeof(r.unit_flags));
}
template <typename T, bool setRelu = false>
inline void SetFixPipeConfig(const LocalTensor<T>& preData, bool isUnitFlag = false) {
  emu::Registers& r = emu::CoreRegisters();
  if (setRelu) r.fixpipe_relu_tensor = preData.Handle();
  else if (preData.Handle().space == emu::Space::FB) r.fixpipe_quant_tensor = preData.Handle();
  if (isUnitFlag) std::memset(r.unit_flags, 0, sizeof(r.unit_flags));
}
#if __NPU_ARCH__ == 3510
inline void SetFixpipeNz2ndFlag(Small<uint16_t> ndNum, Small<uint16_t> srcNdStride, uint32_t dstNdStride) {
#else
inline void SetFixpipeNz2ndFlag(Small<uint16_t> ndNum, Small<uint16_t> srcNdStride, Small<uint16_t> dstNdStride) {
#endif
  emu::Registers& r = emu::CoreRegisters();
  r.fixpipe_nd = ndNum;
  r.fixpipe_src_nd_stride = srcNdStride;
  r.fixpipe_dst_nd_stride = dstNdStride;
}
inline void SetFixpipePreQuantFlag(uint64_t config) { emu::CoreRegisters().fixpipe_quant = config; }
inline void SetFixPipeClipRelu(uint64_t config) { emu::CoreRegisters().fixpipe_relu = config; }
template <typename T>
inline void SetFixPipeAddr(const LocalTensor<T>& eleWiseData, Small<uint16_t> c0ChStride) {
  emu::CoreRegisters().fixpipe_elementwise = eleWiseData.Handle().address | static_cast<uint64_t>(c0ChStride) << 32;
}

namespace detail {

inline emu::Fix Of(const FixpipeParamsV220& p, CO2Layout format) {
  emu::Fix fix{};
  fix.n = p.nSize;
  fix.m = p.mSize;
  fix.src_stride = p.srcStride;
  fix.dst_stride = p.dstStride;
  fix.quant = static_cast<uint8_t>(p.quantPre);
  fix.scale = p.deqScalar;
  fix.relu = p.reluEn;
  fix.unit_flag = p.unitFlag;
  fix.channel_split = p.isChannelSplit;
  fix.layout = static_cast<emu::FixLayout>(format);
  fix.matrices = format == CO2Layout::NZ ? 1u : uint32_t{p.ndNum};
  fix.src_matrix_stride = p.srcNdStride;
  fix.dst_matrix_stride = p.dstNdStride;
  fix.name = "Fixpipe";
  return fix;
}
template <CO2Layout format>
emu::Fix Of(const FixpipeParamsArch3510<format>& p) {
  emu::Fix fix{};
  fix.n = p.nSize;
  fix.m = p.mSize;
  fix.src_stride = p.srcStride;
  fix.dst_stride = p.dstStride;
  fix.quant = static_cast<uint8_t>(p.quantPre);
  fix.scale = p.deqScalar;
  fix.relu = p.reluEn || p.preReluMode == ReluMode::NORMAL_RELU;
  fix.unit_flag = p.unitFlag;
  fix.channel_split = p.isChannelSplit;
  fix.layout = static_cast<emu::FixLayout>(format);
  fix.matrices = 1;
  if constexpr (format == CO2Layout::ROW_MAJOR) {
    fix.matrices = p.params.ndNum;
    fix.src_matrix_stride = p.params.srcNdStride;
    fix.dst_matrix_stride = p.params.dstNdStride;
  } else if constexpr (format == CO2Layout::COLUMN_MAJOR) {
    fix.matrices = p.params.dnNum;
    fix.src_matrix_stride = p.params.srcNzMatrixStride;
    fix.dst_matrix_stride = p.params.dstDnMatrixStride;
    fix.src_row_stride = p.params.srcNzC0Stride;
  }
  fix.elements = true;
  fix.name = "Fixpipe";
  return fix;
}

}  // namespace detail

template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
inline void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& intriParams,
                    emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), nullptr, detail::Of(intriParams, config.format), where);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR, typename S = uint64_t,
          typename std::enable_if<std::is_same<PrimT<S>, uint64_t>::value, bool>::type = true>
inline void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const LocalTensor<S>& cbufWorkspace,
                    const FixpipeParamsV220& intriParams, emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), &cbufWorkspace.Handle(), detail::Of(intriParams, config.format), where);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
inline void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const FixpipeParamsV220& intriParams,
                    emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), nullptr, detail::Of(intriParams, config.format), where);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR, typename S = uint64_t,
          typename std::enable_if<std::is_same<PrimT<S>, uint64_t>::value, bool>::type = true>
inline void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const LocalTensor<S>& cbufWorkspace,
                    const FixpipeParamsV220& intriParams, emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), &cbufWorkspace.Handle(), detail::Of(intriParams, config.format), where);
}
#if __NPU_ARCH__ == 3510
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
inline void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src,
                    const FixpipeParamsArch3510<config.format>& intriParams, emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), nullptr, detail::Of(intriParams), where);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
inline void Fixpipe(const LocalTensor<T>& dst, const LocalTensor<U>& src, const LocalTensor<uint64_t>& cbufWorkspace,
                    const FixpipeParamsArch3510<config.format>& intriParams, emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), &cbufWorkspace.Handle(), detail::Of(intriParams), where);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
inline void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src,
                    const FixpipeParamsArch3510<config.format>& intriParams, emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), nullptr, detail::Of(intriParams), where);
}
template <typename T, typename U, const FixpipeConfig& config = CFG_ROW_MAJOR>
inline void Fixpipe(const GlobalTensor<T>& dst, const LocalTensor<U>& src, const LocalTensor<uint64_t>& cbufWorkspace,
                    const FixpipeParamsArch3510<config.format>& intriParams, emu::Where where = emu::Here()) {
  emu::Fixpipe(dst.Handle(), src.Handle(), &cbufWorkspace.Handle(), detail::Of(intriParams), where);
}
#endif

}  // namespace AscendC
