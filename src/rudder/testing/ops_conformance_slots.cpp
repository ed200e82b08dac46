// begin_step and advance_step against a few lines on the host: steps of random edits, ends and
// carried tokens; rows that go on, have ended or are of padding.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "rudder/ops/sample_args.h"
#include "rudder/testing/ops_conformance_slots.h"

namespace rudder::testing {
namespace {

using tensor::DType;

struct Edits {
  std::vector<ops::OpenedSlot> opened;
  std::vector<ops::HistoryToken> history;
  std::vector<ops::BlockWrite> blocks;
  std::vector<ops::KeptToken> kept;
  std::vector<int32_t> ids;
  std::vector<int32_t> kv_slot;
};

void apply(Edits& edits, HostSlots& slots) {
  for (const auto& [slot, has_counts] : edits.opened) {
    slots.ended[static_cast<size_t>(slot)] = 0;
    slots.carry[static_cast<size_t>(slot)] = -1;
    if (has_counts == 0) continue;
    std::fill_n(slots.output_count.begin() + slot * slots.vocab, slots.vocab, 0);
    std::fill_n(slots.prompt_seen.begin() + slot * slots.vocab, slots.vocab, uint8_t{0});
  }
  for (const auto& [slot, token, is_prompt] : edits.history) {
    const auto at = static_cast<size_t>(slot * slots.vocab + token);
    if (is_prompt != 0) slots.prompt_seen[at] = 1;
    if (is_prompt == 0) ++slots.output_count[at];
  }
  for (const auto& [row, index, block] : edits.blocks) {
    slots.block_table[static_cast<size_t>(row * slots.max_blocks + index)] = block;
  }
  for (const auto& [slot, position, token] : edits.kept) {
    slots.history[static_cast<size_t>(slot * slots.max_len + position)] = token;
  }
  for (size_t t = 0; t < edits.ids.size(); ++t) {
    if (edits.ids[t] >= 0) continue;
    const auto slot = static_cast<size_t>(-1 - edits.ids[t]);
    edits.ids[t] = std::max(0, slots.carry[slot]);
    if (slots.ended[slot] == 0) continue;
    for (size_t at = t; at < edits.kv_slot.size(); at += edits.ids.size()) edits.kv_slot[at] = -1;
  }
}

class Fuzz {
 public:
  Fuzz(std::mt19937_64& random, const HostSlots& slots) : random_(random), slots_(slots) {}

  int32_t below(int64_t n) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(0, n - 1)(random_));
  }

  Edits edits() {
    Edits out;
    std::vector<int32_t> order(static_cast<size_t>(slots_.num_slots));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    order.resize(static_cast<size_t>(below(slots_.num_slots + 1)));
    std::vector<int32_t> counted;
    for (const int32_t slot : order) {
      out.opened.push_back({slot, below(2)});
      if (out.opened.back().has_counts != 0) counted.push_back(slot);
    }
    const int32_t history = counted.empty() ? 0 : below(2) * below(6000);
    for (int32_t i = 0; i < history; ++i) {
      // Few tokens, so that the same one is counted many times at once.
      out.history.push_back({counted[static_cast<size_t>(below(std::ssize(counted)))],
                             below(below(2) == 0 ? 3 : slots_.vocab), below(2)});
    }
    for (int32_t row = 0; row < slots_.num_groups * (slots_.num_slots + 1); ++row) {
      if (below(2) == 0) continue;
      const int32_t first = below(slots_.max_blocks);
      for (int32_t i = first; i < std::min<int64_t>(slots_.max_blocks, first + below(9)); ++i) {
        out.blocks.push_back({row, i, below(100000)});
      }
    }
    for (int32_t position = below(slots_.max_len); position > 0 && !order.empty(); --position) {
      out.kept.push_back({order[0], position, below(slots_.vocab)});
    }
    const int32_t num_ids = below(3) == 0 ? below(2) : below(700);
    for (int32_t t = 0; t < num_ids; ++t) {
      out.ids.push_back(below(2) == 0 ? below(slots_.vocab) : -1 - below(slots_.num_slots));
    }
    for (int32_t i = 0; i < slots_.num_groups * num_ids; ++i) {
      out.kv_slot.push_back(below(5) == 0 ? -1 : below(1 << 20));
    }
    return out;
  }

 private:
  std::mt19937_64& random_;
  const HostSlots& slots_;
};

