// Attention of up to 16 query rows over one KV head (AttentionTile in kernels.h): online softmax
// over key positions in steps of 64 that begin at multiples of 64, for any rows. Source:
// FlashAttention-2's recurrence, Dao 2023, algorithm 1. Included by kernels_<isa>.cpp through
// simd.h.
//
// A position that a row does not see gets weight exp(-inf) = 0 and adds exactly nothing. So a row's
// result has the same bits alone and beside other rows of its tile, and for every way to cut the
// prompt into chunks.
#pragma once

#include "rudder/cpu/kernels.h"
#include "rudder/cpu/panel_product.h"
#include "rudder/cpu/row_kernels.h"
#include "rudder/cpu/simd.h"
#include "rudder/cpu/vector_math.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

inline constexpr int kGroup = kPanelWidth;      // key positions of one panel
inline constexpr int kGroups = 4;               // panels of one softmax step
inline constexpr int kSpan = kGroup * kGroups;  // key positions of one softmax step
inline constexpr float kMinusInfinity = -__builtin_inff();
inline constexpr float kLowest = -__FLT_MAX__;  // of the finite numbers

template <typename Engine>
class TileAttention {
 public:
  explicit TileAttention(const AttentionTile& tile)
      : tile_(tile), head_dim_(tile.kv.head_dim), engine_(tile.rows) {}

  void run() {
    int32_t first = tile_.first[0];
    int32_t last = tile_.last[0];
    for (int r = 0; r < tile_.rows; ++r) {
      pack_row<kElement>(tile_.q[r], head_dim_, head_dim_ / kPerStep, q_ + r * kStepBytes);
      first = tile_.first[r] < first ? tile_.first[r] : first;
      last = tile_.last[r] > last ? tile_.last[r] : last;
    }
    store(highest_, set(kMinusInfinity));
    std::memset(out_, 0, sizeof(float) * static_cast<size_t>(tile_.rows * head_dim_));
    for (int32_t begin = first / kSpan * kSpan; begin <= last; begin += kSpan) {
      // Groups that no row sees are not read: the block table may have no blocks for them.
      lo_ = first > begin ? (first - begin) / kGroup : 0;
      hi_ = last - begin < kSpan ? (last - begin) / kGroup + 1 : kGroups;
      step(begin);
    }
    // A sink is one more score: it counts in the sum of the weights alone. Without one it is -inf,
    // and exp(-inf) = 0 changes no sum.
    alignas(64) float sinks[kTileRows];
    store(sinks, exp(load(tile_.sink) - load(highest_)));
    for (int r = 0; r < tile_.rows; ++r) {
      const Vec total = set(total_[r] + sinks[r]);
      for (int64_t i = 0; i < head_dim_; i += kLanes) {
        store(tile_.out[r] + i, load(out_ + r * head_dim_ + i) / total);
      }
    }
  }

 private:
  static constexpr Element kElement = Engine::kElement;
  static constexpr int64_t kBytes = element_bytes(kElement);
  static constexpr int64_t kPerStep = 4 / kBytes;  // elements of one row in one step

  void step(int32_t begin) {
    const int64_t panels = head_dim_ / kPanelWidth;
    const std::byte* keys[kGroups];
    const std::byte* values[kGroups * (kMaxHeadDim / kPanelWidth)];
    for (int g = lo_; g < hi_; ++g) {
      const int32_t position = begin + g * kGroup;
      const int32_t in_block = position % tile_.kv.block_size;
      const std::byte* block =
          tile_.kv.cache +
          int64_t{tile_.kv.blocks[position / tile_.kv.block_size]} * tile_.kv.block_stride;
      const int64_t group_bytes = in_block * head_dim_ * kBytes;
      keys[g] = block + group_bytes;
      const std::byte* value = block + tile_.kv.value_offset + group_bytes;
      if (position + kGroup > tile_.kv.kv_len)
        value = written_part(value, tile_.kv.kv_len - position);
      for (int64_t p = 0; p < panels; ++p) {
        values[(g - lo_) * panels + p] = value + p * kGroup * kPanelWidth * kBytes;
      }
    }
    SegmentedProduct scores;
    scores.a = q_;
    scores.panels = keys + lo_;
    scores.num_panels = hi_ - lo_;
    scores.steps = head_dim_ / kPerStep;
    scores.out = scores_ + lo_ * kGroup;
    scores.ld = kSpan;
    engine_.product(scores);
    weigh(begin);
    SegmentedProduct sums;
    sums.a = weights_ + lo_ * kTileBytes;
    sums.a_segment_bytes = kTileBytes;
    sums.panels = values;
    sums.segments = hi_ - lo_;
    sums.num_panels = panels;
    sums.steps = kGroup / kPerStep;
    sums.out = out_;
    sums.ld = head_dim_;
    sums.accumulate = true;
    engine_.product(sums);
  }

