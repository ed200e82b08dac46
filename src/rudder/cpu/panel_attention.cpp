#include "rudder/cpu/panel_attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/cpu/kv_rows.h"
#include "rudder/cpu/plain_attention.h"
#include "rudder/cpu/tree_path.h"

namespace rudder::cpu {
namespace {

using tensor::BF16;
using tensor::DType;

// With fewer products of a query with a key, a second thread would start too late to help.
constexpr int64_t kForkScores = 4096;

// Of a cache in panels.
Element element_of(const ops::KvLayer& kv) {
  RUDDER_CHECK(!kv.format().has_codes());
  return kv.storage.dtype == DType::kBF16 ? Element::kBf16 : Element::kF32;
}

// Bytes of k, or of v, of one head and block.
int64_t head_bytes(const ops::KvLayer& kv) {
  return int64_t{kv.block_size} * kv.head_dim * element_bytes(element_of(kv));
}

std::byte* head_block(const ops::KvLayer& kv, int64_t block, int part, int64_t head) {
  return static_cast<std::byte*>(kv.storage.data) +
         ((block * 2 + part) * kv.num_kv_heads + head) * head_bytes(kv);
}

void cast_row(const float* from, int64_t count, float* to) {
  std::copy_n(from, count, to);
}
void cast_row(const float* from, int64_t count, BF16* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = tensor::to_bf16(from[i]);
}

// The k and v of one token of one head. T is the cache's element type.
template <typename T>
struct PanelToken {
  T* keys = nullptr;    // of its group
  T* values = nullptr;  // likewise
  int64_t lane = 0;     // in it