TEST_P(OpsConformance, BeginStep) {
  for (const auto& [num_slots, num_groups, max_blocks, vocab] :
       {std::array{1, 1, 1, 5}, std::array{7, 3, 33, 160}, std::array{64, 1, 100, 1003}}) {
    HostSlots slots(num_slots, num_groups, max_blocks, vocab);
    Fuzz fuzz(random_, slots);
    ops::SlotState state = slots.put(device_);
    for (int round = 0; round < 12; ++round) {
      // As sampling leaves them.
      for (int32_t slot = 0; slot < num_slots; ++slot) {
        slots.carry[static_cast<size_t>(slot)] = fuzz.below(4) == 0 ? -1 : fuzz.below(vocab);
        slots.ended[static_cast<size_t>(slot)] = fuzz.below(3) == 0 ? 1 : 0;
      }
      device_.write(state.carry, std::as_bytes(std::span(slots.carry)));
      device_.write(state.ended, std::as_bytes(std::span(slots.ended)));

      Edits edits = fuzz.edits();
      ops::BeginStepArgs args{.state = state,
                              .opened = put_words(device_, edits.opened),
                              .history = put_words(device_, edits.history),
                              .blocks = put_words(device_, edits.blocks),
                              .kept = put_words(device_, edits.kept),
                              .ids = device_.put(edits.ids),
                              .kv_slot = device_.put(edits.kv_slot)};
      if (round % 3 == 2) {
        // In two calls, as a step with long lists.
        ops::BeginStepArgs first = args;
        first.ids = first.kv_slot = first.blocks = {};
        args.opened = args.history = args.kept = {};
        ops_.begin_step(first);
      }
      ops_.begin_step(args);
      apply(edits, slots);
      const std::string what = std::to_string(num_slots) + " slots, round " + std::to_string(round);
      EXPECT_EQ(device_.values<int32_t>(args.ids), edits.ids) << what;
      EXPECT_EQ(device_.values<int32_t>(args.kv_slot), edits.kv_slot) << what;
      EXPECT_EQ(device_.values<int32_t>(state.carry), slots.carry) << what;
      EXPECT_EQ(device_.values<int32_t>(state.ended), slots.ended) << what;
      EXPECT_EQ(device_.values<int32_t>(state.block_table), slots.block_table) << what;
      EXPECT_EQ(device_.values<int32_t>(state.output_count), slots.output_count) << what;
      EXPECT_EQ(device_.values<uint8_t>(state.prompt_seen), slots.prompt_seen) << what;
      EXPECT_EQ(device_.values<int32_t>(state.history), slots.history) << what;
    }
  }
}

// Of the tokens and of the rows of logits: rows of the table, marked where the token is captured.
TEST_P(OpsConformance, BeginStepGathersTaps) {
  for (const auto& [num_rows, num_points, num_sets] :
       {std::array{1, 1, 1}, std::array{5, 300, 3}, std::array{40, 17, 9}}) {
    const auto any = [&](int64_t low, int64_t high) {
      return static_cast<int32_t>(between(low, high));
    };
    const auto at = [width = num_points](int32_t row, int32_t point) {
      return static_cast<size_t>(int64_t{row} * width + point);
    };
    std::vector<ops::TapEntry> points(at(num_rows, 0));
    for (ops::TapEntry& entry : points) {
      if (between(0, 1) == 0) continue;
      entry = {any(1, 1 << 20), any(0, 1 << 20), 0.5f, any(0, 1) * ops::TapEntry::kPlainAdd};
    }
    std::vector<int32_t> captures(at(num_sets, 0) * 2);
    for (int32_t& offset : captures) offset = any(-3, 1) < 0 ? -1 : any(0, 1000);
    ops::TapTable table;
    table.points = device_.put_as(std::span<const ops::TapEntry>(points), DType::kI32,
                                  {num_rows, num_points, ops::kTapEntryWords});
    table.captures =
        device_.put_as(std::span<const int32_t>(captures), DType::kI32, {num_sets, num_points, 2});
    ops::BeginStepArgs args;
    args.tap_table = &table;
    std::vector<ops::TapEntry> expected[2];
    for (const int i : {0, 1}) {
      const int64_t num_tokens = i == 0 ? 70 : 3;
      std::vector<int32_t> row, set;
      for (int64_t t = 0; t < num_tokens; ++t) {
        row.push_back(any(0, num_rows - 1));
        set.push_back(any(-1, num_sets - 1));
        for (int32_t point = 0; point < num_points; ++point) {
          ops::TapEntry& entry = expected[i].emplace_back(points[at(row.back(), point)]);
          if (set.back() < 0) continue;
          const size_t index = at(set.back(), point) * 2;
          const bool is_captured = captures[index] >= 0 || captures[index + 1] >= 0;
          if (is_captured) entry.flags |= ops::TapEntry::kCaptured;
        }
      }
      ops::TapBatch& batch = i == 0 ? args.taps : args.rows_taps;
      batch.row = device_.put(row);
      batch.capture_set = device_.put(set);
      batch.entries = poisoned(DType::kI32, {num_tokens, num_points, ops::kTapEntryWords});
    }
    ops_.begin_step(args);
    EXPECT_EQ(device_.values<ops::TapEntry>(args.taps.entries), expected[0]);
    EXPECT_EQ(device_.values<ops::TapEntry>(args.rows_taps.entries), expected[1]);
  }
}

