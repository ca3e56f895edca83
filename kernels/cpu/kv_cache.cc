// Writes new key and value rows into their caches, in place.
//
// XLA's own dynamic_update_slice on bfloat16 is not in place on CPUs with jax 0.10 (it converts the whole cache to
// float32 and back). This handler's outputs alias its cache inputs, so only the new rows move, for every dtype.
//
//   k_cache, v_cache  [lead..., (layers,) batch, kv_heads, max_seq, head_dim]   any 2 or 4 byte dtype
//   k, v              [lead..., batch, kv_heads, q_len, head_dim]               the dtype of their cache
//   pos, lengths      [lead..., batch] int32
//   layer             [lead...] int32, read when `stacked`
//
// Row b of a batch takes k[b, :, :lengths[b]] at pos[b]. A row is left as it was, wholly, when the range it asks for
// does not lie inside the cache, or its length is not one of 0..q_len, or its layer does not exist: an index computed
// at run time can neither write out of bounds nor land somewhere plausible.
//
// It keeps no state and touches no memory but its buffers, so calls may run at the same time.
#include <cstdint>
#include <cstring>
#include <string>

#include "cpu/handlers.h"

namespace {

namespace ffi = xla::ffi;

struct Extent {
  int64_t lead, layers, batch, heads, max_seq, q_len;
  size_t row_bytes;  // head_dim * element size
};

ffi::Error Invalid(const char* what) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string("atbfn_kv_cache_write: ") + what);
}

// Shapes are checked when the call is traced; this repeats it because a wrong one here would corrupt memory.
ffi::Error Check(const ffi::AnyBuffer& cache, const ffi::AnyBuffer& rows, const ffi::AnyBuffer& pos,
                 const ffi::AnyBuffer& lengths, const ffi::AnyBuffer& layer, const ffi::AnyBuffer& out, bool stacked,
                 Extent* extent) {
  const auto c = cache.dimensions(), r = rows.dimensions();
  const size_t tail = stacked ? 5 : 4;
  if (c.size() < tail || r.size() + (stacked ? 1 : 0) != c.size()) return Invalid("ranks of the cache and rows differ");
  const size_t lead_rank = c.size() - tail;
  if (cache.element_type() != rows.element_type() || cache.element_type() != out.element_type())
    return Invalid("the cache and its rows have different dtypes");
  const size_t item = ffi::ByteWidth(cache.element_type());
  if (item != 2 && item != 4) return Invalid("the cache's dtype is not 2 or 4 bytes wide");
  if (pos.element_type() != ffi::S32 || lengths.element_type() != ffi::S32 || layer.element_type() != ffi::S32)
    return Invalid("pos, lengths and layer must be int32");

  extent->lead = 1;
  for (size_t i = 0; i < lead_rank; ++i) {
    if (r[i] != c[i]) return Invalid("leading dimensions of the cache and rows differ");
    extent->lead *= c[i];
  }
  extent->layers = stacked ? c[lead_rank] : 1;
  const size_t ci = lead_rank + (stacked ? 1 : 0), ri = lead_rank;
  extent->batch = c[ci];
  extent->heads = c[ci + 1];
  extent->max_seq = c[ci + 2];
  extent->q_len = r[ri + 2];
  extent->row_bytes = static_cast<size_t>(c[ci + 3]) * item;
  if (r[ri] != c[ci] || r[ri + 1] != c[ci + 1] || r[ri + 3] != c[ci + 3])
    return Invalid("batch, kv_heads or head_dim of the cache and rows differ");
  const size_t per_batch = static_cast<size_t>(extent->lead * extent->batch);
  if (pos.element_count() != per_batch || lengths.element_count() != per_batch)
    return Invalid("pos and lengths need one entry per batch row");
  if (layer.element_count() != static_cast<size_t>(extent->lead)) return Invalid("layer needs one entry");
  if (out.size_bytes() != cache.size_bytes()) return Invalid("the output is not the size of the cache");
  return ffi::Error::Success();
}

void WriteRows(const ffi::AnyBuffer& cache, const ffi::AnyBuffer& rows, const int32_t* pos, const int32_t* lengths,
               const int32_t* layer, ffi::AnyBuffer& out, bool stacked, const Extent& e) {
  char* to = static_cast<char*>(out.untyped_data());
  const char* from = static_cast<const char*>(rows.untyped_data());
  // XLA honours the aliasing, by a copy of its own where the input must survive. Never rely on that for correctness.
  if (cache.size_bytes() != 0 && to != cache.untyped_data()) std::memcpy(to, cache.untyped_data(), cache.size_bytes());

  const size_t cache_head = static_cast<size_t>(e.max_seq) * e.row_bytes;
  const size_t rows_head = static_cast<size_t>(e.q_len) * e.row_bytes;
  for (int64_t g = 0; g < e.lead; ++g) {
    const int64_t l = stacked ? layer[g] : 0;
    if (l < 0 || l >= e.layers) continue;
    for (int64_t b = 0; b < e.batch; ++b) {
      const int64_t first = pos[g * e.batch + b], count = lengths[g * e.batch + b];
      if (count <= 0 || count > e.q_len || first < 0 || first + count > e.max_seq) continue;
      const int64_t cache_index = ((g * e.layers + l) * e.batch + b) * e.heads;
      const int64_t rows_index = (g * e.batch + b) * e.heads;
      for (int64_t h = 0; h < e.heads; ++h)
        std::memcpy(to + (cache_index + h) * cache_head + first * e.row_bytes, from + (rows_index + h) * rows_head,
                    static_cast<size_t>(count) * e.row_bytes);
    }
  }
}

ffi::Error KvCacheWrite(ffi::AnyBuffer k_cache, ffi::AnyBuffer v_cache, ffi::AnyBuffer k, ffi::AnyBuffer v,
                        ffi::AnyBuffer pos, ffi::AnyBuffer lengths, ffi::AnyBuffer layer,
                        ffi::Result<ffi::AnyBuffer> k_out, ffi::Result<ffi::AnyBuffer> v_out, bool stacked) {
  Extent k_extent, v_extent;
  if (auto error = Check(k_cache, k, pos, lengths, layer, *k_out, stacked, &k_extent); error.failure()) return error;
  if (auto error = Check(v_cache, v, pos, lengths, layer, *v_out, stacked, &v_extent); error.failure()) return error;
  const int32_t* p = pos.typed_data<int32_t>();
  const int32_t* n = lengths.typed_data<int32_t>();
  const int32_t* l = layer.typed_data<int32_t>();
  WriteRows(k_cache, k, p, n, l, *k_out, stacked, k_extent);
  WriteRows(v_cache, v, p, n, l, *v_out, stacked, v_extent);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(atbfn_kv_cache_write, KvCacheWrite,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()   // k_cache
                                  .Arg<ffi::AnyBuffer>()   // v_cache
                                  .Arg<ffi::AnyBuffer>()   // k
                                  .Arg<ffi::AnyBuffer>()   // v
                                  .Arg<ffi::AnyBuffer>()   // pos
                                  .Arg<ffi::AnyBuffer>()   // lengths
                                  .Arg<ffi::AnyBuffer>()   // layer
                                  .Ret<ffi::AnyBuffer>()   // k_cache
                                  .Ret<ffi::AnyBuffer>()   // v_cache
                                  .Attr<bool>("stacked"));