  static PanelToken of_slot(const ops::KvLayer& kv, int64_t slot, int64_t head) {
    const int64_t in_block = slot % kv.block_size;
    const int64_t group = in_block / kPanelWidth * kPanelWidth * kv.head_dim;
    return {reinterpret_cast<T*>(head_block(kv, slot / kv.block_size, 0, head)) + group,
            reinterpret_cast<T*>(head_block(kv, slot / kv.block_size, 1, head)) + group,
            in_block % kPanelWidth};
  }
};

template <typename T>
void copy_token(const PanelToken<T>& from, const PanelToken<T>& to, int64_t head_dim) {
  constexpr int64_t kPerStep = 4 / int64_t{sizeof(T)};
  for (int64_t i = 0; i < head_dim; i += kPerStep) {
    std::memcpy(to.keys + i * kPanelWidth + to.lane * kPerStep,
                from.keys + i * kPanelWidth + from.lane * kPerStep, sizeof(T) * kPerStep);
  }
  const auto first_value = [](const PanelToken<T>& token) {
    return token.values + token.lane / kPerStep * kPanelWidth * kPerStep + token.lane % kPerStep;
  };
  const T* read = first_value(from);
  T* written = first_value(to);
  for (int64_t i = 0; i < head_dim; i += kPanelWidth) {
    for (int64_t c = 0; c < kPanelWidth; ++c) written[c * kPerStep] = read[c * kPerStep];
    read += kPanelWidth * kPanelWidth;
    written += kPanelWidth * kPanelWidth;
  }
}

template <typename T>
void move_heads(const ops::KvLayer& kv, int64_t from, int64_t to) {
  for (int64_t head = 0; head < kv.num_kv_heads; ++head) {
    copy_token(PanelToken<T>::of_slot(kv, from, head), PanelToken<T>::of_slot(kv, to, head),
               kv.head_dim);
  }
}

// Writes one token's k and v of one head. T is the cache's element type.
template <typename T>
void write_token(const PanelToken<T>& to, int64_t head_dim, const float* k, const float* v) {
  constexpr int64_t kPerStep = 4 / int64_t{sizeof(T)};
  T row[kMaxHeadDim];
  // k is a column of the group's panel.
  cast_row(k, head_dim, row);
  for (int64_t i = 0; i < head_dim; i += kPerStep) {
    std::memcpy(to.keys + i * kPanelWidth + to.lane * kPerStep, row + i, sizeof(T) * kPerStep);
  }
  // v is a step, or one half of a step, of every panel of dimensions.
  cast_row(v, head_dim, row);
  T* values = to.values + to.lane / kPerStep * kPanelWidth * kPerStep + to.lane % kPerStep;
  for (int64_t i = 0; i < head_dim; i += kPanelWidth, values += kPanelWidth * kPanelWidth) {
    for (int64_t c = 0; c < kPanelWidth; ++c) values[c * kPerStep] = row[i + c];
  }
}

// A head's k and v of one token.
void write_head(const ops::KvLayer& kv, int64_t slot, int64_t head, const float* k,
                const float* v) {
  if (kv.format().has_codes()) {
    const KvRows rows(kv);
    rows.write(slot, 0, head, k);
    rows.write(slot, 1, head, v);
  } else if (element_of(kv) == Element::kBf16) {
    write_token(PanelToken<BF16>::of_slot(kv, slot, head), kv.head_dim, k, v);
  } else {
    write_token(PanelToken<float>::of_slot(kv, slot, head), kv.head_dim, k, v);
  }
}

// What write_token() wrote of k.
template <typename T>
void read_head_key(const ops::KvLayer& kv, int64_t slot, int64_t head, float* out) {
  constexpr int64_t kPerStep = 4 / int64_t{sizeof(T)};
  const auto [keys, values, lane] = PanelToken<T>::of_slot(kv, slot, head);
  for (int64_t i = 0; i < kv.head_dim; ++i) {
    const T value = keys[i / kPerStep * kPerStep * kPanelWidth + lane * kPerStep + i % kPerStep];
    if constexpr (std::is_same_v<T, BF16>) {
      out[i] = tensor::to_float(value);
    } else {
      out[i] = value;
    }
  }
}

void norm_heads(const Kernels& kernels, float* x, int64_t width, const ops::NormSpec& norm) {
  if (norm.empty()) return;
  const int64_t part = norm.weight.shape.numel();
  for (int64_t i = 0; i < width; i += part) {
    norm_row(kernels, x + i, norm, part, x + i);
  }
}

// Rows of one sequence that share a KV head, token by token, in tiles of 16. Each token of a tree
// has tiles of its own, over the keys of its path.
struct SequenceTiles {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int32_t kv_len = 0;
  const int32_t* blocks = nullptr;
  int64_t tree_base = -1;  // of a tree: tokens in KV before the step
  int64_t num_tiles = 0;   // of one KV head
};

struct alignas(64) Line {
  std::byte bytes[64];
};

// Keys and values of one KV head of a sequence, from position `begin` on, as a block has them, in
// memory of this thread.
template <typename T>
class LaidHead {
 public:
  LaidHead(int64_t begin, int64_t end, int64_t head_dim) : begin_(begin), head_dim_(head_dim) {
    const int64_t elements = (end - begin + kPanelWidth - 1) / kPanelWidth * kPanelWidth * head_dim;
    std::vector<Line>& memory = thread_memory();
    memory.assign(2 * static_cast<size_t>(elements) * sizeof(T) / sizeof(Line), Line{});
    keys_ = reinterpret_cast<T*>(memory.data());
    values_ = keys_ + elements;
  }

  PanelToken<T> token(int64_t position) const {
    const int64_t group = (position - begin_) / kPanelWidth * kPanelWidth * head_dim_;
    return {keys_ + group, values_ + group, position % kPanelWidth};
  }
  void put_into(HeadCache& cache) const {
    cache.tail_begin = static_cast<int32_t>(begin_);
    cache.tail_keys = reinterpret_cast<const std::byte*>(keys_);
    cache.tail_values = reinterpret_cast<const std::byte*>(values_);
  }

 private:
  static std::vector<Line>& thread_memory() {
    thread_local std::vector<Line> memory;
    return memory;
  }