  // Turns the step's scores into weights, and rescales each row's sums to its new maximum.
  void weigh(int32_t begin) {
    alignas(64) float tops[kTileRows];
    for (int r = 0; r < tile_.rows; ++r) tops[r] = scale_scores(r, begin);
    for (int r = tile_.rows; r < kTileRows; ++r) tops[r] = kMinusInfinity;
    const Vec before = load(highest_);
    const Vec now = max(load(tops), before);
    // A row that has seen nothing yet: all its weights are exp(-inf - 0) = 0.
    const Vec shift = where_less(now, set(kLowest), set(0.0f), now);
    const Vec factor = exp(before - shift);
    alignas(64) float shifts[kTileRows];
    alignas(64) float factors[kTileRows];
    alignas(64) float sums[kTileRows] = {};
    store(shifts, shift);
    store(factors, factor);
    store(highest_, now);
    for (int r = 0; r < tile_.rows; ++r) {
      sums[r] = store_weights(r, shifts[r]);
      if (factors[r] == 1.0f) continue;
      for (int64_t i = 0; i < head_dim_; i += kLanes) {
        float* out = out_ + r * head_dim_ + i;
        store(out, load(out) * set(factors[r]));
      }
    }
    store(total_, load(total_) * factor + load(sums));
  }

  // Scales, caps and masks row r's scores of the step; the highest of them.
  float scale_scores(int r, int32_t begin) {
    Vec top = set(kMinusInfinity);
    for (int g = lo_; g < hi_; ++g) {
      float* scores = scores_ + r * kSpan + g * kGroup;
      Vec s = load(scores) * set(tile_.scale);
      if (tile_.softcap != 0.0f) s = capped(s, tile_.softcap);
      store(scores, s);
      if (hide(r, begin + g * kGroup, scores)) s = load(scores);
      top = max(top, s);
    }
    return highest(top);
  }

  // exp(score - shift) of row r, rounded as products take it; their sum is of the unrounded.
  float store_weights(int r, float shift) {
    Vec total = set(0.0f);
    for (int g = lo_; g < hi_; ++g) {
      const Vec weight = exp(load(scores_ + r * kSpan + g * kGroup) - set(shift));
      total = total + weight;
      std::byte* to = weights_ + g * kTileBytes + r * kStepBytes;
      if constexpr (kElement == Element::kBf16) {
        store_bf16(reinterpret_cast<uint16_t*>(to), weight);
      } else {
        store(reinterpret_cast<float*>(to), weight);
      }
    }
    return sum(total);
  }

  // Sets the positions of a group that row r does not see to -inf; false when it sees them all.
  bool hide(int r, int32_t position, float* scores) const {
    const int32_t first = tile_.first[r];
    const int32_t last = tile_.last[r];
    if (position >= first && position + kGroup - 1 <= last) return false;
    for (int i = 0; i < kGroup; ++i) {
      if (position + i < first || position + i > last) scores[i] = kMinusInfinity;
    }
    return true;
  }

  // The values of a group of which only `count` positions have been written. The rest of the block
  // may hold NaN from another sequence, and NaN times a weight of 0 is NaN.
  const std::byte* written_part(const std::byte* value, int32_t count) {
    std::memcpy(tail_, value, static_cast<size_t>(kGroup * head_dim_ * kBytes));
    constexpr int64_t kRowBytes = kPanelWidth * 4;  // of kPerStep positions
    for (int64_t p = 0; p < head_dim_ / kPanelWidth; ++p) {
      std::byte* panel = tail_ + p * kGroup * kPanelWidth * kBytes;
      for (int64_t position = count; position < kGroup; ++position) {
        std::byte* row = panel + position / kPerStep * kRowBytes + position % kPerStep * kBytes;
        for (int64_t i = 0; i < kPanelWidth; ++i) {
          std::memset(row + i * 4, 0, static_cast<size_t>(kBytes));
        }
      }
    }
    return tail_;
  }

  const AttentionTile& tile_;
  const int64_t head_dim_;
  Engine engine_;
  int lo_ = 0;  // groups [lo_, hi_) of the step are seen by some row
  int hi_ = 0;
  alignas(64) float highest_[kTileRows];
  alignas(64) float total_[kTileRows] = {};
  alignas(64) std::byte q_[kMaxHeadDim / kTileSteps * kBytes / 4 * kTileBytes];
  alignas(64) float scores_[kTileRows * kSpan];
  alignas(64) std::byte weights_[kGroups * kTileBytes];
  alignas(64) float out_[kTileRows * kMaxHeadDim];
  alignas(64) std::byte tail_[kGroup * kMaxHeadDim * kBytes];
};

template <typename Engine>
void attend(const AttentionTile& tile) {
  TileAttention<Engine>(tile).run();
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
