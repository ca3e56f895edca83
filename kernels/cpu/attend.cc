// Flash attention: blocks of keys, an online softmax, nothing of the size of the scores.
//
// Scores are computed transposed, S^T = K Q^T: keys are the weights of a product as they lie in the cache, queries its
// packed columns. So the softmax runs down columns, with queries in the lanes of a vector, and its result is packed as
// the right side of O^T = V^T P^T, for which a block of V is transposed once for all queries that share it. With a few
// queries (decoding) memory is all that counts: keys are dotted and values summed as they lie, and the keys of one
// sequence are split over threads.
//
// Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022.
#include "cpu/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace atbfn {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int64_t kSubBlock = 48;  // columns that are multiplied together: three tiles
constexpr int64_t kFewRows = 8;
constexpr int64_t kSplitKeys = 128;  // keys that are worth a piece of work of their own when decoding

struct Row {
  int64_t low, high, leading;  // keys in [low, high) or below leading, and below high
};

// The keys of row t of sequence b, without the mask's arrays.
Row Interval(const Attention& a, int64_t b, int64_t t) {
  const int64_t pos = a.pos[a.pos_count == 1 ? 0 : b];
  const int64_t length = a.lengths ? a.lengths[b] : a.q_len;
  Row row{0, std::clamp<int64_t>(pos + length, 0, a.kv_len), 0};
  if (a.lengths && t >= length) row.high = 0;
  int64_t open = a.mask.causal ? pos + t + 1 : a.kv_len;
  if (a.mask.prefix && a.mask.causal)
    open = std::max<int64_t>(open, a.mask.prefix[a.mask.prefix_count == 1 ? 0 : b]);
  row.high = std::min(row.high, std::max<int64_t>(open, 0));
  if (a.mask.window) {
    row.low = std::max<int64_t>(0, pos + t - a.mask.window + 1);
    row.leading = a.mask.global_tokens;
  }
  return row;
}

// Whether the mask's arrays allow the pair.
bool Allows(const Attention& a, int64_t b, int64_t head, int64_t t, int64_t key) {
  const Mask& m = a.mask;
  if (m.q_ids && m.q_ids[(m.q_ids_batch == 1 ? 0 : b) * a.q_len + t] !=
                     m.kv_ids[(m.kv_ids_batch == 1 ? 0 : b) * a.kv_len + key])
    return false;
  if (m.blocks) {
    const int64_t position = a.pos[a.pos_count == 1 ? 0 : b] + t;
    if (position < 0) return false;
    const int64_t i = position / m.block_size, j = key / m.block_size;
    if (i >= m.q_blocks || j >= m.kv_blocks) return false;
    if (!m.blocks[((m.blocks_heads == 1 ? 0 : head) * m.q_blocks + i) * m.kv_blocks + j]) return false;
  }
  return !m.allowed || m.allowed[(((m.allowed_batch == 1 ? 0 : b) * m.allowed_heads +
                                   (m.allowed_heads == 1 ? 0 : head)) * a.q_len + t) * a.kv_len + key];
}

bool InInterval(const Row& row, int64_t key) { return key < row.high && (key >= row.low || key < row.leading); }

int64_t RowOffset(const Attention& a, int64_t b, int64_t head, int64_t t) {
  return ((b * a.heads + head) * a.q_len + t) * a.head_dim;
}
int64_t KeyOffset(const Attention& a, int64_t b, int64_t kv_head, int64_t key) {
  return ((b * a.kv_heads + kv_head) * a.kv_len + key) * a.head_dim;
}

