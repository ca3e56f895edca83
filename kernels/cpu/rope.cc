// rope: rotary position embedding of [batch, heads, q_len, head_dim].
#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/calls.h"
#include "cpu/handlers.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_rope";

ffi::Error Rope(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> pos, ffi::BufferR2<ffi::F32> cos,
                ffi::BufferR2<ffi::F32> sin, ffi::Result<ffi::AnyBuffer> out, bool interleaved, int64_t threads) {
  Dtype dtype;
  const auto shape = x.dimensions();
  if (!DtypeOf(x.element_type(), &dtype)) return Invalid(kName, "x must be bfloat16, float16 or float32");
  if (shape.size() != 4) return Invalid(kName, "x must have four dimensions");
  const int64_t batch = shape[0], heads = shape[1], q_len = shape[2], d = shape[3];
  const int64_t positions = cos.dimensions()[0], half = cos.dimensions()[1];
  const int64_t count = static_cast<int64_t>(pos.element_count());
  if (2 * half > d || cos.element_count() != sin.element_count() || (count != 1 && count != batch) ||
      out->element_count() != x.element_count())
    return Invalid(kName, "an operand does not have its size");
  if (x.element_count() == 0) return ffi::Error::Success();
  const Kernels& kernels = Selected();
  Scratch scratch;
  constexpr int64_t kWorthSharing = 1 << 15, kRows = 16;
  const int64_t rows = batch * heads * q_len;
  Team team(pool, kernels, rows * d < kWorthSharing ? 1 : threads);
  Machine machine{kernels, team, scratch};
  PerWorker<float> wide(machine, d);
  // A position outside the table gives NaN: nothing passes as a plausible number.
  const std::vector<float> outside(static_cast<size_t>(half), std::numeric_limits<float>::quiet_NaN());
  team.Run(CeilDiv(rows, kRows), [&](int64_t item, int64_t worker) {
    for (int64_t row = item * kRows; row < std::min(rows, (item + 1) * kRows); ++row) {
      const int64_t b = row / (heads * q_len);
      const int64_t position = pos.typed_data()[count == 1 ? 0 : b] + row % q_len;
      const bool inside = position >= 0 && position < positions;
      float* q = wide[worker];
      kernels.widen(dtype, At(x.untyped_data(), row * d, dtype), q, d);
      kernels.rotate(q, inside ? cos.typed_data() + position * half : outside.data(),
                     inside ? sin.typed_data() + position * half : outside.data(), half, interleaved);
      kernels.narrow(dtype, q, At(out->untyped_data(), row * d, dtype), d);
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_rope, atbfn::Rope,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::Buffer<xla::ffi::S32>>()
                                  .Arg<xla::ffi::BufferR2<xla::ffi::F32>>()
                                  .Arg<xla::ffi::BufferR2<xla::ffi::F32>>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<bool>("interleaved")
                                  .Attr<int64_t>("threads"));
