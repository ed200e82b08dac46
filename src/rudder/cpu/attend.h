// Attention of up to 16 query rows over one KV head (AttentionTile in kernels.h): key positions in
// steps of 64 that begin at multiples of 64, for any rows. How scores become weights is the
// weighting's part: SoftmaxWeights or GateWeights. Included by kernels_<isa>.cpp through simd.h.
//
// A position that a row does not see gets weight 0 and adds exactly nothing. So a row's result has
// the same bits alone and beside other rows of its tile, and for every way to cut the prompt into
// chunks.
#pragma once

#include "rudder/cpu/gate_weights.h"
#include "rudder/cpu/kernels.h"
#include "rudder/cpu/panel_product.h"
#include "rudder/cpu/row_kernels.h"
#include "rudder/cpu/simd.h"
#include "rudder/cpu/softmax_weights.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

// Weighting: `weigh(step)` turns the scores of a step into weights, and rescales the sums of the
// steps before where it must; `finish(tile, sums)` writes the rows' results.
template <typename Engine, template <Element> typename Weighting>
class TileAttention {
 public:
  explicit TileAttention(const AttentionTile& tile)
      : tile_(tile), head_dim_(tile.kv.head_dim), engine_(tile.rows), weighting_(tile) {}

  void run() {
    int32_t first = tile_.first[0];
    int32_t last = tile_.last[0];
    for (int r = 0; r < tile_.rows; ++r) {
      pack_query(r);
      first = tile_.first[r] < first ? tile_.first[r] : first;
      last = tile_.last[r] > last ? tile_.last[r] : last;
    }
    std::memset(out_, 0, sizeof(float) * static_cast<size_t>(tile_.rows * head_dim_));
    for (int32_t begin = first / kSpan * kSpan; begin <= last; begin += kSpan) {
      // Groups that no row sees are not read: the block table may have no blocks for them.
      lo_ = first > begin ? (first - begin) / kGroup : 0;
      hi_ = last - begin < kSpan ? (last - begin) / kGroup + 1 : kGroups;
      step(begin);
    }
    weighting_.finish(out_);
  }

 private:
  static constexpr Element kElement = Engine::kElement;
  static constexpr int64_t kBytes = element_bytes(kElement);
  static constexpr int64_t kPerStep = 4 / kBytes;  // elements of one row in one step
  static constexpr bool kSplitsQueries =
      kElement == Element::kBf16 && Weighting<kElement>::kSetsKeysAgainstOneAnother;
  // The weighted values of a step are one short sum: groups that it leaves out add nothing to it.
  static_assert(kSpan / kPerStep <= kSumSteps);

  // The products take bf16. Rounding a query moves the scores of all keys that are alike at once,
  // and under a softmax one key may then take the weight of another: so a query is two rows.
  void pack_query(int r) {
    const int64_t steps = head_dim_ / kPerStep;
    pack_row<kElement>(tile_.q[r], head_dim_, steps, q_ + r * kStepBytes);
    if constexpr (kSplitsQueries) {
      float rest[kMaxHeadDim];
      bf16_rest(tile_.q[r], head_dim_, rest);
      pack_row<kElement>(rest, head_dim_, steps, q_rest_ + r * kStepBytes);
    }
  }

  void step(int32_t begin) {
    const int64_t panels = head_dim_ / kPanelWidth;
    const std::byte* keys[kGroups];
    const std::byte* values[kGroups * (kMaxHeadDim / kPanelWidth)];
    for (int g = lo_; g < hi_; ++g) {
      const int32_t position = begin + g * kGroup;
      const std::byte* value = find_group(position, keys + g);
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
    if constexpr (kSplitsQueries) {
      scores.a = q_rest_;
      scores.accumulate = true;
      engine_.product(scores);
    }
    weighting_.weigh({begin, lo_, hi_, scores_, weights_, out_});
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

  // The values of a group of positions, and their keys.
  const std::byte* find_group(int32_t position, const std::byte** keys) const {
    const HeadCache& kv = tile_.kv;
    if (kv.tail_keys != nullptr && position >= kv.tail_begin) {
      const int64_t at = (position - kv.tail_begin) * head_dim_ * kBytes;
      *keys = kv.tail_keys + at;
      return kv.tail_values + at;
    }
    const std::byte* block =
        kv.cache + int64_t{kv.blocks[position / kv.block_size]} * kv.block_stride;
    const int64_t group_bytes = position % kv.block_size * head_dim_ * kBytes;
    *keys = block + group_bytes;
    return block + kv.value_offset + group_bytes;
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
  Weighting<Engine::kElement> weighting_;
  int lo_ = 0;  // groups [lo_, hi_) of the step are seen by some row
  int hi_ = 0;
  static constexpr int64_t kQueryBytes = kMaxHeadDim / kTileSteps * kBytes / 4 * kTileBytes;
  alignas(64) std::byte q_[kQueryBytes];
  alignas(64) std::byte q_rest_[kSplitsQueries ? kQueryBytes : 1];  // of rounded ones
  alignas(64) float scores_[kTileRows * kSpan];
  alignas(64) std::byte weights_[kGroups * kTileBytes];
  alignas(64) float out_[kTileRows * kMaxHeadDim];
  alignas(64) std::byte tail_[kGroup * kMaxHeadDim * kBytes];
};

template <typename Engine>
void attend(const AttentionTile& tile) {
  if (tile.gate.length == 0) {
    TileAttention<Engine, SoftmaxWeights>(tile).run();
  } else {
    TileAttention<Engine, GateWeights>(tile).run();
  }
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