// One row by the formula, for rows that see anything that is not finite: a key that is not attended must not count even
// if it holds a NaN, and an attended infinity appears where the formula puts it.
void AttendRowExactly(const Kernels& kernels, const Attention& a, int64_t b, int64_t head, int64_t t) {
  const int64_t d = a.head_dim, kv_head = head / (a.heads / a.kv_heads);
  const Row row = Interval(a, b, t);
  std::vector<float> q(d), x(d), sum(d, 0.0f), scores;
  std::vector<int64_t> keys;
  kernels.widen(a.dtype, At(a.q, RowOffset(a, b, head, t), a.dtype), q.data(), d);
  float top = kMinusInfinity;
  for (int64_t key = 0; key < row.high; ++key) {
    if (!InInterval(row, key) || !Allows(a, b, head, t, key)) continue;
    kernels.widen(a.dtype, At(a.k, KeyOffset(a, b, kv_head, key), a.dtype), x.data(), d);
    float s = 0;
    for (int64_t i = 0; i < d; ++i) s += q[i] * x[i];
    s *= a.scale;
    if (a.softcap != 0) s = a.softcap * std::tanh(s / a.softcap);
    if (s > top || s != s) top = s;
    if (top != top) top = std::numeric_limits<float>::quiet_NaN();
    keys.push_back(key);
    scores.push_back(s);
  }
  const float shift = top == kMinusInfinity ? 0 : top;
  float total = 0;
  for (size_t j = 0; j < keys.size(); ++j) {
    const float s = scores[j], p = std::exp(s - shift);
    total += p;
    kernels.widen(a.dtype, At(a.v, KeyOffset(a, b, kv_head, keys[j]), a.dtype), x.data(), d);
    for (int64_t i = 0; i < d; ++i) {
      if (std::isfinite(x[i]))
        sum[i] += p * x[i];
      else
        sum[i] += s == kMinusInfinity ? std::numeric_limits<float>::quiet_NaN() : x[i];
    }
  }
  const float divisor = keys.empty() ? 1 : total;
  for (int64_t i = 0; i < d; ++i) sum[i] /= divisor;
  const int64_t at = RowOffset(a, b, head, t);
  kernels.narrow(a.dtype, sum.data(), At(a.context, at, a.dtype), d);
  a.lse[at / d] = keys.empty() ? kMinusInfinity : shift + std::log(total);
}

// Keys from `first` on whose values are not all finite; those values become zero in `to`, a copy of the values [keys, d]
// or their transpose (`to_key`, `to_element`: elements from one to the next). Rows that attend such a key are done by
// the formula afterwards, and the others come out as if it did not exist.
void RemoveNonFinite(const Kernels& kernels, const Attention& a, const void* values, int64_t first, int64_t keys,
                     void* to, int64_t to_key, int64_t to_element, std::vector<int64_t>* odd) {
  const int64_t d = a.head_dim;
  std::vector<float> x(d);
  const float zero = 0;
  for (int64_t key = 0; key < keys; ++key) {
    kernels.widen(a.dtype, At(values, key * d, a.dtype), x.data(), d);
    bool finite = true;
    for (int64_t i = 0; i < d; ++i) {
      if (std::isfinite(x[i])) continue;
      finite = false;
      kernels.narrow(a.dtype, &zero, At(to, key * to_key + i * to_element, a.dtype), 1);
    }
    if (!finite) odd->push_back(first + key);
  }
}

bool AttendsAny(const Attention& a, int64_t b, int64_t head, int64_t t, const std::vector<int64_t>& keys) {
  const Row row = Interval(a, b, t);
  return std::any_of(keys.begin(), keys.end(),
                     [&](int64_t key) { return InInterval(row, key) && Allows(a, b, head, t, key); });
}

// What one piece of work over many queries needs of memory.
struct ManyScratch {
  void *q, *p, *values;
  float *rows, *cols, *scores, *context, *top, *total, *rescale;
  int32_t *low, *high, *leading;
  uint8_t* allowed;
  char* engine;
};

