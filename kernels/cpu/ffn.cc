// The handler of fused_ffn.
#include "cpu/calls.h"
#include "cpu/ffn_driver.h"
#include "cpu/handlers.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_fused_ffn";

enum Operand { kX, kGate, kUp, kDown, kBiasGate, kBiasUp, kBiasDown, kGamma, kBeta, kResidual, kPostGamma, kPostBeta };

ffi::Error FusedFfn(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out, int64_t present,
                    int64_t activation, int64_t norm, float eps, int64_t post, float post_eps, int64_t block,
                    int64_t chunk, int64_t threads) {
  const Operands in(args, present);
  Dtype dtype;
  if (!in.Has(kX) || !in.Has(kUp) || !in.Has(kDown)) return Invalid(kName, "an operand is missing");
  if (!DtypeOf(in.Type(kX), &dtype)) return Invalid(kName, "x must be bfloat16, float16 or float32");
  const auto x = in.Shape(kX), up = in.Shape(kUp), down = in.Shape(kDown);
  Ffn s{};
  s.dtype = dtype;
  if (x.size() < 1 || up.size() != 2 || down.size() != 2) return Invalid(kName, "wrong ranks");
  s.hidden = x.back();
  s.intermediate = up[0];
  s.tokens = s.hidden ? in.Count(kX) / s.hidden : 0;
  if (up[1] != s.hidden || down[0] != s.hidden || down[1] != s.intermediate || !in.Holds(kGate, in.Count(kUp)))
    return Invalid(kName, "the weights do not fit x and each other");
  for (int i : {kGate, kUp, kDown, kResidual})
    if (in.Has(i) && in.Type(i) != in.Type(kX)) return Invalid(kName, "weights and residual must have the dtype of x");
  if (!in.Holds(kBiasGate, s.intermediate) || !in.Holds(kBiasUp, s.intermediate) || !in.Holds(kBiasDown, s.hidden) ||
      !in.Holds(kGamma, s.hidden) || !in.Holds(kBeta, s.hidden) || !in.Holds(kPostGamma, s.hidden) ||
      !in.Holds(kPostBeta, s.hidden) || !in.Holds(kResidual, in.Count(kX)) ||
      static_cast<int64_t>(out->element_count()) != in.Count(kX))
    return Invalid(kName, "an operand does not have its size");
  if (block <= 0 || block % kTile || chunk <= 0 || chunk % kGroup) return Invalid(kName, "bad blocking");
  if (s.tokens == 0 || s.hidden == 0) return ffi::Error::Success();
  if (s.intermediate == 0) return Invalid(kName, "intermediate is 0");
  s.block = block;
  s.chunk = chunk;
  s.activation = static_cast<Activation>(activation);
  const Kernels& kernels = Selected();
  Scratch scratch;
  Team team(pool, kernels, threads);
  Machine machine{kernels, team, scratch};
  const auto settings = [&](int64_t kind, float eps, int gamma, int beta) {
    return NormSettings{{in.Wide(gamma, kernels, scratch), in.Wide(beta, kernels, scratch), eps, kind == 2}, kind != 0};
  };
  s.norm = settings(norm, eps, kGamma, kBeta);
  s.post = settings(post, post_eps, kPostGamma, kPostBeta);
  s.x = in.Data(kX);
  s.gate = in.Data(kGate);
  s.up = in.Data(kUp);
  s.down = in.Data(kDown);
  s.bias_gate = in.Wide(kBiasGate, kernels, scratch);
  s.bias_up = in.Wide(kBiasUp, kernels, scratch);
  s.bias_down = in.Wide(kBiasDown, kernels, scratch);
  s.residual = in.Data(kResidual);
  s.out = out->untyped_data();
  RunFfn(machine, s);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_fused_ffn, atbfn::FusedFfn,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("present")
                                  .Attr<int64_t>("activation")
                                  .Attr<int64_t>("norm")  // 0 none, 1 RMSNorm, 2 LayerNorm
                                  .Attr<float>("eps")
                                  .Attr<int64_t>("post")
                                  .Attr<float>("post_eps")
                                  .Attr<int64_t>("block")
                                  .Attr<int64_t>("chunk")
                                  .Attr<int64_t>("threads"));
