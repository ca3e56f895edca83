// norm and norm_residual: LayerNorm and RMSNorm of rows, alone or of a sum that is also returned.
#include <algorithm>

#include "cpu/handlers.h"
#include "cpu/calls.h"

namespace atbfn {
namespace {

enum Operand { kX, kGamma, kBeta, kResidual };

struct Rows {
  Dtype dtype;
  int64_t count, n;
};

ffi::Error Check(const char* name, const Operands& in, Rows* rows) {
  if (!in.Has(kX) || !in.Has(kGamma)) return Invalid(name, "an operand is missing");
  if (!DtypeOf(in.Type(kX), &rows->dtype)) return Invalid(name, "x must be bfloat16, float16 or float32");
  if (in.Shape(kX).size() < 1) return Invalid(name, "x has no dimension");
  rows->n = in.Shape(kX).back();
  rows->count = rows->n ? in.Count(kX) / rows->n : 0;
  if (!in.Holds(kGamma, rows->n) || !in.Holds(kBeta, rows->n) || !in.Holds(kResidual, in.Count(kX)))
    return Invalid(name, "an operand does not have its size");
  if (in.Has(kResidual) && in.Type(kResidual) != in.Type(kX)) return Invalid(name, "residual must have the dtype of x");
  return ffi::Error::Success();
}

// Below this many elements a second thread takes longer to wake than the rows take.
constexpr int64_t kWorthSharing = 1 << 15;

// Calls row(t, wide) for each row with a worker's fp32 scratch of n floats.
template <class F>
void ForRows(ffi::ThreadPool pool, const Operands& in, const Rows& rows, bool center, float eps, int64_t threads, F row) {
  const Kernels& kernels = Selected();
  Scratch scratch;
  Team team(pool, kernels, rows.count * rows.n < kWorthSharing ? 1 : threads);
  Machine machine{kernels, team, scratch};
  const NormArgs args{in.Wide(kGamma, kernels, scratch), in.Wide(kBeta, kernels, scratch), eps, center};
  PerWorker<float> wide(machine, rows.n);
  constexpr int64_t kRows = 8;
  team.Run(CeilDiv(rows.count, kRows), [&](int64_t item, int64_t worker) {
    for (int64_t t = item * kRows; t < std::min(rows.count, (item + 1) * kRows); ++t)
      row(kernels, args, t, wide[worker]);
  });
}

ffi::Error NormAlone(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out,
                     ffi::Result<ffi::AnyBuffer> mean, ffi::Result<ffi::AnyBuffer> rstd, int64_t present, bool center,
                     float eps, int64_t threads) {
  const Operands in(args, present);
  Rows rows;
  if (auto error = Check("atbfn_norm", in, &rows); error.failure()) return error;
  if (static_cast<int64_t>(mean->element_count()) != rows.count || out->size_bytes() == 0)
    return rows.count ? Invalid("atbfn_norm", "an output does not have its size") : ffi::Error::Success();
  float* means = static_cast<float*>(mean->untyped_data());
  float* rstds = static_cast<float*>(rstd->untyped_data());
  void* to = out->untyped_data();
  ForRows(pool, in, rows, center, eps, threads, [&](const Kernels& k, const NormArgs& a, int64_t t, float* wide) {
    k.widen(rows.dtype, At(in.Data(kX), t * rows.n, rows.dtype), wide, rows.n);
    k.norm(a, wide, rows.n, means + t, rstds + t);
    k.narrow(rows.dtype, wide, At(to, t * rows.n, rows.dtype), rows.n);
  });
  return ffi::Error::Success();
}

ffi::Error NormResidual(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> normed,
                        ffi::Result<ffi::AnyBuffer> summed, int64_t present, bool center, float eps, int64_t threads) {
  const Operands in(args, present);
  Rows rows;
  if (auto error = Check("atbfn_norm_residual", in, &rows); error.failure()) return error;
  if (!in.Has(kResidual)) return Invalid("atbfn_norm_residual", "residual is missing");
  void* to = normed->untyped_data();
  void* sum = summed->untyped_data();
  ForRows(pool, in, rows, center, eps, threads, [&](const Kernels& k, const NormArgs& a, int64_t t, float* wide) {
    const int64_t at = t * rows.n;
    k.widen_sum(rows.dtype, At(in.Data(kX), at, rows.dtype), At(in.Data(kResidual), at, rows.dtype), wide, rows.n);
    k.narrow(rows.dtype, wide, At(sum, at, rows.dtype), rows.n);
    k.norm(a, wide, rows.n, nullptr, nullptr);
    k.narrow(rows.dtype, wide, At(to, at, rows.dtype), rows.n);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_norm, atbfn::NormAlone,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>()  // normed
                                  .Ret<xla::ffi::AnyBuffer>()  // mean
                                  .Ret<xla::ffi::AnyBuffer>()  // rstd
                                  .Attr<int64_t>("present")
                                  .Attr<bool>("center")
                                  .Attr<float>("eps")
                                  .Attr<int64_t>("threads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_norm_residual, atbfn::NormResidual,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>()  // normed
                                  .Ret<xla::ffi::AnyBuffer>()  // summed
                                  .Attr<int64_t>("present")
                                  .Attr<bool>("center")
                                  .Attr<float>("eps")
                                  .Attr<int64_t>("threads"));