// Rows t0 .. t0 + count of every head that shares a key head.
void AttendMany(const Kernels& kernels, const Engine& engine, const Attention& a, const ManyScratch& s, int64_t b,
                int64_t kv_head, int64_t t0, int64_t count) {
  const int64_t d = a.head_dim, group = a.heads / a.kv_heads, columns = group * count, ld = RoundUp(columns, kSubBlock);
  const int64_t tile_bytes = engine.packed_bytes(d, kTile), d_rows = RoundUp(d, kGroup);
  const auto head_of = [&](int64_t c) { return kv_head * group + c / count; };
  const auto row_of = [&](int64_t c) { return t0 + c % count; };

  int64_t first = a.kv_len, end = 0;
  for (int64_t c = 0; c < ld; ++c) {
    Row row{0, 0, 0};
    if (c < columns) row = Interval(a, b, row_of(c));
    s.low[c] = static_cast<int32_t>(row.low);
    s.high[c] = static_cast<int32_t>(row.high);
    s.leading[c] = static_cast<int32_t>(std::min(row.leading, a.kv_len));
    s.top[c] = kMinusInfinity;
    s.total[c] = 0;
    if (c < columns) {
      first = std::min(first, row.leading ? 0 : row.low);
      end = std::max(end, row.high);
    }
  }
  std::memset(s.context, 0, static_cast<size_t>(d_rows * ld) * sizeof(float));
  for (int64_t c = 0; c < columns; c += kTile) {
    const int64_t n = std::min(kTile, columns - c);
    for (int64_t i = 0; i < n; ++i)
      kernels.widen(a.dtype, At(a.q, RowOffset(a, b, head_of(c + i), row_of(c + i)), a.dtype), s.rows + i * d, d);
    kernels.transpose(s.rows, d, n, d, s.cols, kTile);
    engine.pack(s.cols, kTile, 0, d, d, c, n, columns, s.q);
  }

  std::vector<int64_t> odd_keys;
  first = first / kGroup * kGroup;
  for (int64_t k0 = first; k0 < end; k0 += a.keys) {
    const int64_t k1 = std::min(k0 + a.keys, end), padded = RoundUp(a.keys, kGroup);
    bool seen = false;
    for (int64_t c = 0; c < columns && !seen; ++c)
      seen = s.high[c] > k0 && (s.low[c] < k1 || s.leading[c] > k0);
    if (!seen) continue;
    // V^T [head_dim, keys], with zeros for what is not a key of this block.
    const void* values = At(a.v, KeyOffset(a, b, kv_head, k0), a.dtype);
    if (!kernels.transpose_values(a.dtype, values, d, k1 - k0, d, s.values, padded, RoundUp(k1 - k0, kGroup)))
      RemoveNonFinite(kernels, a, values, k0, k1 - k0, s.values, 1, padded, &odd_keys);
    for (int64_t c0 = 0; c0 < columns; c0 += kSubBlock) {
      const int64_t n = std::min(kSubBlock, columns - c0), n_tiles = RoundUp(n, kTile);
      int64_t high = 0, least_high = a.kv_len, most_low = 0;
      bool some = false;
      for (int64_t c = c0; c < c0 + n; ++c) {
        high = std::max<int64_t>(high, s.high[c]);
        least_high = std::min<int64_t>(least_high, s.high[c]);
        most_low = std::max<int64_t>(most_low, s.low[c]);
        some |= s.high[c] > k0 && (s.low[c] < k1 || s.leading[c] > k0);
      }
      if (!some) continue;
      const int64_t keys = std::min(high, k1) - k0, rounded = RoundUp(keys, kGroup);
      PanelArgs product{};
      for (int h = 0; h < 2; ++h) {
        product.w[h] = At(a.k, KeyOffset(a, b, kv_head, k0 + h * kHalf), a.dtype);
        product.step[h] = kGroup;
        const int64_t last = keys - (rounded - kGroup) - h * kHalf;
        product.rows[h] = std::clamp<int64_t>(last, 0, kHalf);
      }
      product.groups = rounded / kGroup;
      product.ldw = product.k = d;
      product.packed = static_cast<const char*>(s.q) + c0 / kTile * tile_bytes;
      product.tokens = n;
      product.c = s.scores;
      product.ldc = kSubBlock;
      product.scratch = s.engine;
      engine.panel(product);

      SoftmaxArgs softmax{};
      softmax.s = s.scores;
      softmax.ld = kSubBlock;
      softmax.keys = rounded;
      softmax.columns = n_tiles;
      softmax.scale = a.scale;
      softmax.softcap = a.softcap;
      softmax.first_key = static_cast<int32_t>(k0);
      if (most_low > k0 || least_high < k0 + rounded || n < n_tiles || a.mask.HasArrays()) {
        softmax.low = s.low + c0;
        softmax.high = s.high + c0;
        softmax.leading = s.leading + c0;
      }
      if (a.mask.HasArrays()) {
        for (int64_t key = 0; key < rounded; ++key)
          for (int64_t c = 0; c < n_tiles; ++c)
            s.allowed[key * n_tiles + c] =
                c < n && k0 + key < a.kv_len && Allows(a, b, head_of(c0 + c), row_of(c0 + c), k0 + key);
        softmax.allowed = s.allowed;
      }
      softmax.top = s.top + c0;
      softmax.total = s.total + c0;
      softmax.rescale = s.rescale;
      if (engine.softmax_packed) {
        engine.softmax_packed(softmax, s.p);
      } else {
        kernels.softmax(softmax);
        engine.pack(s.scores, kSubBlock, 0, rounded, rounded, 0, n, n, s.p);
      }
      if (k0 > first) kernels.scale_columns(s.context + c0, ld, d, n_tiles, s.rescale);
      PanelArgs sum{};
      for (int h = 0; h < 2; ++h) {
        sum.w[h] = At(s.values, h * kHalf * padded, a.dtype);
        sum.step[h] = kGroup;
        sum.rows[h] = std::clamp<int64_t>(d - (d_rows - kGroup) - h * kHalf, 0, kHalf);
      }
      sum.groups = d_rows / kGroup;
      sum.ldw = padded;
      sum.k = rounded;
      sum.packed = s.p;
      sum.tokens = n;
      sum.c = s.context + c0;
      sum.ldc = ld;
      sum.accumulate = true;
      sum.scratch = s.engine;
      engine.panel(sum);
    }
  }

  for (int64_t c = 0; c < columns; ++c) {
    const int64_t at = RowOffset(a, b, head_of(c), row_of(c)) / d;
    const bool empty = s.total[c] == 0;
    a.lse[at] = empty ? kMinusInfinity : s.top[c] + std::log(s.total[c]);
    s.total[c] = empty ? 0 : 1 / s.total[c];
  }
  kernels.scale_columns(s.context, ld, d, ld, s.total);
  for (int64_t g = 0; g < group; ++g)
    for (int64_t f = 0; f < d; f += kGroup)
      kernels.finish(a.dtype, s.context + f * ld + g * count, ld, std::min(kGroup, d - f), count, nullptr, nullptr,
                     At(a.context, RowOffset(a, b, kv_head * group + g, t0) + f, a.dtype), d, nullptr, 0);
  for (int64_t c = 0; c < columns; ++c) {
    const int64_t head = head_of(c), t = row_of(c);
    const float lse = a.lse[RowOffset(a, b, head, t) / d];
    // Nothing attended, or scores that are all minus infinity: the formula tells them apart.
    const bool unclear = lse == kMinusInfinity && s.high[c] > 0;
    if (lse != lse || unclear || AttendsAny(a, b, head, t, odd_keys)) AttendRowExactly(kernels, a, b, head, t);
  }
}

