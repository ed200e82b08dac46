#include "rudder/cpu/panel_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace rudder::cpu {
namespace {

using tensor::BF16;
using tensor::DType;

// With fewer products of a query with a key, a second thread would start too late to help.
constexpr int64_t kForkScores = 4096;

Element element_of(const ops::KvLayer& kv) {
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

// Writes one token's k and v of one head. T is the cache's element type.
template <typename T>
void write_head(const ops::KvLayer& kv, int64_t slot, int64_t head, const float* k,
                const float* v) {
  constexpr int64_t kPerStep = 4 / int64_t{sizeof(T)};
  const int64_t in_block = slot % kv.block_size;
  const int64_t lane = in_block % kPanelWidth;
  const int64_t group = in_block / kPanelWidth * kPanelWidth * kv.head_dim;
  T* keys = reinterpret_cast<T*>(head_block(kv, slot / kv.block_size, 0, head)) + group;
  T* values = reinterpret_cast<T*>(head_block(kv, slot / kv.block_size, 1, head)) + group;
  T row[kMaxHeadDim];
  // k is a column of the group's panel.
  cast_row(k, kv.head_dim, row);
  for (int64_t i = 0; i < kv.head_dim; i += kPerStep) {
    std::memcpy(keys + i * kPanelWidth + lane * kPerStep, row + i, sizeof(T) * kPerStep);
  }
  // v is a step, or one half of a step, of every panel of dimensions.
  cast_row(v, kv.head_dim, row);
  T* to = values + lane / kPerStep * kPanelWidth * kPerStep + lane % kPerStep;
  for (int64_t i = 0; i < kv.head_dim; i += kPanelWidth, to += kPanelWidth * kPanelWidth) {
    for (int64_t c = 0; c < kPanelWidth; ++c) to[c * kPerStep] = row[i + c];
  }
}

// What write_head() wrote of k.
template <typename T>
void read_head_key(const ops::KvLayer& kv, int64_t slot, int64_t head, float* out) {
  constexpr int64_t kPerStep = 4 / int64_t{sizeof(T)};
  const int64_t in_block = slot % kv.block_size;
  const int64_t lane = in_block % kPanelWidth;
  const int64_t group = in_block / kPanelWidth * kPanelWidth * kv.head_dim;
  const T* const keys =
      reinterpret_cast<const T*>(head_block(kv, slot / kv.block_size, 0, head)) + group;
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

// Rows of one sequence that share a KV head, token by token, in tiles of 16.
struct SequenceTiles {
  int64_t q_begin = 0;
  int64_t q_len = 0;
  int32_t kv_len = 0;
  const int32_t* blocks = nullptr;
};

AttentionTile make_tile(const ops::AttentionArgs& args, const SequenceTiles& sequence,
                        int64_t kv_head, int64_t index) {
  const int64_t group = args.num_heads / args.kv.num_kv_heads;
  const int64_t head_dim = args.kv.head_dim;
  AttentionTile tile;
  tile.kv.cache = head_block(args.kv, 0, 0, kv_head);
  tile.kv.value_offset = head_bytes(args.kv) * args.kv.num_kv_heads;
  tile.kv.block_stride = 2 * tile.kv.value_offset;
  tile.kv.blocks = sequence.blocks;
  tile.kv.block_size = args.kv.block_size;
  tile.kv.head_dim = args.kv.head_dim;
  tile.kv.kv_len = sequence.kv_len;
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

}  // namespace

bool fits_panels(const ops::KvLayer& kv) {
  return kv.head_dim % kPanelWidth == 0 && kv.head_dim <= kMaxHeadDim &&
         kv.block_size % kPanelWidth == 0;
}

void panel_key(const ops::KvLayer& kv, int64_t slot, int64_t kv_head, float* out) {
  if (element_of(kv) == Element::kBf16) {
    read_head_key<BF16>(kv, slot, kv_head, out);
  } else {
    read_head_key<float>(kv, slot, kv_head, out);
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
    norm_heads(kernels, q, q_width, args.q_norm);
    norm_heads(kernels, k, kv_width, args.k_norm);
    norm_heads(kernels, k + kv_width, kv_width, args.v_norm);
    if (half > 0) {
      const float* table =
          args.rope.as<float>() + int64_t{args.rope_row.as<int32_t>()[t]} * 2 * half;
      for (int64_t h = 0; h < args.num_heads; ++h) kernels.rotate(q + h * head_dim, table, half);
      for (int64_t h = 0; h < kv_heads; ++h) kernels.rotate(k + h * head_dim, table, half);
    }
    const int64_t slot = args.kv_slot.as<int32_t>()[t];
    if (slot < 0) continue;
    for (int64_t h = 0; h < kv_heads; ++h) {
      const float* v = k + kv_width + h * head_dim;
      if (element_of(args.kv) == Element::kBf16) {
        write_head<BF16>(args.kv, slot, h, k + h * head_dim, v);
      } else {
        write_head<float>(args.kv, slot, h, k + h * head_dim, v);
      }
    }
  }
}

void panel_attention(const Kernels& kernels, ThreadPool& pool, const ops::AttentionArgs& args,
                     const ops::AttentionBatch& batch) {
  const int64_t kv_heads = args.kv.num_kv_heads;
  const int64_t group = args.num_heads / kv_heads;
  const auto attend = kernels.attend[static_cast<int>(element_of(args.kv))];
  const int64_t q_width = int64_t{args.num_heads} * args.kv.head_dim;
  const int32_t* q_begin = batch.q_begin.as<int32_t>();
  const ops::View table = batch.table_of(args.kv.group);
  const auto sequence_of = [&](int64_t s) {
    SequenceTiles sequence;
    sequence.q_begin = q_begin[s];
    sequence.q_len = q_begin[s + 1] - q_begin[s];
    sequence.kv_len = batch.kv_len.as<int32_t>()[s];
    sequence.blocks =
        table.as<int32_t>() + int64_t{batch.table_row.as<int32_t>()[s]} * table.shape[1];
    return sequence;
  };
  // Rows of padding have no tiles.
  const auto tiles_of = [&](const SequenceTiles& sequence) {
    if (sequence.kv_len == 0) return int64_t{0};
    return (sequence.q_len * group + kTileRows - 1) / kTileRows * kv_heads;
  };
  int64_t tiles = 0;
  int64_t scores = 0;
  for (int64_t s = 0; s < batch.kv_len.num_rows(); ++s) {
    const SequenceTiles sequence = sequence_of(s);
    if (sequence.kv_len == 0) {
      std::fill_n(args.out.as<float>() + sequence.q_begin * q_width, sequence.q_len * q_width,
                  0.0f);
    }
    tiles += tiles_of(sequence);
    scores += sequence.q_len * args.num_heads * sequence.kv_len;
  }
  // Tile `index` of the step, counted over sequences, then KV heads, then rows.
  const auto run = [&](int64_t index) {
    int64_t s = 0;
    SequenceTiles sequence = sequence_of(0);
    for (; index >= tiles_of(sequence); sequence = sequence_of(++s)) index -= tiles_of(sequence);
    const int64_t per_head = tiles_of(sequence) / kv_heads;
    attend(make_tile(args, sequence, index / per_head, index % per_head));
  };
  if (scores < kForkScores) {
    for (int64_t i = 0; i < tiles; ++i) run(i);
  } else {
    pool.parallel_for(tiles, run);
  }
}

}  // namespace rudder::cpu