  int64_t begin_;
  int64_t head_dim_;
  T* keys_;
  T* values_;
};

// Puts the keys and values of a path where it leaves the sequence's blocks into memory of this
// thread, in the order of their positions: so weights and sums have the bits that they have when
// the path is a sequence.
template <typename T>
void lay_tail(const ops::KvLayer& kv, int64_t kv_head, const TreePath& path, HeadCache& cache) {
  const int64_t begin = path.base / kPanelWidth * kPanelWidth;
  const LaidHead<T> laid(begin, path.last() + 1, kv.head_dim);
  for (int64_t position = begin; position <= path.last(); ++position) {
    const int64_t offset = path.offset_of(position);
    const int64_t slot =
        int64_t{cache.blocks[offset / kv.block_size]} * kv.block_size + offset % kv.block_size;
    copy_token(PanelToken<T>::of_slot(kv, slot, kv_head), laid.token(position), kv.head_dim);
  }
  laid.put_into(cache);
}

// Puts numbers for the codes of positions [first, end), which `path` finds, into memory of this
// thread.
template <typename T>
void lay_codes(const ops::KvLayer& kv, int64_t kv_head, const TreePath& path, int64_t first,
               int64_t end, HeadCache& cache) {
  const int64_t begin = first / kPanelWidth * kPanelWidth;
  const LaidHead<T> laid(begin, end, kv.head_dim);
  const KvRows rows(kv);
  float k[kMaxHeadDim];
  float v[kMaxHeadDim];
  for (int64_t position = first; position < end; ++position) {
    const int64_t offset = path.offset_of(position);
    const int64_t slot =
        int64_t{cache.blocks[offset / kv.block_size]} * kv.block_size + offset % kv.block_size;
    rows.read(slot, 0, kv_head, k);
    rows.read(slot, 1, kv_head, v);
    write_token(laid.token(position), kv.head_dim, k, v);
  }
  laid.put_into(cache);
}

// One call of panel_attention().
struct Attending {
  const ops::AttentionArgs& args;
  const ops::AttentionBatch& batch;
  Element element;  // of what kernels read
  uint64_t id;      // of the call, in the process
};

// Where the keys and values of a KV head of a sequence are, as kernels read them. Valid until this
// thread asks for another head. Several tiles of a head ask for the same codes one after another.
HeadCache head_cache(const Attending& of, const SequenceTiles& sequence, int64_t kv_head) {
  const ops::KvLayer& kv = of.args.kv;
  HeadCache cache;
  cache.blocks = sequence.blocks;
  cache.block_size = kv.block_size;
  cache.head_dim = kv.head_dim;
  cache.kv_len = sequence.kv_len;
  const bool is_tree = sequence.tree_base >= 0;
  const TreePath path =
      is_tree ? path_of(of.batch, sequence.q_begin, sequence.tree_base) : TreePath{};
  const bool is_bf16 = of.element == Element::kBf16;
  if (kv.format().has_codes()) {
    struct Laid {
      uint64_t call = 0;
      const SequenceTiles* sequence = nullptr;
      int64_t kv_head = 0;
      HeadCache cache;
    };
    thread_local Laid laid;
    if (laid.call != of.id || laid.sequence != &sequence || laid.kv_head != kv_head) {
      const int64_t position = sequence.kv_len - sequence.q_len;  // of the first row
      const int64_t first =
          of.args.window > 0 ? std::max<int64_t>(0, position - of.args.window + 1) : 0;
      const auto lay = is_bf16 ? lay_codes<BF16> : lay_codes<float>;
      lay(kv, kv_head, path, first, sequence.kv_len, cache);
      laid = {of.id, &sequence, kv_head, cache};
    }
    return laid.cache;
  }
  cache.cache = head_block(kv, 0, 0, kv_head);
  cache.value_offset = head_bytes(kv) * kv.num_kv_heads;
  cache.block_stride = 2 * cache.value_offset;
  if (is_tree) {
    const auto lay = is_bf16 ? lay_tail<BF16> : lay_tail<float>;
    lay(kv, kv_head, path, cache);
  }
  return cache;
}

// Valid until this thread makes another.
AttentionTile make_tile(const Attending& of, const SequenceTiles& sequence, int64_t kv_head,
                        int64_t index) {
  const ops::AttentionArgs& args = of.args;
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t head_dim = args.kv.head_dim;
  AttentionTile tile;
  tile.kv = head_cache(of, sequence, kv_head);
  tile.scale = args.scale;
  tile.softcap = args.softcap;
  tile.gate.length = args.gate.length;
  tile.gate.relu_pre = args.gate.relu_pre;
  tile.gate.low = args.gate.low;
  tile.gate.high = args.gate.high;
  const int64_t first = index * kTileRows;
  tile.rows = static_cast<int>(std::min<int64_t>(kTileRows, sequence.q_len * group - first));
  for (int r = 0; r < tile.rows; ++r) {
    const int64_t token = (first + r) / group;
    const int64_t head = kv_head * group + (first + r) % group;
    const int64_t at = ((sequence.q_begin + token) * args.num_heads + head) * head_dim;
    tile.q[r] = args.q.as<float>() + at;
    tile.out[r] = args.out.as<float>() + at;
    const auto position = static_cast<int32_t>(sequence.kv_len - sequence.q_len + token);
    tile.last[r] = position;
    tile.sink[r] = args.sinks.empty() ? -INFINITY : args.sinks.as<float>()[head];
    if (!args.gate.empty()) {
      tile.gate.sigma[r] = args.gate.sigma.as<float>()[head];
      tile.gate.gamma[r] = args.gate.gamma.as<float>()[head];
    }
    tile.first[r] = args.window > 0 ? std::max(0, position - args.window + 1) : 0;
  }
  return tile;
}

// Those of padding have none: what they get is zeros.
std::vector<SequenceTiles> list_sequences(const ops::AttentionArgs& args,
                                          const ops::AttentionBatch& batch) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t q_width = int64_t{args.num_heads} * args.kv.head_dim;
  const int32_t* const q_begin = batch.q_begin.as<int32_t>();
  const ops::View table = batch.table_of(args.kv.group);
  std::vector<SequenceTiles> sequences;
  sequences.reserve(static_cast<size_t>(batch.kv_len.num_rows()));
  for (int64_t s = 0; s < batch.kv_len.num_rows(); ++s) {
    SequenceTiles sequence;
    sequence.q_begin = q_begin[s];
    sequence.q_len = q_begin[s + 1] - q_begin[s];
    sequence.kv_len = batch.kv_len.as<int32_t>()[s];
    sequence.blocks =
        table.as<int32_t>() + int64_t{batch.table_row.as<int32_t>()[s]} * table.shape[1];
    if (sequence.kv_len == 0) {
      std::fill_n(args.out.as<float>() + sequence.q_begin * q_width, sequence.q_len * q_width,
                  0.0f);
      continue;
    }
    const bool is_tree = sequence.q_len > 0 && batch.ancestors_of(sequence.q_begin) != 0;
    RUDDER_CHECK(!is_tree || (args.window == 0 && args.gate.empty()));
    if (is_tree) {
      sequence.tree_base = sequence.kv_len - sequence.q_len;
      sequence.q_len = 1;
    }
    sequence.num_tiles = (sequence.q_len * group + kTileRows - 1) / kTileRows;
    for (int64_t t = q_begin[s]; t < (is_tree ? q_begin[s + 1] : q_begin[s] + 1); ++t) {
      sequence.q_begin = t;
      if (is_tree) {
        const int depth = std::popcount(batch.ancestors_of(t));
        sequence.kv_len = static_cast<int32_t>(sequence.tree_base) + depth;
      }
      sequences.push_back(sequence);
    }
  }
  return sequences;
}

}  // namespace