// A piece of the keys of one key head, for a few rows: what it adds, to be joined with the other pieces.
struct Partial {
  float* context;  // [rows, head_dim], not divided
  float* top;      // [kTile]
  float* total;    // [kTile]
  std::vector<int64_t> odd_keys;  // whose values are not finite
};

struct FewScratch {
  float *q, *scores, *rescale, *before;
  int32_t *low, *high, *leading;
  uint8_t* allowed;
};

void AttendFew(const Kernels& kernels, const Engine& engine, const Attention& a, const FewScratch& s, int64_t b,
               int64_t kv_head, int64_t begin, int64_t end, Partial* out) {
  const int64_t d = a.head_dim, group = a.heads / a.kv_heads, rows = group * a.q_len;
  const auto head_of = [&](int64_t r) { return kv_head * group + r / a.q_len; };
  for (int64_t r = 0; r < kTile; ++r) {
    const Row row = r < rows ? Interval(a, b, r % a.q_len) : Row{0, 0, 0};
    s.low[r] = static_cast<int32_t>(row.low);
    s.high[r] = static_cast<int32_t>(row.high);
    s.leading[r] = static_cast<int32_t>(std::min(row.leading, a.kv_len));
    out->top[r] = kMinusInfinity;
    out->total[r] = 0;
  }
  for (int64_t r = 0; r < rows; ++r)
    kernels.widen(a.dtype, At(a.q, RowOffset(a, b, head_of(r), r % a.q_len), a.dtype), s.q + r * d, d);
  std::memset(out->context, 0, static_cast<size_t>(rows * d) * sizeof(float));
  for (int64_t k0 = begin; k0 < end; k0 += kGroup * 8) {
    const int64_t keys = std::min(kGroup * 8, end - k0), rounded = RoundUp(keys, kGroup);
    std::memset(s.scores, 0, static_cast<size_t>(rounded * kTile) * sizeof(float));
    PanelArgs product{};
    for (int h = 0; h < 2; ++h) {
      product.w[h] = At(a.k, KeyOffset(a, b, kv_head, k0 + h * kHalf), a.dtype);
      product.step[h] = kGroup;
      product.rows[h] = std::clamp<int64_t>(keys - (rounded - kGroup) - h * kHalf, 0, kHalf);
    }
    product.groups = rounded / kGroup;
    product.ldw = product.k = d;
    product.packed = s.q;
    product.tokens = rows;
    product.c = s.scores;
    product.ldc = kTile;
    engine.panel(product);
    SoftmaxArgs softmax{};
    softmax.s = s.scores;
    softmax.ld = kTile;
    softmax.keys = keys;
    softmax.columns = kTile;
    softmax.scale = a.scale;
    softmax.softcap = a.softcap;
    softmax.first_key = static_cast<int32_t>(k0);
    bool open = !a.mask.HasArrays();
    for (int64_t r = 0; r < rows; ++r) open &= s.low[r] <= k0 && s.high[r] >= k0 + keys;
    if (!open) {
      softmax.low = s.low;
      softmax.high = s.high;
      softmax.leading = s.leading;
    }
    if (a.mask.HasArrays()) {
      for (int64_t key = 0; key < keys; ++key)
        for (int64_t r = 0; r < kTile; ++r)
          s.allowed[key * kTile + r] = r < rows && Allows(a, b, head_of(r), r % a.q_len, k0 + key);
      softmax.allowed = s.allowed;
    }
    softmax.top = out->top;
    softmax.total = out->total;
    softmax.rescale = s.rescale;
    kernels.softmax(softmax);
    for (int64_t r = 0; r < rows && k0 > begin; ++r)
      if (s.rescale[r] != 1)
        for (int64_t i = 0; i < d; ++i) out->context[r * d + i] *= s.rescale[r];
    const void* values = At(a.v, KeyOffset(a, b, kv_head, k0), a.dtype);
    std::memcpy(s.before, out->context, static_cast<size_t>(rows * d) * sizeof(float));
    if (!kernels.weighted_sum(a.dtype, s.scores, kTile, values, d, keys, rows, d, out->context, d)) {
      std::vector<char> clean(static_cast<size_t>(keys * d * ItemSize(a.dtype)));
      std::memcpy(clean.data(), values, clean.size());
      RemoveNonFinite(kernels, a, values, k0, keys, clean.data(), d, 1, &out->odd_keys);
      std::memcpy(out->context, s.before, static_cast<size_t>(rows * d) * sizeof(float));
      kernels.weighted_sum(a.dtype, s.scores, kTile, clean.data(), d, keys, rows, d, out->context, d);
    }
  }
}

