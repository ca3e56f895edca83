// linear: y = x w^T + b, weights as they lie in memory.
#include <algorithm>

#include "cpu/calls.h"
#include "cpu/handlers.h"
#include "cpu/product.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_linear";

enum Operand { kX, kW, kBias };

ffi::Error Linear(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> out, int64_t present,
                  int64_t block, int64_t threads) {
  const Operands in(args, present);
  Dtype dtype;
  if (!in.Has(kX) || !in.Has(kW)) return Invalid(kName, "an operand is missing");
  if (!DtypeOf(in.Type(kX), &dtype)) return Invalid(kName, "x must be bfloat16, float16 or float32");
  if (in.Type(kW) != in.Type(kX)) return Invalid(kName, "w must have the dtype of x");
  const auto x = in.Shape(kX), w = in.Shape(kW);
  if (x.size() < 1 || w.size() != 2 || w[1] != x.back()) return Invalid(kName, "x and w do not fit");
  const int64_t k = w[1], features = w[0], all = k ? in.Count(kX) / k : 0;
  const bool wide = out->element_type() == ffi::F32;  // the sums as they are
  if (!wide && out->element_type() != in.Type(kX)) return Invalid(kName, "the output must have the dtype of x or float32");
  if (!in.Holds(kBias, features) || static_cast<int64_t>(out->element_count()) != all * features)
    return Invalid(kName, "an operand does not have its size");
  if (block <= 0 || block % kTile) return Invalid(kName, "bad blocking");
  if (all == 0 || features == 0) return ffi::Error::Success();
  const Kernels& kernels = Selected();
  Scratch scratch;
  Team team(pool, kernels, threads);
  Machine machine{kernels, team, scratch};
  const int64_t most = std::min(block, all);
  const Engine& engine = EngineFor(kernels, dtype, most);
  void* packed = scratch.TakeBytes(engine.packed_bytes(k, most));
  const float* bias = in.Wide(kBias, kernels, scratch);
  for (int64_t t0 = 0; t0 < all; t0 += block) {
    const int64_t tokens = std::min(block, all - t0);
    PackRows(machine, engine, {dtype, in.Data(kX)}, t0, tokens, k, {}, packed);
    float* sums = wide ? static_cast<float*>(out->untyped_data()) + t0 * features : nullptr;
    const Product product{in.Data(kW), features, bias, nullptr, At(out->untyped_data(), t0 * features, dtype), features,
                          sums, features};
    Multiply(machine, dtype, engine, packed, tokens, k, &product, 1);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_linear, atbfn::Linear,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("present")
                                  .Attr<int64_t>("block")
                                  .Attr<int64_t>("threads"));