// The rows of a step of single tokens, as advance_step finds and leaves them.
struct Rows {
  std::vector<int32_t> ids, positions, kv_slot, kv_len, since_prompt;
  std::vector<ops::SampleRow> sample;

  void advance(const HostSlots& slots, int32_t block_size) {
    const auto num_groups = static_cast<size_t>(slots.num_groups);
    for (size_t r = 0; r < ids.size(); ++r) {
      const auto slot = static_cast<size_t>(sample[r].slot);
      if (sample[r].slot == slots.num_slots || slots.ended[slot] != 0) {
        for (size_t g = 0; g < num_groups; ++g) kv_slot[g * ids.size() + r] = -1;
        continue;
      }
      ids[r] = slots.carry[slot];
      const int32_t position = ++positions[r];
      for (size_t g = 0; g < num_groups; ++g) {
        const size_t at = (g * slots.carry.size() + slot) * static_cast<size_t>(slots.max_blocks) +
                          static_cast<size_t>(position / block_size);
        kv_slot[g * ids.size() + r] = slots.block_table[at] * block_size + position % block_size;
      }
      ++kv_len[r];
      ++since_prompt[r];
      ++sample[r].position;
    }
  }
};

TEST_P(OpsConformance, AdvanceStep) {
  for (const int32_t num_slots : {1, 7, 64, 300}) {
    constexpr int64_t kMaxBlocks = 9;
    HostSlots slots(num_slots, num_slots == 7 ? 3 : 1, kMaxBlocks, 50);
    Fuzz fuzz(random_, slots);
    for (int32_t& block : slots.block_table) block = fuzz.below(1 << 20);
    const int32_t block_size = 1 + fuzz.below(16);
    Rows rows;
    const int32_t num_rows = num_slots + (num_slots > 1 ? fuzz.below(9) : 0);
    for (int32_t r = 0; r < num_rows; ++r) {
      ops::SampleRow& row = rows.sample.emplace_back();
      row.seed = random_();
      row.slot = std::min(r, num_slots);  // of padding behind the last
      row.temperature = 0.5f;
      row.position = fuzz.below(kMaxBlocks * block_size - 3);
      row.stop_from = row.position + fuzz.below(4);
      row.max_len = 1000;
      const bool is_padding = row.slot == num_slots;
      rows.ids.push_back(fuzz.below(50));
      rows.positions.push_back(row.position - (is_padding ? 0 : 1));
      for (int32_t g = 0; g < slots.num_groups; ++g) {
        rows.kv_slot.push_back(is_padding ? -1 : fuzz.below(1000));
      }
      rows.kv_len.push_back(is_padding ? 0 : row.position);
      rows.since_prompt.push_back(fuzz.below(7));
    }
    const ops::SlotState state = slots.put(device_);
    const tensor::Shape sample_shape = {num_rows, sizeof(ops::SampleRow)};
    const ops::AdvanceStepArgs args{
        .state = state,
        .ids = device_.put(rows.ids),
        .positions = device_.put(rows.positions),
        .kv_slot = device_.put(rows.kv_slot),
        .kv_len = device_.put(rows.kv_len),
        .sample_rows =
            device_.put_as(std::span<const ops::SampleRow>(rows.sample), DType::kU8, sample_shape),
        .since_prompt = device_.put(rows.since_prompt),
        .block_size = block_size};
    for (int round = 0; round < 3; ++round) {
      for (int32_t slot = 0; slot < num_slots; ++slot) {
        slots.carry[static_cast<size_t>(slot)] = fuzz.below(50);
        if (fuzz.below(4) == 0) slots.ended[static_cast<size_t>(slot)] = 1;
      }
      device_.write(state.carry, std::as_bytes(std::span(slots.carry)));
      device_.write(state.ended, std::as_bytes(std::span(slots.ended)));
      ops_.advance_step(args);
      rows.advance(slots, block_size);
      const std::string what = std::to_string(num_slots) + " slots, round " + std::to_string(round);
      EXPECT_EQ(device_.values<int32_t>(args.ids), rows.ids) << what;
      EXPECT_EQ(device_.values<int32_t>(args.positions), rows.positions) << what;
      EXPECT_EQ(device_.values<int32_t>(args.kv_slot), rows.kv_slot) << what;
      EXPECT_EQ(device_.values<int32_t>(args.kv_len), rows.kv_len) << what;
      EXPECT_EQ(device_.values<int32_t>(args.since_prompt), rows.since_prompt) << what;
      const auto* raw = reinterpret_cast<const uint8_t*>(rows.sample.data());
      EXPECT_EQ(device_.values<uint8_t>(args.sample_rows),
                std::vector<uint8_t>(raw, raw + sample_shape.numel()))
          << what;
    }
  }
}

}  // namespace
}  // namespace rudder::testing