void JoinFew(const Kernels& kernels, const Attention& a, int64_t b, int64_t kv_head, const Partial* parts,
             int64_t count, float* sum) {
  const int64_t d = a.head_dim, group = a.heads / a.kv_heads, rows = group * a.q_len;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = kv_head * group + r / a.q_len, t = r % a.q_len, at = RowOffset(a, b, head, t);
    float top = kMinusInfinity, total = 0;
    bool odd = false;
    for (int64_t i = 0; i < count; ++i) {
      odd |= parts[i].total[r] != parts[i].total[r] || AttendsAny(a, b, head, t, parts[i].odd_keys);
      top = std::max(top, parts[i].top[r]);
    }
    // Nothing attended, or scores that are all minus infinity: the formula tells them apart.
    if (odd || (top == kMinusInfinity && Interval(a, b, t).high > 0)) {
      AttendRowExactly(kernels, a, b, head, t);
      continue;
    }
    std::fill(sum, sum + d, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      const float factor = parts[i].top[r] == kMinusInfinity ? 0 : std::exp(parts[i].top[r] - top);
      total += parts[i].total[r] * factor;
      for (int64_t j = 0; j < d; ++j) sum[j] += parts[i].context[r * d + j] * factor;
    }
    const float inverse = total == 0 ? 0 : 1 / total;
    for (int64_t j = 0; j < d; ++j) sum[j] *= inverse;
    kernels.narrow(a.dtype, sum, At(a.context, at, a.dtype), d);
    a.lse[at / d] = total == 0 ? kMinusInfinity : top + std::log(total);
  }
}