bool fits_panels(const ops::KvLayer& kv) {
  return kv.parts == 2 && kv.head_dim % kPanelWidth == 0 && kv.head_dim <= kMaxHeadDim &&
         kv.block_size % kPanelWidth == 0;
}

void panel_key(const ops::KvLayer& kv, int64_t slot, int64_t kv_head, float* out) {
  if (kv.format().has_codes()) return plain_key(kv, slot, kv_head, out);
  if (element_of(kv) == Element::kBf16) {
    read_head_key<BF16>(kv, slot, kv_head, out);
  } else {
    read_head_key<float>(kv, slot, kv_head, out);
  }
}

void panel_move(const ops::KvLayer& kv, int64_t from, int64_t to) {
  if (kv.format().has_codes()) return plain_move(kv, from, to);
  if (element_of(kv) == Element::kBf16) {
    move_heads<BF16>(kv, from, to);
  } else {
    move_heads<float>(kv, from, to);
  }
}

void panel_qkv_prep(const Kernels& kernels, const ops::QkvPrepArgs& args, int64_t begin,
                    int64_t end) {
  const int64_t head_dim = args.kv.head_dim;
  const int64_t kv_heads = args.kv.num_kv_heads;
  const int64_t q_width = args.num_heads * head_dim;
  const int64_t kv_width = kv_heads * head_dim;
  const int64_t half = args.rope.empty() ? 0 : args.rope.shape[2];
  for (int64_t t = begin; t < end; ++t) {
    float* row = args.qkv.as<float>() + t * (q_width + 2 * kv_width);
    float* q = args.q_out.as<float>() + t * q_width;
    float* k = row + q_width;
    std::copy_n(row, q_width, q);
    const auto norm_q_and_k = [&] {
      norm_heads(kernels, q, q_width, args.q_norm);
      norm_heads(kernels, k, kv_width, args.k_norm);
    };
    if (!args.norms_rotated) norm_q_and_k();
    norm_heads(kernels, k + kv_width, kv_width, args.v_norm);
    const int64_t rope_row = args.rope_row.as<int32_t>()[t];
    if (half > 0) {
      const float* table = args.rope.as<float>() + rope_row * 2 * half;
      for (int64_t h = 0; h < args.num_heads; ++h) kernels.rotate(q + h * head_dim, table, half);
      for (int64_t h = 0; h < kv_heads; ++h) kernels.rotate(k + h * head_dim, table, half);
    }
    if (args.norms_rotated) norm_q_and_k();
    if (!args.q_scale.empty()) kernels.scale(q, args.q_scale.as<float>()[rope_row], q_width);
    const int64_t slot = args.kv_slot.as<int32_t>()[t];
    if (slot < 0) continue;
    for (int64_t h = 0; h < kv_heads; ++h) {
      write_head(args.kv, slot, h, k + h * head_dim, k + kv_width + h * head_dim);
    }
  }
}

