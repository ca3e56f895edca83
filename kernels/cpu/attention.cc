// attention_with_kv_cache and self_attention in one call: norm, projections, rotary embedding, cache write, attention,
// output projection, residual, norm.
#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/attention_operands.h"
#include "cpu/handlers.h"
#include "cpu/product.h"

namespace atbfn {
namespace {

constexpr char kName[] = "atbfn_attention";

enum Operand {
  kX, kWq, kWk, kWv, kWo, kBq, kBk, kBv, kBo, kKCache, kVCache, kPos, kLengths, kLayer, kCos, kSin, kGamma, kBeta,
  kResidual, kPostGamma, kPostBeta, kMask
};

struct Settings {
  int64_t batch, q_len, hidden, heads, kv_heads, head_dim, layers, layer, block;
  bool cached, interleaved;
  NormSettings norm, post;
};

// Whether sequence b lies inside the cache, with its layer.
bool Fits(const Attention& a, const Settings& s, int64_t b) {
  const int64_t pos = a.pos[a.pos_count == 1 ? 0 : b], length = a.lengths ? a.lengths[b] : s.q_len;
  if (length < 0 || length > s.q_len) return false;
  if (!s.cached) return true;
  return pos >= 0 && pos <= a.kv_len - length && s.layer >= 0 && s.layer < s.layers;
}

struct Outputs {
  void *out, *k, *v;  // k, v: the layer's caches, or the new rows alone
};

void Run(Machine& machine, const Operands& in, const Settings& s, Attention a, const Outputs& o) {
  const Kernels& kernels = machine.kernels;
  const Dtype dtype = a.dtype;
  const int64_t tokens = s.batch * s.q_len, d = s.head_dim, q_width = s.heads * d, kv_width = s.kv_heads * d;
  const int64_t most = std::min(s.block, tokens);
  const Engine& engine = EngineFor(kernels, dtype, most);
  void* packed = machine.scratch.TakeBytes(engine.packed_bytes(std::max(s.hidden, q_width), most));
  float* wide = machine.scratch.Take<float>(most * (q_width + 2 * kv_width));
  void* q = machine.scratch.TakeBytes(tokens * q_width * ItemSize(dtype));
  const float* bias[4];
  for (int i = 0; i < 4; ++i) bias[i] = in.Wide(kBq + i, kernels, machine.scratch);
  const float *cos = in.Floats(kCos), *sin = in.Floats(kSin);
  const int64_t half = cos ? in.Shape(kCos)[1] : 0, positions = cos ? in.Shape(kCos)[0] : 0;
  std::vector<float> outside(static_cast<size_t>(half), std::numeric_limits<float>::quiet_NaN());
  std::vector<char> fits(static_cast<size_t>(s.batch));
  for (int64_t b = 0; b < s.batch; ++b) fits[static_cast<size_t>(b)] = Fits(a, s, b);

  for (int64_t t0 = 0; t0 < tokens; t0 += s.block) {
    const int64_t count = std::min(s.block, tokens - t0), ld = q_width + 2 * kv_width;
    PackRows(machine, engine, {dtype, in.Data(kX)}, t0, count, s.hidden, s.norm, packed);
    const Product products[3] = {
        {in.Data(kWq), q_width, bias[0], nullptr, nullptr, 0, wide, ld},
        {in.Data(kWk), kv_width, bias[1], nullptr, nullptr, 0, wide + q_width, ld},
        {in.Data(kWv), kv_width, bias[2], nullptr, nullptr, 0, wide + q_width + kv_width, ld},
    };
    Multiply(machine, dtype, engine, packed, count, s.hidden, products, 3);
    // Rotated and rounded, each row to its place.
    constexpr int64_t kTokens = 8;
    machine.team.Run(CeilDiv(count, kTokens), [&](int64_t item, int64_t) {
      for (int64_t i = item * kTokens; i < std::min(count, (item + 1) * kTokens); ++i) {
        const int64_t b = (t0 + i) / s.q_len, t = (t0 + i) % s.q_len;
        const int64_t start = a.pos[a.pos_count == 1 ? 0 : b], position = start + t;
        const bool inside = position >= 0 && position < positions;
        const float* c = inside ? cos + position * half : outside.data();
        const float* n = inside ? sin + position * half : outside.data();
        float* row = wide + i * ld;
        for (int64_t h = 0; h < s.heads; ++h) {
          if (cos) kernels.rotate(row + h * d, c, n, half, s.interleaved);
          kernels.narrow(dtype, row + h * d, At(q, ((b * s.heads + h) * s.q_len + t) * d, dtype), d);
        }
        const int64_t length = a.lengths ? a.lengths[b] : s.q_len;
        if (!fits[static_cast<size_t>(b)] || t >= length) continue;
        const int64_t to = s.cached ? start + t : t;
        for (int64_t h = 0; h < s.kv_heads; ++h) {
          const int64_t at = ((b * s.kv_heads + h) * a.kv_len + to) * d;
          float *k = row + q_width + h * d, *v = row + q_width + kv_width + h * d;
          if (cos) kernels.rotate(k, c, n, half, s.interleaved);
          kernels.narrow(dtype, k, At(o.k, at, dtype), d);
          kernels.narrow(dtype, v, At(o.v, at, dtype), d);
        }
      }
    });
  }

  a.q = q;
  Attend(machine, a);

  float* sums = s.post.given ? machine.scratch.Take<float>(most * s.hidden) : nullptr;
  for (int64_t t0 = 0; t0 < tokens; t0 += s.block) {
    const int64_t count = std::min(s.block, tokens - t0);
    PackRows(machine, engine, {dtype, a.context, s.heads, s.q_len}, t0, count, q_width, {}, packed);
    const int64_t at = t0 * s.hidden;
    const Product product{in.Data(kWo), s.hidden, bias[3],
                          in.Has(kResidual) ? At(in.Data(kResidual), at, dtype) : nullptr, At(o.out, at, dtype),
                          s.hidden, sums, s.hidden};
    Multiply(machine, dtype, engine, packed, count, q_width, &product, 1);
    if (sums) NormRows(machine, dtype, sums, count, s.hidden, s.post, At(o.out, at, dtype));
  }
  std::vector<float> nan(static_cast<size_t>(s.hidden), std::numeric_limits<float>::quiet_NaN());
  for (int64_t b = 0; b < s.batch; ++b) {
    const int64_t length = a.lengths ? std::clamp<int64_t>(a.lengths[b], 0, s.q_len) : s.q_len;
    const bool ok = fits[static_cast<size_t>(b)] != 0;
    for (int64_t t = ok ? length : 0; t < s.q_len; ++t) {
      char* row = At(o.out, (b * s.q_len + t) * s.hidden, dtype);
      if (ok)
        std::memset(row, 0, static_cast<size_t>(s.hidden * ItemSize(dtype)));
      else
        kernels.narrow(dtype, nan.data(), row, s.hidden);
    }
  }
}

ffi::Error AttentionCall(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets, int64_t present,
                         int64_t heads, int64_t kv_heads, float scale, float softcap, ffi::Span<const int64_t> mask,
                         bool interleaved, int64_t norm, float eps, int64_t post, float post_eps, int64_t block,
                         int64_t columns, int64_t keys, int64_t threads) {
  const Operands in(args, present);
  for (int i : {kX, kWq, kWk, kWv, kWo, kPos})
    if (!in.Has(i)) return Invalid(kName, "an operand is missing");
  Settings s{};
  Attention a{};
  if (!DtypeOf(in.Type(kX), &a.dtype)) return Invalid(kName, "x must be bfloat16, float16 or float32");
  for (int i : {kWq, kWk, kWv, kWo, kKCache, kVCache, kResidual})
    if (in.Has(i) && in.Type(i) != in.Type(kX)) return Invalid(kName, "weights, caches and residual must have x's dtype");
  const auto x = in.Shape(kX), w_q = in.Shape(kWq);
  if (x.size() != 3 || w_q.size() != 2 || heads <= 0 || kv_heads <= 0 || heads % kv_heads || w_q[0] % heads)
    return Invalid(kName, "wrong shapes");
  s.batch = x[0];
  s.q_len = x[1];
  s.hidden = x[2];
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = w_q[0] / heads;
  s.block = block;
  s.interleaved = interleaved;
  s.cached = in.Has(kKCache);
  const int64_t q_width = heads * s.head_dim, kv_width = kv_heads * s.head_dim;
  if (w_q[1] != s.hidden || !in.Holds(kWk, kv_width * s.hidden) || !in.Holds(kWv, kv_width * s.hidden) ||
      !in.Holds(kWo, q_width * s.hidden) || !in.Holds(kBq, q_width) || !in.Holds(kBk, kv_width) ||
      !in.Holds(kBv, kv_width) || !in.Holds(kBo, s.hidden) || !in.Holds(kGamma, s.hidden) ||
      !in.Holds(kBeta, s.hidden) || !in.Holds(kPostGamma, s.hidden) || !in.Holds(kPostBeta, s.hidden) ||
      !in.Holds(kResidual, in.Count(kX)) || in.Has(kKCache) != in.Has(kVCache) || in.Has(kCos) != in.Has(kSin))
    return Invalid(kName, "an operand does not have its size");
  if (in.Has(kCos)) {
    if (in.Type(kCos) != ffi::F32 || in.Type(kSin) != ffi::F32 || in.Shape(kCos).size() != 2 ||
        in.Count(kCos) != in.Count(kSin) || 2 * in.Shape(kCos)[1] > s.head_dim)
      return Invalid(kName, "rotary tables must be float32 [positions, rotary_dim / 2]");
  }
  if (block <= 0 || block % kTile) return Invalid(kName, "bad blocking");
  a.batch = s.batch;
  a.heads = heads;
  a.kv_heads = kv_heads;
  a.q_len = s.q_len;
  a.head_dim = s.head_dim;
  a.scale = scale;
  a.softcap = softcap;
  a.columns = columns;
  a.keys = keys;
  s.layers = 1;
  if (s.cached) {
    const auto cache = in.Shape(kKCache);
    const size_t stacked = in.Has(kLayer) ? 1 : 0;
    if (cache.size() != 4 + stacked || in.Count(kVCache) != in.Count(kKCache) || cache[stacked] != s.batch ||
        cache[stacked + 1] != kv_heads || cache[stacked + 3] != s.head_dim)
      return Invalid(kName, "the caches do not fit");
    a.kv_len = cache[stacked + 2];
    if (stacked) {
      s.layers = cache[0];
      s.layer = in.Ints(kLayer)[0];
    }
  } else {
    a.kv_len = s.q_len;
  }
  const size_t expected = s.cached ? 5 : 3;
  if (rets.size() != expected) return Invalid(kName, "wrong number of outputs");
  const auto result = [&](size_t i) { return *rets.get<ffi::AnyBuffer>(i); };
  Outputs o{result(0)->untyped_data(), nullptr, nullptr};
  a.context = result(expected - 2)->untyped_data();
  a.lse = static_cast<float*>(result(expected - 1)->untyped_data());
  if (static_cast<int64_t>(result(0)->element_count()) != in.Count(kX) ||
      static_cast<int64_t>(result(expected - 2)->element_count()) != s.batch * s.q_len * q_width ||
      static_cast<int64_t>(result(expected - 1)->element_count()) != s.batch * s.q_len * heads)
    return Invalid(kName, "an output does not have its size");
  if (auto error = ReadPositions(kName, in, kPos, kLengths, &a); error.failure()) return error;
  if (auto error = ReadMask(kName, in, kMask, mask, &a); error.failure()) return error;
  const Kernels& kernels = Selected();
  Scratch scratch;
  if (s.cached) {
    // XLA honours the aliasing, by a copy of its own where the input must survive; see kv_cache.cc.
    for (int i : {0, 1}) {
      void* to = result(static_cast<size_t>(1 + i))->untyped_data();
      const int64_t bytes = in.Count(kKCache) * ItemSize(a.dtype);
      if (static_cast<int64_t>(result(static_cast<size_t>(1 + i))->size_bytes()) != bytes)
        return Invalid(kName, "an output does not have its size");
      if (bytes && to != in.Data(kKCache + i)) std::memcpy(to, in.Data(kKCache + i), static_cast<size_t>(bytes));
    }
  }
  if (in.Count(kX) == 0) return ffi::Error::Success();
  const int64_t each = s.batch * kv_heads * a.kv_len * s.head_dim;
  if (s.cached) {
    const int64_t layer = std::clamp<int64_t>(s.layer, 0, s.layers - 1);
    o.k = At(result(1)->untyped_data(), layer * each, a.dtype);
    o.v = At(result(2)->untyped_data(), layer * each, a.dtype);
  } else {
    o.k = scratch.TakeBytes(each * ItemSize(a.dtype));
    o.v = scratch.TakeBytes(each * ItemSize(a.dtype));
    // Rows beyond a sequence's length are not written, and not attended.
    std::memset(o.k, 0, static_cast<size_t>(each * ItemSize(a.dtype)));
    std::memset(o.v, 0, static_cast<size_t>(each * ItemSize(a.dtype)));
  }
  a.k = o.k;
  a.v = o.v;
  Team team(pool, kernels, threads);
  Machine machine{kernels, team, scratch};
  const auto settings = [&](int64_t kind, float epsilon, int gamma, int beta) {
    const NormArgs norm_args{in.Wide(gamma, kernels, scratch), in.Wide(beta, kernels, scratch), epsilon, kind == 2};
    return NormSettings{norm_args, kind != 0};
  };
  s.norm = settings(norm, eps, kGamma, kBeta);
  s.post = settings(post, post_eps, kPostGamma, kPostBeta);
  Run(machine, in, s, a, o);
  return ffi::Error::Success();
}

}  // namespace
}  // namespace atbfn

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_attention, atbfn::AttentionCall,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<int64_t>("present")
                                  .Attr<int64_t>("heads")
                                  .Attr<int64_t>("kv_heads")
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<xla::ffi::Span<const int64_t>>("mask")
                                  .Attr<bool>("interleaved")
                                  .Attr<int64_t>("norm")  // 0 none, 1 RMSNorm, 2 LayerNorm
                                  .Attr<float>("eps")
                                  .Attr<int64_t>("post")
                                  .Attr<float>("post_eps")
                                  .Attr<int64_t>("block")
                                  .Attr<int64_t>("columns")
                                  .Attr<int64_t>("keys")
                                  .Attr<int64_t>("threads"));