void RunFew(Machine& machine, const Attention& a) {
  const int64_t d = a.head_dim, rows = a.heads / a.kv_heads * a.q_len;
  const Engine& engine = machine.kernels.few[static_cast<int>(a.dtype)];
  // What any row may attend, per sequence, cut into pieces: enough of them for every thread.
  struct Piece {
    int64_t b, kv_head, begin, end;
  };
  std::vector<Piece> pieces;
  std::vector<int64_t> first_piece;
  for (int64_t b = 0; b < a.batch; ++b) {
    int64_t first = a.kv_len, end = 0;
    for (int64_t t = 0; t < a.q_len; ++t) {
      const Row row = Interval(a, b, t);
      first = std::min(first, row.leading ? 0 : row.low);
      end = std::max(end, row.high);
    }
    first = std::min(first, end) / kGroup * kGroup;
    int64_t splits = std::max<int64_t>(1, CeilDiv(2 * machine.team.size(), a.batch * a.kv_heads));
    splits = std::clamp<int64_t>(splits, 1, std::max<int64_t>(1, (end - first) / kSplitKeys));
    const int64_t each = RoundUp(CeilDiv(std::max<int64_t>(end - first, 1), splits), kGroup);
    for (int64_t h = 0; h < a.kv_heads; ++h) {
      first_piece.push_back(static_cast<int64_t>(pieces.size()));
      for (int64_t i = 0; i < splits; ++i)
        pieces.push_back({b, h, std::min(end, first + i * each), std::min(end, first + (i + 1) * each)});
    }
  }
  first_piece.push_back(static_cast<int64_t>(pieces.size()));
  const int64_t count = static_cast<int64_t>(pieces.size());
  const int64_t part = rows * d + 2 * kTile, chunk = kGroup * 8;
  float* parts = machine.scratch.Take<float>(count * RoundUp(part, 16));
  std::vector<Partial> partials(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    float* base = parts + i * RoundUp(part, 16);
    partials[static_cast<size_t>(i)] = {base + 2 * kTile, base, base + kTile, {}};
  }
  const int64_t width = RoundUp(rows * d, 16);
  PerWorker<float> floats(machine, 2 * width + chunk * kTile + kTile);
  PerWorker<int32_t> ints(machine, 3 * kTile);
  PerWorker<uint8_t> bytes(machine, chunk * kTile);
  machine.team.Run(count, [&](int64_t item, int64_t worker) {
    const Piece& p = pieces[static_cast<size_t>(item)];
    float* f = floats[worker];
    int32_t* i = ints[worker];
    float* scores = f + 2 * width;
    const FewScratch scratch{f, scores, scores + chunk * kTile, f + width, i, i + kTile, i + 2 * kTile, bytes[worker]};
    AttendFew(machine.kernels, engine, a, scratch, p.b, p.kv_head, p.begin, p.end, &partials[static_cast<size_t>(item)]);
  });
  float* sum = machine.scratch.Take<float>(d);
  for (int64_t i = 0; i < a.batch * a.kv_heads; ++i) {
    const int64_t from = first_piece[static_cast<size_t>(i)], to = first_piece[static_cast<size_t>(i + 1)];
    JoinFew(machine.kernels, a, i / a.kv_heads, i % a.kv_heads, &partials[static_cast<size_t>(from)], to - from, sum);
  }
}

