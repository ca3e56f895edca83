#include "cpu/product.h"

#include <algorithm>

namespace atbfn {

void Multiply(Machine& machine, Dtype dtype, const Engine& engine, const void* packed, int64_t tokens, int64_t k,
              const Product* products, int count) {
  const int64_t ldc = RoundUp(tokens, kTile);
  PerWorker<float> c(machine, kGroup * ldc);
  PerWorker<char> scratch(machine, engine.scratch_bytes(k));
  int64_t groups = 0;
  for (int i = 0; i < count; ++i) groups += CeilDiv(products[i].features, kGroup);
  machine.team.Run(groups, [&](int64_t item, int64_t worker) {
    int which = 0;
    int64_t group = item;
    while (group >= CeilDiv(products[which].features, kGroup)) group -= CeilDiv(products[which++].features, kGroup);
    const Product& p = products[which];
    const int64_t f0 = group * kGroup, features = std::min(kGroup, p.features - f0);
    PanelArgs a{};
    for (int h = 0; h < 2; ++h) {
      a.w[h] = At(p.w, (f0 + h * kHalf) * k, dtype);
      a.step[h] = kGroup;
      a.rows[h] = std::clamp<int64_t>(features - h * kHalf, 0, kHalf);
      if (f0 + 2 * kGroup <= p.features) a.next[h] = At(p.w, (f0 + kGroup + h * kHalf) * k, dtype);
    }
    if (!a.next[1]) a.next[0] = nullptr;
    a.groups = 1;
    a.ldw = k;
    a.k = k;
    a.packed = packed;
    a.tokens = tokens;
    a.c = c[worker];
    a.ldc = ldc;
    a.scratch = scratch[worker];
    engine.panel(a);
    machine.kernels.finish(dtype, a.c, ldc, features, tokens, p.bias ? p.bias + f0 : nullptr,
                           p.residual ? At(p.residual, f0, dtype) : nullptr, p.out ? At(p.out, f0, dtype) : nullptr,
                           p.ld, p.wide ? p.wide + f0 : nullptr, p.ld_wide);
  });
}

}  // namespace atbfn
