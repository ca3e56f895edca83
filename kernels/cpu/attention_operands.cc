#include "cpu/attention_operands.h"

namespace atbfn {

ffi::Error ReadPositions(const char* name, const Operands& in, int pos, int lengths, Attention* a) {
  if (in.Type(pos) != ffi::S32 || (in.Count(pos) != 1 && in.Count(pos) != a->batch))
    return Invalid(name, "pos must be int32, one or one per sequence");
  a->pos = in.Ints(pos);
  a->pos_count = in.Count(pos);
  if (in.Has(lengths)) {
    if (in.Type(lengths) != ffi::S32 || in.Count(lengths) != a->batch)
      return Invalid(name, "lengths must be int32, one per sequence");
    a->lengths = in.Ints(lengths);
  }
  return ffi::Error::Success();
}

ffi::Error ReadMask(const char* name, const Operands& in, int first, ffi::Span<const int64_t> settings, Attention* a) {
  const int prefix = first, q_ids = first + 1, kv_ids = first + 2, blocks = first + 3, allowed = first + 4;
  if (settings.size() != 4) return Invalid(name, "wrong mask settings");
  Mask& m = a->mask;
  m.causal = settings[0] != 0;
  m.window = settings[1];
  m.global_tokens = settings[2];
  m.block_size = settings[3];
  if (m.window < 0 || m.global_tokens < 0 || m.block_size < 1) return Invalid(name, "wrong mask settings");
  for (int i : {prefix, q_ids, kv_ids})
    if (in.Has(i) && in.Type(i) != ffi::S32) return Invalid(name, "integers of a mask must be int32");
  for (int i : {blocks, allowed})
    if (in.Has(i) && in.Type(i) != ffi::PRED) return Invalid(name, "a mask's array must be bool");
  if (in.Has(prefix)) {
    m.prefix = in.Ints(prefix);
    m.prefix_count = in.Count(prefix);
    if (m.prefix_count != 1 && m.prefix_count != a->batch) return Invalid(name, "wrong size of a prefix");
  }
  if (in.Has(q_ids) != in.Has(kv_ids)) return Invalid(name, "a mask lacks an operand");
  if (in.Has(q_ids)) {
    m.q_ids = in.Ints(q_ids);
    m.kv_ids = in.Ints(kv_ids);
    m.q_ids_batch = in.Shape(q_ids)[0];
    m.kv_ids_batch = in.Shape(kv_ids)[0];
    if ((m.q_ids_batch != 1 && m.q_ids_batch != a->batch) || (m.kv_ids_batch != 1 && m.kv_ids_batch != a->batch) ||
        in.Count(q_ids) != m.q_ids_batch * a->q_len || in.Count(kv_ids) != m.kv_ids_batch * a->kv_len)
      return Invalid(name, "wrong size of segment numbers");
  }
  if (in.Has(blocks)) {
    const auto shape = in.Shape(blocks);
    if (shape.size() != 3 || (shape[0] != 1 && shape[0] != a->heads)) return Invalid(name, "wrong shape of blocks");
    m.blocks = static_cast<const uint8_t*>(in.Data(blocks));
    m.blocks_heads = shape[0];
    m.q_blocks = shape[1];
    m.kv_blocks = shape[2];
  }
  if (in.Has(allowed)) {
    const auto shape = in.Shape(allowed);
    if (shape.size() != 4 || (shape[0] != 1 && shape[0] != a->batch) || (shape[1] != 1 && shape[1] != a->heads) ||
        shape[2] != a->q_len || shape[3] != a->kv_len)
      return Invalid(name, "wrong shape of allowed");
    m.allowed = static_cast<const uint8_t*>(in.Data(allowed));
    m.allowed_batch = shape[0];
    m.allowed_heads = shape[1];
  }
  return ffi::Error::Success();
}

}  // namespace atbfn
