// fused_ffn: norm, gate and up products, activation, their product, down product, residual, norm, in one call.
//
// Tokens go in blocks whose packed rows fit the second cache; the intermediate goes in chunks, so that [tokens,
// intermediate] never exists. Gate and up rows of the same features are multiplied side by side and activated while
// they are in the nearest cache.
#include <algorithm>

#include "cpu/handlers.h"
#include "cpu/product.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_fused_ffn";

enum Operand { kX, kGate, kUp, kDown, kBiasGate, kBiasUp, kBiasDown, kGamma, kBeta, kResidual, kPostGamma, kPostBeta };

struct Settings {
  int64_t tokens, hidden, intermediate, block, chunk;
  Activation activation;
  NormSettings norm, post;
};

void Run(Machine& machine, Dtype dtype, const Operands& in, const Settings& s, void* out) {
  const Kernels& kernels = machine.kernels;
  const bool gated = in.Has(kGate);
  const float* bias_gate = in.Wide(kBiasGate, kernels, machine.scratch);
  const float* bias_up = in.Wide(kBiasUp, kernels, machine.scratch);
  const float* bias_down = in.Wide(kBiasDown, kernels, machine.scratch);
  const int64_t block = std::min(s.block, RoundUp(s.tokens, kTile)), chunk = std::min(s.chunk, s.intermediate);
  const int64_t chunks = CeilDiv(s.intermediate, chunk), most = std::min(block, s.tokens);
  const Engine& engine = EngineFor(kernels, dtype, most);
  const int64_t ldc = RoundUp(most, kTile), out_groups = CeilDiv(s.hidden, kGroup);
  void* x = machine.scratch.TakeBytes(engine.packed_bytes(s.hidden, most));
  void* act = machine.scratch.TakeBytes(engine.packed_bytes(chunk, most));
  PerWorker<float> c(machine, kGroup * ldc);
  PerWorker<char> scratch(machine, std::max(engine.scratch_bytes(s.hidden), engine.scratch_bytes(chunk)));
  float* sums = chunks > 1 ? machine.scratch.Take<float>(out_groups * kGroup * ldc) : nullptr;
  float* wide = s.post.given ? machine.scratch.Take<float>(most * s.hidden) : nullptr;

  for (int64_t t0 = 0; t0 < s.tokens; t0 += block) {
    const int64_t tokens = std::min(block, s.tokens - t0);
    PackRows(machine, engine, {dtype, in.Data(kX)}, t0, tokens, s.hidden, s.norm, x);
    for (int64_t i0 = 0; i0 < s.intermediate; i0 += chunk) {
      const int64_t features = std::min(chunk, s.intermediate - i0);
      // A group is kHalf gates and the ups of the same features, or kGroup ups.
      const int64_t each = gated ? kHalf : kGroup;
      machine.team.Run(CeilDiv(features, each), [&](int64_t item, int64_t worker) {
        const int64_t f = item * each, count = std::min(each, features - f);
        PanelArgs a{};
        const void* weights[2] = {gated ? in.Data(kGate) : in.Data(kUp), in.Data(kUp)};
        for (int h = 0; h < 2; ++h) {
          const int64_t first = i0 + f + (gated ? 0 : h * kHalf);
          a.w[h] = At(weights[h], first * s.hidden, dtype);
          a.rows[h] = std::clamp<int64_t>(count - (gated ? 0 : h * kHalf), 0, kHalf);
          if (f + 2 * each <= features) a.next[h] = At(weights[h], (first + each) * s.hidden, dtype);
        }
        a.groups = 1;
        a.ldw = a.k = s.hidden;
        a.packed = x;
        a.tokens = tokens;
        a.c = c[worker];
        a.ldc = ldc;
        a.scratch = scratch[worker];
        engine.panel(a);
        kernels.activate(s.activation, gated, bias_gate ? bias_gate + i0 + f : nullptr,
                         bias_up ? bias_up + i0 + f : nullptr, a.c, ldc, count, RoundUp(tokens, kTile));
        engine.pack(a.c, ldc, f, count, features, 0, tokens, tokens, act);
      });
      const bool last = i0 + chunk >= s.intermediate;
      machine.team.Run(out_groups, [&](int64_t item, int64_t worker) {
        const int64_t f = item * kGroup, count = std::min(kGroup, s.hidden - f);
        PanelArgs a{};
        for (int h = 0; h < 2; ++h) {
          a.w[h] = At(in.Data(kDown), (f + h * kHalf) * s.intermediate + i0, dtype);
          a.rows[h] = std::clamp<int64_t>(count - h * kHalf, 0, kHalf);
          if (f + 2 * kGroup <= s.hidden)
            a.next[h] = At(in.Data(kDown), (f + kGroup + h * kHalf) * s.intermediate + i0, dtype);
        }
        a.groups = 1;
        a.ldw = s.intermediate;
        a.k = features;
        a.packed = act;
        a.tokens = tokens;
        a.c = sums ? sums + item * kGroup * ldc : c[worker];
        a.ldc = ldc;
        a.accumulate = i0 > 0;
        a.scratch = scratch[worker];
        engine.panel(a);
        if (!last) return;
        const int64_t at = t0 * s.hidden + f;
        kernels.finish(dtype, a.c, ldc, count, tokens, bias_down ? bias_down + f : nullptr,
                       in.Has(kResidual) ? At(in.Data(kResidual), at, dtype) : nullptr, At(out, at, dtype), s.hidden,
                       wide ? wide + f : nullptr, s.hidden);
      });
    }
    if (wide) NormRows(machine, dtype, wide, tokens, s.hidden, s.post, At(out, t0 * s.hidden, dtype));
  }
}

ffi::Error FusedFfn(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out, int64_t present,
                    int64_t activation, int64_t norm, float eps, int64_t post, float post_eps, int64_t block,
                    int64_t chunk, int64_t threads) {
  const Operands in(args, present);
  Dtype dtype;
  if (!in.Has(kX) || !in.Has(kUp) || !in.Has(kDown)) return Invalid(kName, "an operand is missing");
  if (!DtypeOf(in.Type(kX), &dtype)) return Invalid(kName, "x must be bfloat16, float16 or float32");
  const auto x = in.Shape(kX), up = in.Shape(kUp), down = in.Shape(kDown);
  Settings s{};
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
  Run(machine, dtype, in, s, out->untyped_data());
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