void RunMany(Machine& machine, const Attention& a) {
  const int64_t d = a.head_dim, group = a.heads / a.kv_heads;
  const Engine& engine = machine.kernels.many[static_cast<int>(a.dtype)];
  const int64_t most = std::max<int64_t>(1, a.columns / group), blocks = CeilDiv(a.q_len, most);
  const int64_t count = std::min(a.q_len, RoundUp(CeilDiv(a.q_len, blocks), kTile)), padded = RoundUp(a.keys, kGroup);
  const int64_t ld = RoundUp(group * count, kSubBlock), d_rows = RoundUp(d, kGroup), tiles = CeilDiv(a.q_len, count);
  // Of each worker, in this order: floats, then 32 bit integers, then bytes; every stretch a multiple of 64 bytes.
  PerWorker<float> floats(machine, 2 * RoundUp(kTile * d, 16) + padded * kSubBlock + d_rows * ld + kTile + 2 * ld +
                                       RoundUp(kSubBlock, 16) + 64);
  PerWorker<int32_t> ints(machine, 3 * ld);
  const int64_t q_bytes = RoundUp(engine.packed_bytes(d, ld), 64), p_bytes = RoundUp(engine.packed_bytes(padded, kSubBlock), 64);
  const int64_t v_bytes = RoundUp(d * padded * ItemSize(a.dtype), 64), mask_bytes = RoundUp(padded * kSubBlock, 64);
  const int64_t engine_bytes = std::max(engine.scratch_bytes(d), engine.scratch_bytes(padded));
  PerWorker<char> bytes(machine, q_bytes + p_bytes + v_bytes + mask_bytes + engine_bytes);
  machine.team.Run(a.batch * a.kv_heads * tiles, [&](int64_t item, int64_t worker) {
    ManyScratch s{};
    float* f = floats[worker];
    const auto take = [&](int64_t n) { return std::exchange(f, f + RoundUp(n, 16)); };
    s.rows = take(kTile * d);
    s.cols = take(kTile * d);
    s.scores = take(padded * kSubBlock);
    s.top = take(ld);
    s.total = take(ld);
    s.rescale = take(kSubBlock);
    s.context = take(d_rows * ld + kTile);
    s.low = ints[worker];
    s.high = s.low + ld;
    s.leading = s.high + ld;
    char* c = bytes[worker];
    s.q = c;
    s.p = c + q_bytes;
    s.values = c + q_bytes + p_bytes;
    s.allowed = reinterpret_cast<uint8_t*>(c + q_bytes + p_bytes + v_bytes);
    s.engine = c + q_bytes + p_bytes + v_bytes + mask_bytes;
    const int64_t tile = item % tiles, head = item / tiles, t0 = tile * count;
    AttendMany(machine.kernels, engine, a, s, head / a.kv_heads, head % a.kv_heads, t0, std::min(count, a.q_len - t0));
  });
}

}  // namespace

void Attend(Machine& machine, const Attention& attention) {
  if (attention.heads / attention.kv_heads * attention.q_len <= kFewRows)
    RunFew(machine, attention);
  else
    RunMany(machine, attention);
}

}  // namespace atbfn
