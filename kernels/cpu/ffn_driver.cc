// fused_ffn: norm, gate and up products, activation, their product, down product, residual, norm, in one call.
//
// Tokens go in blocks whose packed rows fit the second cache; the intermediate goes in chunks, so that [tokens,
// intermediate] never exists. Gate and up rows of the same features are multiplied side by side and activated while
// they are in the nearest cache.
#include "cpu/ffn_driver.h"

#include <algorithm>

#include "cpu/product.h"

namespace atbfn {

void RunFfn(Machine& machine, const Ffn& s) {
  const Kernels& kernels = machine.kernels;
  const Dtype dtype = s.dtype;
  const bool gated = s.gate != nullptr;
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
    PackRows(machine, engine, {dtype, s.x}, t0, tokens, s.hidden, s.norm, x);
    for (int64_t i0 = 0; i0 < s.intermediate; i0 += chunk) {
      const int64_t features = std::min(chunk, s.intermediate - i0);
      // A group is kHalf gates and the ups of the same features, or kGroup ups.
      const int64_t each = gated ? kHalf : kGroup;
      machine.team.Run(CeilDiv(features, each), [&](int64_t item, int64_t worker) {
        const int64_t f = item * each, count = std::min(each, features - f);
        PanelArgs a{};
        const void* weights[2] = {gated ? s.gate : s.up, s.up};
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
        kernels.activate(s.activation, gated, s.bias_gate ? s.bias_gate + i0 + f : nullptr,
                         s.bias_up ? s.bias_up + i0 + f : nullptr, a.c, ldc, count, RoundUp(tokens, kTile));
        engine.pack(a.c, ldc, f, count, features, 0, tokens, tokens, act);
      });
      const bool last = i0 + chunk >= s.intermediate;
      machine.team.Run(out_groups, [&](int64_t item, int64_t worker) {
        const int64_t f = item * kGroup, count = std::min(kGroup, s.hidden - f);
        PanelArgs a{};
        for (int h = 0; h < 2; ++h) {
          a.w[h] = At(s.down, (f + h * kHalf) * s.intermediate + i0, dtype);
          a.rows[h] = std::clamp<int64_t>(count - h * kHalf, 0, kHalf);
          if (f + 2 * kGroup <= s.hidden)
            a.next[h] = At(s.down, (f + kGroup + h * kHalf) * s.intermediate + i0, dtype);
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
        kernels.finish(dtype, a.c, ldc, count, tokens, s.bias_down ? s.bias_down + f : nullptr,
                       s.residual ? At(s.residual, at, dtype) : nullptr, At(s.out, at, dtype), s.hidden,
                       wide ? wide + f : nullptr, s.hidden);
      });
    }
    if (wide) NormRows(machine, dtype, wide, tokens, s.hidden, s.post, At(s.out, t0 * s.hidden, dtype));
  }
}

}  // namespace atbfn
