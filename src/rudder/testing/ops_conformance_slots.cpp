// begin_step and advance_step against a few lines on the host: steps of random edits, ends and
// carried tokens; rows that go on, have ended or are of padding.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "rudder/ops/sample_args.h"
#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

// What the device's SlotState should hold; the last row is of padding.
struct HostSlots {
  int32_t num_slots = 0;
  int32_t num_groups = 1;
  int64_t max_blocks = 0;
  int64_t vocab = 0;
  std::vector<int32_t> carry, carry_position, ended, block_table, output_count;
  std::vector<uint8_t> prompt_seen;

  HostSlots(int32_t slots, int32_t groups, int64_t blocks, int64_t tokens)
      : num_slots(slots),
        num_groups(groups),
        max_blocks(blocks),
        vocab(tokens),
        carry(static_cast<size_t>(slots) + 1, -1),
        carry_position(carry.size()),
        ended(carry.size()),
        block_table(carry.size() * static_cast<size_t>(groups * blocks)),
        output_count(carry.size() * static_cast<size_t>(tokens)),
        prompt_seen(output_count.size()) {}

  ops::SlotState put(Device& device) const {
    const int64_t rows = num_slots + 1;
    return {.carry = device.put(carry),
            .carry_position = device.put(carry_position),
            .ended = device.put(ended),
            .block_table =
                device.put_as(std::span(block_table), DType::kI32, {num_groups * rows, max_blocks}),
            .output_count = device.put_as(std::span(output_count), DType::kI32, {rows, vocab}),
            .prompt_seen = device.put_as(std::span(prompt_seen), DType::kU8, {rows, vocab})};
  }
};

struct Edits {
  std::vector<ops::OpenedSlot> opened;
  std::vector<ops::HistoryToken> history;
  std::vector<ops::BlockWrite> blocks;
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

template <typename T>
View put_words(Device& device, const std::vector<T>& values) {
  constexpr auto kWords = static_cast<int64_t>(sizeof(T) / sizeof(int32_t));
  if (values.empty()) return {};
  return device.put_as(std::span<const T>(values), DType::kI32,
                       {static_cast<int64_t>(values.size()), kWords});
}

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
                              .ids = device_.put(edits.ids),
                              .kv_slot = device_.put(edits.kv_slot)};
      if (round % 3 == 2) {
        // In two calls, as a step with long lists.
        ops::BeginStepArgs first = args;
        first.ids = first.kv_slot = first.blocks = {};
        args.opened = args.history = {};
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
      return static_cast<size_t>(row * width + point);
    };
    std::vector<ops::TapEntry> points(at(num_rows, 0));
    for (ops::TapEntry& entry : points) {
      if (between(0, 1) == 0) continue;
      entry = {any(1, 1 << 20), any(0, 1 << 20), 0.5f, any(0, 1) * ops::TapEntry::kPlainAdd};
    }
    std::vector<int32_t> captures(at(num_sets, 0) * 2);
    for (int32_t& place : captures) place = any(-3, 1) < 0 ? -1 : any(0, 1000);
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
          const size_t place = at(set.back(), point) * 2;
          const bool is_captured = captures[place] >= 0 || captures[place + 1] >= 0;
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

// The tokens of a step as the host packs them, which knows no more of a sequence with a carry than
// where it may stand at most.
struct Placed {
  std::vector<int32_t> q_begin = {0}, kv_len, table_row, ids, positions, since_prompt;
  std::vector<std::vector<int32_t>> kv_slot;  // by group
  std::vector<int32_t> logits_rows, rows_since_prompt;
  std::vector<ops::SampleRow> sample;

