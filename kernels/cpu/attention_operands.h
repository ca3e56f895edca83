// Positions and masks as the attention handlers get them.
#ifndef ATBFN_KERNELS_CPU_ATTENTION_OPERANDS_H_
#define ATBFN_KERNELS_CPU_ATTENTION_OPERANDS_H_

#include "cpu/attend.h"
#include "cpu/calls.h"

namespace atbfn {

// Reads pos and lengths of an attention whose sizes are set.
ffi::Error ReadPositions(const char* name, const Operands& in, int pos, int lengths, Attention* attention);

// Reads the mask: `settings` are causal, window, global_tokens, block_size; from operand `first` on there may be the
// prefix, q_ids, kv_ids, blocks and allowed.
ffi::Error ReadMask(const char* name, const Operands& in, int first, ffi::Span<const int64_t> settings,
                    Attention* attention);

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_ATTENTION_OPERANDS_H_
