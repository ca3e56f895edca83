// flash_attention: attention of given queries over keys and values, or over a layer of stacked ones.
#include "cpu/attention_operands.h"
#include "cpu/handlers.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_flash_attention";

enum Operand { kQ, kK, kV, kPos, kLengths, kLayer, kMask };

ffi::Error FlashAttention(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> context,
                          ffi::Result<ffi::AnyBuffer> lse, int64_t present, float scale, float softcap,
                          ffi::Span<const int64_t> mask, int64_t columns, int64_t keys, int64_t threads) {
  const Operands in(args, present);
  for (int i : {kQ, kK, kV, kPos})
    if (!in.Has(i)) return Invalid(kName, "an operand is missing");
  Attention a{};
  if (!DtypeOf(in.Type(kQ), &a.dtype)) return Invalid(kName, "q must be bfloat16, float16 or float32");
  if (in.Type(kK) != in.Type(kQ) || in.Type(kV) != in.Type(kQ)) return Invalid(kName, "k and v must have the dtype of q");
  const auto q = in.Shape(kQ), k = in.Shape(kK), v = in.Shape(kV);
  const size_t stacked = in.Has(kLayer) ? 1 : 0;
  if (q.size() != 4 || k.size() != 4 + stacked || v.size() != k.size()) return Invalid(kName, "wrong ranks");
  for (size_t i = 0; i < k.size(); ++i)
    if (k[i] != v[i]) return Invalid(kName, "k and v differ in shape");
  a.batch = q[0];
  a.heads = q[1];
  a.q_len = q[2];
  a.head_dim = q[3];
  a.kv_heads = k[stacked + 1];
  a.kv_len = k[stacked + 2];
  if (k[stacked] != a.batch || k[stacked + 3] != a.head_dim || a.kv_heads <= 0 || a.heads % a.kv_heads)
    return Invalid(kName, "q and k do not fit");
  if (static_cast<int64_t>(context->element_count()) != in.Count(kQ) ||
      static_cast<int64_t>(lse->element_count()) != a.batch * a.heads * a.q_len)
    return Invalid(kName, "an output does not have its size");
  if (in.Count(kQ) == 0) return ffi::Error::Success();
  const int64_t layers = stacked ? k[0] : 1, layer = stacked ? in.Ints(kLayer)[0] : 0;
  // A layer that does not exist is reported by the operator around this; what is returned then does not count.
  const int64_t index = layer < 0 ? 0 : layer >= layers ? layers - 1 : layer;
  const int64_t each = a.batch * a.kv_heads * a.kv_len * a.head_dim;
  a.q = in.Data(kQ);
  a.k = At(in.Data(kK), index * each, a.dtype);
  a.v = At(in.Data(kV), index * each, a.dtype);
  a.scale = scale;
  a.softcap = softcap;
  a.columns = columns;
  a.keys = keys;
  a.context = context->untyped_data();
  a.lse = static_cast<float*>(lse->untyped_data());
  if (auto error = ReadPositions(kName, in, kPos, kLengths, &a); error.failure()) return error;
  if (auto error = ReadMask(kName, in, kMask, mask, &a); error.failure()) return error;
  const Kernels& kernels = Selected();
  Scratch scratch;
  Team team(pool, kernels, threads);
  Machine machine{kernels, team, scratch};
  Attend(machine, a);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_flash_attention, atbfn::FlashAttention,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Ret<xla::ffi::AnyBuffer>()  // context
                                  .Ret<xla::ffi::AnyBuffer>()  // lse
                                  .Attr<int64_t>("present")
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<xla::ffi::Span<const int64_t>>("mask")
                                  .Attr<int64_t>("columns")
                                  .Attr<int64_t>("keys")
                                  .Attr<int64_t>("threads"));