  void add(int32_t slot, int32_t q_len, int32_t begin, bool carries, bool wants_all) {
    for (int32_t i = 0; i < q_len; ++i) {
      const auto token = static_cast<int32_t>(ids.size());
      ids.push_back(carries && i == 0 ? -1 - slot : 3 + i);
      positions.push_back(begin + i);
      since_prompt.push_back(begin + i - 5);
      for (std::vector<int32_t>& of_group : kv_slot) of_group.push_back(7);
      if (!wants_all && i + 1 < q_len) continue;
      logits_rows.push_back(token);
      rows_since_prompt.push_back(since_prompt.back());
      sample.emplace_back().slot = slot;
      sample.back().position = begin + i + 1;
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
        for (size_t g = 0; g < kv_slot.size(); ++g) {
          const size_t at = (g * slots.carry.size() + slot) * static_cast<size_t>(slots.max_blocks) +
                            static_cast<size_t>(positions[t] / block_size);
          kv_slot[g][t] = has_ended ? -1
                                    : slots.block_table[at] * block_size + positions[t] % block_size;
        }
      }
      for (size_t r = 0; r < logits_rows.size(); ++r) {
        const auto token = static_cast<size_t>(logits_rows[r]);
        if (token < begin || token >= end) continue;
        sample[r].position -= back;
        rows_since_prompt[r] -= back;
      }
    }
  }
};

// Sequences of prompts, with a carry, with drafts behind it, at and behind where the host has them,
// ended ones, and padding.
TEST_P(OpsConformance, BeginStepPlacesSequences) {
  for (const auto& [num_slots, num_groups] :
       {std::array{1, 1}, std::array{5, 3}, std::array{40, 1}, std::array{300, 2}}) {
    constexpr int64_t kMaxBlocks = 40;
    HostSlots slots(num_slots, num_groups, kMaxBlocks, 50);
    Fuzz fuzz(random_, slots);
    for (int32_t& block : slots.block_table) block = fuzz.below(1 << 20);
    const int32_t block_size = 1 + fuzz.below(16);
    for (const bool has_taps : {false, true}) {
      Placed placed;
      placed.kv_slot.resize(static_cast<size_t>(num_groups));
      Edits edits;
      for (int32_t slot = 0; slot < num_slots; ++slot) {
        const auto s = static_cast<size_t>(slot);
        slots.carry[s] = fuzz.below(50);
        slots.carry_position[s] = fuzz.below(kMaxBlocks * block_size / 2);
        slots.ended[s] = fuzz.below(5) == 0 ? 1 : 0;
        if (fuzz.below(6) == 0) continue;  // it has nothing to do
        const bool carries = fuzz.below(3) > 0;
        const int32_t q_len = 1 + (fuzz.below(2) == 0 ? 0 : fuzz.below(kMaxBlocks * block_size / 4));
        const int32_t most = static_cast<int32_t>(kMaxBlocks) * block_size - q_len;
        const int32_t begin =
            carries ? std::min(most, slots.carry_position[s] + fuzz.below(2) * fuzz.below(9))
                    : fuzz.below(most);
        placed.add(slot, q_len, begin, carries, carries && fuzz.below(4) > 0);
        // Blocks of this very step are read as well.
        const int32_t index = fuzz.below(kMaxBlocks);
        if (fuzz.below(2) == 0) edits.blocks.push_back({slot, index, fuzz.below(1 << 20)});
      }
      for (const int32_t q_len : {1, 1, fuzz.below(4), 0, 0}) {
        placed.add(num_slots, q_len, 0, false, true);
      }
      const tensor::Shape sample_shape = {std::ssize(placed.sample), sizeof(ops::SampleRow)};
      ops::BeginStepArgs args;
      args.state = slots.put(device_);
      args.blocks = put_words(device_, edits.blocks);
      args.ids = device_.put(placed.ids);
      args.kv_slot = device_.put(placed.flat_kv_slots());
      args.placement = {.q_begin = device_.put(placed.q_begin),
                        .table_row = device_.put(placed.table_row),
                        .kv_len = device_.put(placed.kv_len),
                        .positions = device_.put(placed.positions),
                        .sample_rows = device_.put_as(std::span<const ops::SampleRow>(placed.sample),
                                                      DType::kU8, sample_shape),
                        .logits_rows = device_.put(placed.logits_rows),
                        .block_size = block_size};
      if (has_taps) {
        args.placement.since_prompt = device_.put(placed.since_prompt);
        args.placement.rows_since_prompt = device_.put(placed.rows_since_prompt);
      }
      ops_.begin_step(args);
      apply(edits, slots);
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
