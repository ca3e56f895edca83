// The cotangents of linear: dx = dy w and dw = dy^T x, on the same products as the forward pass.
//
// Both contract over what lies across memory. For dx a few columns of w are transposed at a time, in scratch; for dw
// the small one, dy. So the cost is that of two forward products and those transpositions.
#include <algorithm>

#include "cpu/calls.h"
#include "cpu/handlers.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_linear_grad";
constexpr int64_t kColumns = 4 * kGroup;  // columns of w that are transposed together: whole lines of its rows
constexpr int64_t kChunk = 1024;          // rows of w at a time: its transposed part stays in the second cache

struct Grad {
  Dtype dtype;
  int64_t tokens, features, k;
  int64_t block;  // tokens at a time
  const void *dy, *x, *w;
  void *dx, *dw;  // null where not wanted
};

void InputGradient(Machine& machine, const Grad& g) {
  const Kernels& kernels = machine.kernels;
  const Engine& engine = kernels.many[static_cast<int>(g.dtype)];
  const int64_t chunk = std::min(kChunk, RoundUp(g.features, kGroup)), chunks = CeilDiv(g.features, chunk);
  const int64_t most = std::min(g.block, g.tokens), ldc = RoundUp(most, kTile);
  const int64_t packed_bytes = RoundUp(engine.packed_bytes(chunk, most), 64);
  char* packed = static_cast<char*>(machine.scratch.TakeBytes(packed_bytes * chunks));
  PerWorker<float> c(machine, kColumns * ldc), rows(machine, kTile * chunk), cols(machine, kTile * chunk);
  PerWorker<char> transposed(machine, kColumns * chunk * ItemSize(g.dtype)), scratch(machine, engine.scratch_bytes(chunk));
  for (int64_t t0 = 0; t0 < g.tokens; t0 += g.block) {
    const int64_t tokens = std::min(g.block, g.tokens - t0), tiles = CeilDiv(tokens, kTile);
    machine.team.Run(tiles * chunks, [&](int64_t item, int64_t worker) {
      const int64_t t = item / chunks * kTile, f0 = item % chunks * chunk, n = std::min(chunk, g.features - f0);
      const int64_t count = std::min(kTile, tokens - t);
      for (int64_t i = 0; i < count; ++i)
        kernels.widen(g.dtype, At(g.dy, (t0 + t + i) * g.features + f0, g.dtype), rows[worker] + i * n, n);
      kernels.transpose(rows[worker], n, count, n, cols[worker], kTile);
      engine.pack(cols[worker], kTile, 0, n, n, t, count, tokens, packed + f0 / chunk * packed_bytes);
    });
    machine.team.Run(CeilDiv(g.k, kColumns), [&](int64_t item, int64_t worker) {
      const int64_t k0 = item * kColumns, columns = std::min(kColumns, g.k - k0), groups = CeilDiv(columns, kGroup);
      for (int64_t f0 = 0; f0 < g.features; f0 += chunk) {
        const int64_t n = std::min(chunk, g.features - f0), padded = RoundUp(n, kGroup);
        kernels.transpose_values(g.dtype, At(g.w, f0 * g.k + k0, g.dtype), g.k, n, columns, transposed[worker], padded,
                                 padded);
        PanelArgs a{};
        for (int h = 0; h < 2; ++h) {
          a.w[h] = At(transposed[worker], h * kHalf * padded, g.dtype);
          a.step[h] = kGroup;
          a.rows[h] = std::clamp<int64_t>(columns - (groups - 1) * kGroup - h * kHalf, 0, kHalf);
        }
        a.groups = groups;
        a.ldw = padded;
        a.k = n;
        a.packed = packed + f0 / chunk * packed_bytes;
        a.tokens = tokens;
        a.c = c[worker];
        a.ldc = ldc;
        a.accumulate = f0 > 0;
        a.scratch = scratch[worker];
        engine.panel(a);
      }
      for (int64_t i = 0; i < groups; ++i)
        kernels.finish(g.dtype, c[worker] + i * kGroup * ldc, ldc, std::min(kGroup, columns - i * kGroup), tokens,
                       nullptr, nullptr, At(g.dx, t0 * g.k + k0 + i * kGroup, g.dtype), g.k, nullptr, 0);
    });
  }
}

