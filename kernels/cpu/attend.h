// Attention over keys and values as they lie in a cache, for any number of query rows.
#ifndef ATBFN_KERNELS_CPU_ATTEND_H_
#define ATBFN_KERNELS_CPU_ATTEND_H_

#include "cpu/machine.h"

namespace atbfn {

// Which keys a query may attend: an interval for each row, and whatever arrays there are. Null arrays are absent.
struct Mask {
  bool causal = false;
  int64_t window = 0;  // 0: none
  int64_t global_tokens = 0;
  const int32_t* prefix = nullptr;  // [prefix_count], 1 or batch
  int64_t prefix_count = 0;
  const int32_t* q_ids = nullptr;  // [q_ids_batch, q_len]
  const int32_t* kv_ids = nullptr;  // [kv_ids_batch, kv_len]
  int64_t q_ids_batch = 1, kv_ids_batch = 1;
  const uint8_t* blocks = nullptr;  // [blocks_heads, q_blocks, kv_blocks]
  int64_t blocks_heads = 1, q_blocks = 0, kv_blocks = 0, block_size = 1;
  const uint8_t* allowed = nullptr;  // [allowed_batch, allowed_heads, q_len, kv_len]
  int64_t allowed_batch = 1, allowed_heads = 1;

  bool HasArrays() const { return q_ids || blocks || allowed; }
};

struct Attention {
  Dtype dtype;
  int64_t batch, heads, kv_heads, q_len, kv_len, head_dim;
  const void* q;         // [batch, heads, q_len, head_dim]
  const void *k, *v;     // [batch, kv_heads, kv_len, head_dim]
  const int32_t* pos;    // [pos_count], 1 or batch
  int64_t pos_count;
  const int32_t* lengths;  // [batch] or null
  Mask mask;
  float scale, softcap;  // softcap 0: none
  int64_t columns;       // query rows to take together
  int64_t keys;          // keys to take together
  void* context;         // [batch, heads, q_len, head_dim]
  float* lse;            // [batch, heads, q_len]
};

void Attend(Machine& machine, const Attention& attention);

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_ATTEND_H_
