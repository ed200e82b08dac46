// begin_step with drafts: it moves sequences to where their slots stand.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "rudder/ops/sample_args.h"
#include "rudder/testing/ops_conformance_slots.h"

namespace rudder::testing {
namespace {

using tensor::DType;

// The tokens of a step as the host packs them, which knows no more of a sequence with a carry than
// where it may stand at most.
struct Placed {
  std::vector<int32_t> q_begin = {0}, kv_len, table_row, ids, positions, since_prompt;
  std::vector<std::vector<int32_t>> kv_slot;  // by group
  std::vector<int32_t> logits_rows, rows_since_prompt;
  std::vector<ops::SampleRow> sample;

  // Of a tree each second token is beside the one before it, at the same position.
  // Drafts that the slot guesses have no tokens yet.
  void add(int32_t slot, int32_t q_len, int32_t begin, bool carries, bool wants_all,
           bool is_tree = false, bool takes_guess = false) {
    for (int32_t n = 0; n < q_len; ++n) {
      const int32_t i = is_tree ? (n + 1) / 2 : n;
      const auto token = static_cast<int32_t>(ids.size());
      const int32_t id = takes_guess ? -1 : 3 + n;
      ids.push_back(carries && n == 0 ? -1 - slot : id);
      positions.push_back(begin + i);
      since_prompt.push_back(begin + i - 5);
      for (std::vector<int32_t>& of_group : kv_slot) of_group.push_back(7);
      if (!wants_all && n + 1 < q_len) continue;
      logits_rows.push_back(token);
      rows_since_prompt.push_back(since_prompt.back());
      sample.emplace_back().slot = slot;
      sample.back().position = begin + i + 1;
      if (takes_guess && n + 1 < q_len) sample.back().draft = ops::kNoDraft;
    }
    q_begin.push_back(static_cast<int32_t>(ids.size()));
    kv_len.push_back(begin + q_len);
    table_row.push_back(slot);
  }

  std::vector<int32_t> flat_kv_slots() const {
    std::vector<int32_t> all;
    for (const std::vector<int32_t>& of_group : kv_slot) {
      all.insert(all.end(), of_group.begin(), of_group.end());
    }
    return all;
  }

  static int32_t guessed(const HostSlots& slots, size_t slot, size_t n) {
    const auto most = static_cast<size_t>(slots.most_guessed);
    return n < most ? slots.guess[slot * most + n] : -1;
  }

