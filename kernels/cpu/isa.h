// What each instruction set provides: one table of functions per set, chosen at run time.
//
// The drivers (ffn.cc, attention.cc, ...) are compiled for the architecture's baseline and do everything that touches
// many elements through this table. vectors_<set>.cc fill it in.
#ifndef ATBFN_KERNELS_CPU_ISA_H_
#define ATBFN_KERNELS_CPU_ISA_H_

#include <string>

#include "cpu/types.h"

namespace atbfn {

// One product C = W X: W is [rows, k] as it lies in memory, X was packed, C is fp32 [rows, tokens].
struct PanelArgs {
  // `groups` groups of rows: group g's first half is w[0] + g * step[0] rows, its second w[1] + g * step[1]. `rows` says
  // how many rows the halves of the last group have; those of the others have kHalf.
  const void* w[2];
  int64_t step[2];
  int64_t rows[2];
  int64_t groups;
  int64_t ldw;  // elements from a row of W to the next
  int64_t k;
  const void* packed;
  int64_t tokens;  // any number; C has RoundUp(tokens, kTile) columns
  float* c;        // [groups * kGroup, ldc]: rows of the first half, then of the second, in each group
  int64_t ldc;
  bool accumulate;     // C += W X
  const void* next[2];  // what to prefetch meanwhile: the rows that the next call reads, or null
  void* scratch;       // Engine::scratch_bytes(k)
};

// A way to do products. Layouts of the packed operand are an engine's own.
struct Engine {
  const char* name;
  int64_t (*packed_bytes)(int64_t k, int64_t tokens);
  // Packs columns `token` .. of X from fp32 `cols` [k_count, ld]: rows k0 .. k0 + k_count of k, the first `tokens`
  // columns, `token` a multiple of kTile; k0 a multiple of kGroup. What a tile has beyond `tokens` becomes zero, and
  // so does what k has beyond the last row, up to the engine's own granularity, when k0 + k_count == k.
  void (*pack)(const float* cols, int64_t ld, int64_t k0, int64_t k_count, int64_t k, int64_t token, int64_t tokens,
               int64_t all_tokens, void* packed);
  int64_t (*scratch_bytes)(int64_t k);
  void (*panel)(const PanelArgs& args);
  // Softmax whose result is packed (keys are k, queries tokens) instead of put back; null where the engine has none.
  void (*softmax_packed)(const struct SoftmaxArgs& args, void* packed);
};

struct NormArgs {
  const float* gamma;  // null for none
  const float* beta;   // null for none
  float eps;
  bool center;
};

struct Kernels {
  const char* name;
  // Products for any number of tokens, and for a few (`max_few` and less), by dtype of W.
  Engine many[kDtypes];
  Engine few[kDtypes];
  int64_t max_few[kDtypes];
  // What a thread must do before and after its share of a kernel (AMX has a state of its own).
  void (*begin)();
  void (*end)();

  void (*widen)(Dtype dtype, const void* from, float* to, int64_t n);
  void (*narrow)(Dtype dtype, const float* from, void* to, int64_t n);
  // to[i] = a[i] + b[i]; both of the dtype.
  void (*widen_sum)(Dtype dtype, const void* a, const void* b, float* to, int64_t n);
  // One row, in place. `mean` and `rstd` may be null.
  void (*norm)(const NormArgs& args, float* row, int64_t n, float* mean, float* rstd);
  // cols [n, kTile] = rows [kTile, n] transposed; `rows` of them are given, the rest is zero. cols has leading dim ld.
  void (*transpose)(const float* from, int64_t ld_from, int64_t rows, int64_t n, float* cols, int64_t ld);
  // c [kGroup, ldc]: rows 0..15 are gates, 16..31 ups (or all are ups, !gated). Adds the biases (null: none), and
  // leaves the activated rows in the first `rows` of c (gated) or in place.
  void (*activate)(Activation activation, bool gated, const float* bias_gate, const float* bias_up, float* c,
                   int64_t ldc, int64_t rows, int64_t columns);
  // out[t, f] = c[f, t] + bias[f] + residual[t, f], f < features <= kGroup, t < tokens. out and residual have the dtype
  // and leading dimension ld; `wide` (fp32, leading dim ld_wide) is written instead of out where given.
  void (*finish)(Dtype dtype, const float* c, int64_t ldc, int64_t features, int64_t tokens, const float* bias,
                 const void* residual, void* out, int64_t ld, float* wide, int64_t ld_wide);
  // q [n] rotated in place by cos, sin [half]; `interleaved` pairs 2i and 2i+1 instead of i and i+half.
  void (*rotate)(float* q, const float* cos, const float* sin, int64_t half, bool interleaved);
  // Transposes rows of the dtype: to[d, r] = from[r, d], r < rows, d < columns; zero for rows <= r < padded. Returns
  // whether every element is finite.
  bool (*transpose_values)(Dtype dtype, const void* from, int64_t ld_from, int64_t rows, int64_t columns, void* to,
                           int64_t ld_to, int64_t padded);
  // Online softmax of a block of scores s [keys, ld]: lanes are queries. See SoftmaxArgs.
  void (*softmax)(const struct SoftmaxArgs& args);
  // out [r, columns] += sum over keys of p[key, r] v[key, :], r < rows <= 8; p has leading dimension ld_p. Returns
  // whether every v is finite.
  bool (*weighted_sum)(Dtype dtype, const float* p, int64_t ld_p, const void* v, int64_t ld_v, int64_t keys,
                       int64_t rows, int64_t columns, float* out, int64_t ld_out);
  // out[i] *= scale[i % lanes]... rows of [n, ld] times a vector over `columns` (lanes are queries).
  void (*scale_columns)(float* x, int64_t ld, int64_t n, int64_t columns, const float* factors);
};

// s[key, query] -> p, in place, for `columns` queries (a multiple of kTile).
struct SoftmaxArgs {
  float* s;
  int64_t ld;
  int64_t keys;
  int64_t columns;
  float scale;
  float softcap;       // 0: none
  int32_t first_key;   // the key of row 0
  // Query i may attend keys in [low[i], high[i]) and those below leading[i] that are below high[i]. Null: all.
  const int32_t* low;
  const int32_t* high;
  const int32_t* leading;
  const uint8_t* allowed;  // [keys, columns] or null: 0 forbids
  float* top;      // [columns] running maximum, -inf at first
  float* total;    // [columns] running sum
  float* rescale;  // [columns] out: what earlier contexts are to be multiplied with
};

// The table in use: the widest set of this machine, or the one that ATBFN_CPU_ISA names.
const Kernels& Selected();
// Why ATBFN_CPU_ISA cannot be had, or "" (checked when the kernels are loaded).
std::string IsaProblem();
// The sets that this machine can run, narrowest first, separated by spaces.
std::string AvailableIsas();

const Kernels& PortableKernels();
const Kernels& Avx2Kernels();    // where ATBFN_HAVE_AVX2, and so on
const Kernels& Avx512Kernels();
const Kernels& AmxKernels();

}  // namespace atbfn

#endif  // ATBFN_KERNELS_CPU_ISA_H_
