#include "cpu/machine.h"

#include <algorithm>

namespace atbfn {

const Engine& EngineFor(const Kernels& kernels, Dtype dtype, int64_t tokens) {
  const int i = static_cast<int>(dtype);
  return tokens <= kernels.max_few[i] ? kernels.few[i] : kernels.many[i];
}

void PackRows(Machine& machine, const Engine& engine, const RowSource& source, int64_t first, int64_t tokens, int64_t k,
              const NormSettings& norm, void* packed) {
  const Kernels& kernels = machine.kernels;
  PerWorker<float> rows(machine, kTile * k), cols(machine, kTile * k);
  machine.team.Run(CeilDiv(tokens, kTile), [&](int64_t tile, int64_t worker) {
    const int64_t t0 = tile * kTile, count = std::min(kTile, tokens - t0);
    for (int64_t t = 0; t < count; ++t) {
      float* row = rows[worker] + t * k;
      if (source.heads == 1) {
        kernels.widen(source.dtype, At(source.base, (first + t0 + t) * k, source.dtype), row, k);
      } else {
        const int64_t b = (first + t0 + t) / source.q_len, i = (first + t0 + t) % source.q_len, d = k / source.heads;
        for (int64_t h = 0; h < source.heads; ++h)
          kernels.widen(source.dtype, At(source.base, ((b * source.heads + h) * source.q_len + i) * d, source.dtype),
                        row + h * d, d);
      }
      if (norm.given) kernels.norm(norm.args, row, k, nullptr, nullptr);
    }
    kernels.transpose(rows[worker], k, count, k, cols[worker], kTile);
    engine.pack(cols[worker], kTile, 0, k, k, t0, count, tokens, packed);
  });
}

void NormRows(Machine& machine, Dtype dtype, float* rows, int64_t count, int64_t n, const NormSettings& norm, void* out) {
  constexpr int64_t kRows = 4;
  machine.team.Run(CeilDiv(count, kRows), [&](int64_t item, int64_t) {
    for (int64_t t = item * kRows; t < std::min(count, (item + 1) * kRows); ++t) {
      machine.kernels.norm(norm.args, rows + t * n, n, nullptr, nullptr);
      machine.kernels.narrow(dtype, rows + t * n, At(out, t * n, dtype), n);
    }
  });
}

}  // namespace atbfn