  void place(const HostSlots& slots, int32_t block_size) {
    for (size_t s = 0; s < kv_len.size(); ++s) {
      const auto begin = static_cast<size_t>(q_begin[s]);
      const auto end = static_cast<size_t>(q_begin[s + 1]);
      if (begin == end || ids[begin] >= 0) continue;
      const auto slot = static_cast<size_t>(-1 - ids[begin]);
      const bool has_ended = slots.ended[slot] != 0;
      const int32_t back = has_ended ? 0 : positions[begin] - slots.carry_position[slot];
      ids[begin] = std::max(0, slots.carry[slot]);
      kv_len[s] -= back;
      for (size_t t = begin; t < end; ++t) {
        positions[t] -= back;
        since_prompt[t] -= back;
        if (ids[t] < 0) ids[t] = std::max(0, guessed(slots, slot, t - begin - 1));
        const int32_t offset = positions[begin] + static_cast<int32_t>(t - begin);
        for (size_t g = 0; g < kv_slot.size(); ++g) {
          const size_t at =
              (g * slots.carry.size() + slot) * static_cast<size_t>(slots.max_blocks) +
              static_cast<size_t>(offset / block_size);
          kv_slot[g][t] = has_ended ? -1 : slots.block_table[at] * block_size + offset % block_size;
        }
      }
      for (size_t r = 0; r < logits_rows.size(); ++r) {
        const auto token = static_cast<size_t>(logits_rows[r]);
        if (token < begin || token >= end) continue;
        sample[r].position -= back;
        if (sample[r].draft == ops::kNoDraft && guessed(slots, slot, token - begin) >= 0) {
          sample[r].draft = guessed(slots, slot, token - begin);
        }
        rows_since_prompt[r] -= back;
      }
    }
  }
};

// Sequences of prompts, with a carry, with drafts behind it, of the host and of their slots, at and
// behind where the host has them, ended ones, and padding.
TEST_P(OpsConformance, BeginStepPlacesSequences) {
  for (const auto& [num_slots, num_groups] :
       {std::array{1, 1}, std::array{5, 3}, std::array{40, 1}, std::array{300, 2}}) {
    constexpr int64_t kMaxBlocks = 40;
    HostSlots slots(num_slots, num_groups, kMaxBlocks, 50);
    const auto below = [&](int64_t n) { return static_cast<int32_t>(between(0, n - 1)); };
    for (int32_t& block : slots.block_table) block = below(1 << 20);
    const int32_t block_size = 1 + below(16);
    for (const bool has_taps : {false, true}) {
      Placed placed;
      placed.kv_slot.resize(static_cast<size_t>(num_groups));
      std::vector<ops::BlockWrite> blocks;
      for (int32_t slot = 0; slot < num_slots; ++slot) {
        const auto s = static_cast<size_t>(slot);
        slots.carry[s] = below(50);
        slots.carry_position[s] = below(kMaxBlocks * block_size / 2);
        slots.ended[s] = below(5) == 0 ? 1 : 0;
        if (below(6) == 0) continue;  // it has nothing to do
        const bool carries = below(3) > 0;
        const int32_t q_len = 1 + (below(2) == 0 ? 0 : below(kMaxBlocks * block_size / 4));
        const int32_t most = static_cast<int32_t>(kMaxBlocks) * block_size - q_len;
        const int32_t begin =
            carries ? std::min(most, slots.carry_position[s] + below(2) * below(9)) : below(most);
        const bool wants_all = carries && below(4) > 0;
        const bool is_tree = wants_all && ops_.tree_ops() != nullptr && below(3) == 0;
        const bool takes_guess =
            wants_all && !is_tree && ops_.draft_ops() != nullptr && below(2) == 0;
        for (int64_t i = 0, len = below(7); i < slots.most_guessed; ++i) {
          slots.guess[s * static_cast<size_t>(slots.most_guessed) + static_cast<size_t>(i)] =
              i < len ? below(50) : -1;
        }
        placed.add(slot, q_len, begin, carries, wants_all, is_tree, takes_guess);
        // Blocks of this very step are read as well.
        const int32_t index = below(kMaxBlocks);
        if (below(2) == 0) blocks.push_back({slot, index, below(1 << 20)});
      }
      for (const int32_t q_len : {1, 1, below(4), 0, 0}) {
        placed.add(num_slots, q_len, 0, false, true);
      }
      const tensor::Shape sample_shape = {std::ssize(placed.sample), sizeof(ops::SampleRow)};
      ops::BeginStepArgs args;
      args.state = slots.put(device_);
      args.blocks = put_words(device_, blocks);
      args.ids = device_.put(placed.ids);
      args.kv_slot = device_.put(placed.flat_kv_slots());
      args.placement = {
          .q_begin = device_.put(placed.q_begin),
          .table_row = device_.put(placed.table_row),
          .kv_len = device_.put(placed.kv_len),
          .positions = device_.put(placed.positions),
          .sample_rows = device_.put_as(std::span<const ops::SampleRow>(placed.sample), DType::kU8,
                                        sample_shape),
          .logits_rows = device_.put(placed.logits_rows),
          .block_size = block_size};
      if (has_taps) {
        args.placement.since_prompt = device_.put(placed.since_prompt);
        args.placement.rows_since_prompt = device_.put(placed.rows_since_prompt);
      }
      ops_.begin_step(args);
      for (const auto& [row, index, block] : blocks) {
        slots.block_table[static_cast<size_t>(row * slots.max_blocks + index)] = block;
      }
      placed.place(slots, block_size);
      SCOPED_TRACE(std::to_string(num_slots) + " slots");
      EXPECT_EQ(device_.values<int32_t>(args.ids), placed.ids);
      EXPECT_EQ(device_.values<int32_t>(args.kv_slot), placed.flat_kv_slots());
      EXPECT_EQ(device_.values<int32_t>(args.placement.kv_len), placed.kv_len);
      EXPECT_EQ(device_.values<int32_t>(args.placement.positions), placed.positions);
      const auto* raw = reinterpret_cast<const uint8_t*>(placed.sample.data());
      EXPECT_EQ(device_.values<uint8_t>(args.placement.sample_rows),
                std::vector<uint8_t>(raw, raw + sample_shape.numel()));
      if (!has_taps) continue;
      EXPECT_EQ(device_.values<int32_t>(args.placement.since_prompt), placed.since_prompt);
      EXPECT_EQ(device_.values<int32_t>(args.placement.rows_since_prompt),
                placed.rows_since_prompt);
    }
  }
}

}  // namespace
}  // namespace rudder::testing