void WeightGradient(Machine& machine, const Grad& g) {
  const Kernels& kernels = machine.kernels;
  const Engine& engine = kernels.many[static_cast<int>(g.dtype)];
  const int64_t padded = RoundUp(g.tokens, kGroup), columns = 5 * 3 * kTile;  // what the products take best
  // dy^T [features, tokens], a group of features at a time so that threads can share the work.
  char* transposed = static_cast<char*>(machine.scratch.TakeBytes(g.features * padded * ItemSize(g.dtype)));
  machine.team.Run(CeilDiv(g.features, kGroup), [&](int64_t item, int64_t) {
    const int64_t f0 = item * kGroup, n = std::min(kGroup, g.features - f0);
    kernels.transpose_values(g.dtype, At(g.dy, f0, g.dtype), g.features, g.tokens, n,
                             At(transposed, f0 * padded, g.dtype), padded, padded);
  });
  const int64_t blocks = CeilDiv(g.k, columns), width = std::min(columns, RoundUp(g.k, kTile));
  const int64_t packed_bytes = RoundUp(engine.packed_bytes(g.tokens, width), 64);
  char* packed = static_cast<char*>(machine.scratch.TakeBytes(packed_bytes * blocks));
  PerWorker<float> rows(machine, g.tokens * width);
  machine.team.Run(blocks, [&](int64_t item, int64_t worker) {
    const int64_t k0 = item * columns, n = std::min(columns, g.k - k0);
    for (int64_t t = 0; t < g.tokens; ++t)
      kernels.widen(g.dtype, At(g.x, t * g.k + k0, g.dtype), rows[worker] + t * n, n);
    engine.pack(rows[worker], n, 0, g.tokens, g.tokens, 0, n, n, packed + item * packed_bytes);
  });
  PerWorker<float> c(machine, kGroup * width);
  PerWorker<char> scratch(machine, engine.scratch_bytes(g.tokens));
  const int64_t groups = CeilDiv(g.features, kGroup);
  machine.team.Run(blocks * groups, [&](int64_t item, int64_t worker) {
    const int64_t k0 = item / groups * columns, n = std::min(columns, g.k - k0), f0 = item % groups * kGroup;
    const int64_t features = std::min(kGroup, g.features - f0);
    PanelArgs a{};
    for (int h = 0; h < 2; ++h) {
      a.w[h] = At(transposed, (f0 + h * kHalf) * padded, g.dtype);
      a.rows[h] = std::clamp<int64_t>(features - h * kHalf, 0, kHalf);
    }
    a.groups = 1;
    a.ldw = padded;
    a.k = g.tokens;
    a.packed = packed + item / groups * packed_bytes;
    a.tokens = n;
    a.c = c[worker];
    a.ldc = width;
    a.scratch = scratch[worker];
    engine.panel(a);
    for (int64_t f = 0; f < features; ++f)
      kernels.narrow(g.dtype, c[worker] + f * width, At(g.dw, (f0 + f) * g.k + k0, g.dtype), n);
  });
}

ffi::Error LinearGrad(ffi::ThreadPool pool, ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::AnyBuffer w,
                      ffi::RemainingRets rets, bool want_x, bool want_w, int64_t block, int64_t threads) {
  Grad g{};
  if (!DtypeOf(dy.element_type(), &g.dtype)) return Invalid(kName, "dy must be bfloat16, float16 or float32");
  if (x.element_type() != dy.element_type() || w.element_type() != dy.element_type())
    return Invalid(kName, "x and w must have the dtype of dy");
  const auto rows = dy.dimensions(), shape = w.dimensions();
  if (shape.size() != 2 || rows.size() < 1 || rows.back() != shape[0]) return Invalid(kName, "dy and w do not fit");
  g.features = shape[0];
  g.k = shape[1];
  g.tokens = g.features ? static_cast<int64_t>(dy.element_count()) / g.features : 0;
  if (static_cast<int64_t>(x.element_count()) != g.tokens * g.k) return Invalid(kName, "x and w do not fit");
  if (block <= 0 || block % kTile) return Invalid(kName, "bad blocking");
  if (rets.size() != static_cast<size_t>(want_x) + static_cast<size_t>(want_w))
    return Invalid(kName, "wrong number of outputs");
  if (g.tokens == 0 || g.k == 0) return Invalid(kName, "there is nothing to sum");
  g.block = block;
  g.dy = dy.untyped_data();
  g.x = x.untyped_data();
  g.w = w.untyped_data();
  size_t next = 0;
  if (want_x) {
    auto out = *rets.get<ffi::AnyBuffer>(next++);
    if (out->element_count() != x.element_count()) return Invalid(kName, "an output does not have its size");
    g.dx = out->untyped_data();
  }
  if (want_w) {
    auto out = *rets.get<ffi::AnyBuffer>(next++);
    if (out->element_count() != w.element_count()) return Invalid(kName, "an output does not have its size");
    g.dw = out->untyped_data();
  }
  const Kernels& kernels = Selected();
  Scratch scratch;
  Team team(pool, kernels, threads);
  Machine machine{kernels, team, scratch};
  if (g.dx) InputGradient(machine, g);
  if (g.dw) WeightGradient(machine, g);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_linear_grad, atbfn::LinearGrad,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .Arg<xla::ffi::AnyBuffer>()  // dy
                                  .Arg<xla::ffi::AnyBuffer>()  // x
                                  .Arg<xla::ffi::AnyBuffer>()  // w
                                  .RemainingRets()             // dx, dw
                                  .Attr<bool>("want_x")
                                  .Attr<bool>("want_w")
                                  .Attr<int64_t>("block")
                                  .Attr<int64_t>("threads"));