void panel_attention(const Kernels& kernels, ThreadPool& pool, tensor::DType numbers,
                     const ops::AttentionArgs& args, const ops::AttentionBatch& batch) {
  static std::atomic<uint64_t> num_calls = 0;
  const Attending of{args, batch, numbers == DType::kBF16 ? Element::kBf16 : Element::kF32,
                     num_calls.fetch_add(1, std::memory_order_relaxed) + 1};
  const int64_t kv_heads = args.kv.num_kv_heads;
  const auto attend = kernels.attend[static_cast<int>(of.element)];
  const std::vector<SequenceTiles> sequences = list_sequences(args, batch);
  int64_t scores = 0;
  std::vector<int64_t> ends;  // tiles up to and with each sequence's, of all KV heads
  for (const SequenceTiles& sequence : sequences) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + sequence.num_tiles * kv_heads);
    scores += sequence.q_len * args.num_heads * sequence.kv_len;
  }
  // Tile `index` of the step, counted over sequences, then KV heads, then rows.
  const auto run = [&](int64_t index) {
    const auto s = static_cast<size_t>(std::ranges::upper_bound(ends, index) - ends.begin());
    const SequenceTiles& sequence = sequences[s];
    index -= s == 0 ? 0 : ends[s - 1];
    const int64_t kv_head = index / sequence.num_tiles;
    attend(make_tile(of, sequence, kv_head, index % sequence.num_tiles));
  };
  const int64_t tiles = ends.empty() ? 0 : ends.back();
  if (scores < kForkScores) {
    for (int64_t i = 0; i < tiles; ++i) run(i);
  } else {
    pool.parallel_for(tiles, run);
  }
}

}  // namespace rudder::cpu
