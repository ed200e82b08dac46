// place_tails and keep_guess against what the host would pack if it knew all tokens: sequences of
// every length, shorter ones than their parts too, ended ones, ones that nothing can be guessed
// for, and padding.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "rudder/ops/tail_args.h"
#include "rudder/testing/ops_conformance_slots.h"

namespace rudder::testing {
namespace {

using tensor::DType;

// A pass as it lies on the device; what is in it before an op is nothing that a pass has.
struct Pass {
  std::vector<int32_t> q_begin = {0}, table_row, kv_len, ids, positions, kv_slot, logits_rows;
  std::vector<int32_t> goes_on_rows;
  std::vector<ops::SampleRow> rows;

  void add(int32_t slot, int32_t q_len, int32_t max_len, int32_t num_guess) {
    for (int32_t i = 0; i < q_len; ++i) {
      ids.push_back(-3);
      positions.push_back(-4);
      kv_slot.push_back(-5);
      goes_on_rows.push_back(-1);
    }
    q_begin.push_back(static_cast<int32_t>(ids.size()));
    table_row.push_back(slot);
    kv_len.push_back(-6);
    logits_rows.push_back(-7);
    ops::SampleRow& row = rows.emplace_back();
    row.slot = slot;
    row.position = -8;
    row.max_len = max_len;
    row.num_guess = num_guess;
  }

  // `step_rows`: those of the step that the slots come from.
  void place(const HostSlots& model, HostSlots& own, const ops::PlaceTailsArgs& args,
             const std::vector<ops::SampleRow>& step_rows = {}) {
    for (size_t s = 0; s < rows.size() && s < kv_len.size(); ++s) {
      const auto slot = static_cast<size_t>(table_row[s]);
      if (table_row[s] == model.num_slots) continue;
      // All tokens that there are, and the parts of them that are run.
      const int32_t len = model.carry_position[slot] + 1;
      std::vector<int32_t> tokens;
      tokens.reserve(static_cast<size_t>(len) + 1);
      for (int32_t i = 0; i < len; ++i) {
        tokens.push_back(
            model.history[slot * static_cast<size_t>(model.max_len) + static_cast<size_t>(i)]);
      }
      if (args.num_ahead > 0) tokens.push_back(std::max(0, own.carry[slot]));
      const auto end = static_cast<int32_t>(tokens.size());
      const int32_t q_len = q_begin[s + 1] - q_begin[s];
      const int32_t first = std::max(end - q_len, args.shift);
      const int32_t room = rows[s].max_len - len - 1;
      const int32_t count = std::min(rows[s].num_guess, room);
      if (model.ended[slot] != 0 || count < 1) own.ended[slot] = 1;
      for (int32_t i = 0; i < q_len; ++i) {
        const size_t t = static_cast<size_t>(q_begin[s]) + static_cast<size_t>(i);
        const int32_t position = first + i - args.shift;
        const bool is_there = first + i < end;
        ids[t] = is_there ? tokens[static_cast<size_t>(first) + static_cast<size_t>(i)] : 0;
        positions[t] = position;
        const int32_t block = own.block_table[slot * static_cast<size_t>(own.max_blocks) +
                                              static_cast<size_t>(position / args.block_size)];
        const bool is_written = is_there && own.ended[slot] == 0 && args.keeps_kv;
        kv_slot[t] = is_written ? block * args.block_size + position % args.block_size : -1;
        if (first + i + 1 == end) logits_rows[s] = static_cast<int32_t>(t);
      }
      kv_len[s] = first - args.shift + (args.keeps_kv ? q_len : 0);
      rows[s].position = end;
      rows[s].max_len = len + count;
      rows[s].num_guess = count;
      if (step_rows.empty() || own.ended[slot] != 0) continue;
      // Its rows of the step lie one behind another: the last one that counts has the last token.
      int32_t& goes_on = goes_on_rows[static_cast<size_t>(q_begin[s])];
      while (step_rows[static_cast<size_t>(goes_on)].position < len - 1) ++goes_on;
    }
  }
};

TEST_P(OpsConformance, PlaceTailsPacksWhatTheSlotsHave) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it guesses nothing";
  const auto below = [&](int64_t n) { return static_cast<int32_t>(between(0, n - 1)); };
  int32_t num_short = 0;
  for (const int32_t num_slots : {1, 5, 37, 300}) {
    for (const int32_t num_ahead : {0, 1}) {
      for (const int32_t shift : {0, 1}) {
        constexpr int64_t kMaxBlocks = 47;
        HostSlots model(num_slots, 2, kMaxBlocks, 50);
        HostSlots own(num_slots, 1, kMaxBlocks, 50);
        for (int32_t& token : model.history) token = below(50);
        for (int32_t& block : own.block_table) block = below(1 << 20);
        Pass pass;
        for (int32_t slot = 0; slot < num_slots; ++slot) {
          const auto s = static_cast<size_t>(slot);
          model.carry_position[s] = 1 + below(below(2) == 0 ? 5 : 31);
          model.ended[s] = below(6) == 0 ? 1 : 0;
          own.carry[s] = below(50);
          own.ended[s] = num_ahead > 0 && below(6) == 0 ? 1 : 0;
          if (below(5) == 0) continue;  // nothing is guessed for it
          const int32_t len = model.carry_position[s] + 1;
          const int32_t q_len = num_ahead > 0 ? 1 : 2 + below(2) * below(6);
          num_short += q_len > len + num_ahead - shift ? 1 : 0;
          pass.add(slot, q_len, len + below(9), 1 + below(6));
        }
        for (int32_t i = below(3); i > 0 || pass.rows.empty(); --i) {
          pass.add(num_slots, 1 + below(4), 0, 0);
        }
        ops::PlaceTailsArgs args;
        args.model = model.put(device_);
        args.own = own.put(device_);
        args.q_begin = device_.put(pass.q_begin);
        args.table_row = device_.put(pass.table_row);
        args.ids = device_.put(pass.ids);
        args.positions = device_.put(pass.positions);
        args.kv_slot = device_.put(pass.kv_slot);
        args.kv_len = device_.put(pass.kv_len);
        args.logits_rows = device_.put(pass.logits_rows);
        args.sample_rows = device_.put_as(std::span<const ops::SampleRow>(pass.rows), DType::kU8,
                                          {std::ssize(pass.rows), sizeof(ops::SampleRow)});
        args.num_ahead = num_ahead;
        args.shift = shift;
        args.block_size = 1 + below(16);
        ops_.draft_ops()->place_tails(args);
        pass.place(model, own, args);
        const std::string what = std::to_string(num_slots) + " slots, " +
                                 std::to_string(num_ahead) + " ahead, shift " +
                                 std::to_string(shift);
        ASSERT_EQ(device_.values<int32_t>(args.ids), pass.ids) << what;
        ASSERT_EQ(device_.values<int32_t>(args.positions), pass.positions) << what;
        ASSERT_EQ(device_.values<int32_t>(args.kv_slot), pass.kv_slot) << what;
        ASSERT_EQ(device_.values<int32_t>(args.kv_len), pass.kv_len) << what;
        ASSERT_EQ(device_.values<int32_t>(args.logits_rows), pass.logits_rows) << what;
        ASSERT_EQ(device_.values<int32_t>(args.own.ended), own.ended) << what;
        const std::vector<uint8_t> bytes = device_.values<uint8_t>(args.sample_rows);
        const auto* rows = reinterpret_cast<const ops::SampleRow*>(bytes.data());
        for (size_t r = 0; r < pass.rows.size(); ++r) {
          ASSERT_EQ(rows[r].position, pass.rows[r].position) << what << ", row " << r;
          ASSERT_EQ(rows[r].max_len, pass.rows[r].max_len) << what << ", row " << r;
          ASSERT_EQ(rows[r].num_guess, pass.rows[r].num_guess) << what << ", row " << r;
        }
      }
    }
  }
  EXPECT_GT(num_short, 5);
}

// A pass of single tokens that keeps no KV, from the rows of a step that had drafts.
TEST_P(OpsConformance, PlaceTailsFindsTheRowOfTheLastToken) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it guesses nothing";
  const auto below = [&](int64_t n) { return static_cast<int32_t>(between(0, n - 1)); };
  int32_t num_moved = 0;
  for (const int32_t num_slots : {1, 5, 37, 300}) {
    HostSlots model(num_slots, 2, 47, 50);
    HostSlots own(num_slots, 1, 1, 50);
    for (int32_t& token : model.history) token = below(50);
    Pass pass;
    std::vector<ops::SampleRow> step_rows(static_cast<size_t>(below(3)));  // of others
    for (int32_t slot = 0; slot < num_slots; ++slot) {
      const auto s = static_cast<size_t>(slot);
      const int32_t first = 1 + below(30);
      const int32_t num_draft = below(6);
      const int32_t num_right = below(num_draft + 1);
      model.carry_position[s] = first + num_right;
      model.ended[s] = below(6) == 0 ? 1 : 0;
      const auto first_row = static_cast<int32_t>(step_rows.size());
      for (int32_t i = 0; i <= num_draft; ++i) {
        step_rows.emplace_back().slot = slot;
        step_rows.back().position = first + i;
      }
      if (below(5) == 0) continue;  // nothing is guessed for it
      pass.add(slot, 1, model.carry_position[s] + 1 + below(9), 1 + below(6));
      pass.goes_on_rows.back() = first_row;
      num_moved += num_right > 0 ? 1 : 0;
    }
    for (int32_t i = below(3); i > 0 || pass.rows.empty(); --i) pass.add(num_slots, 1, 0, 0);
    ops::PlaceTailsArgs args;
    args.model = model.put(device_);
    args.own = own.put(device_);
    args.q_begin = device_.put(pass.q_begin);
    args.table_row = device_.put(pass.table_row);
    args.ids = device_.put(pass.ids);
    args.positions = device_.put(pass.positions);
    args.kv_slot = device_.put(pass.kv_slot);
    args.kv_len = device_.put(pass.kv_len);
    args.logits_rows = device_.put(pass.logits_rows);
    const auto put_rows = [&](const std::vector<ops::SampleRow>& rows) {
      return device_.put_as(std::span(rows), DType::kU8,
                            {std::ssize(rows), sizeof(ops::SampleRow)});
    };
    args.sample_rows = put_rows(pass.rows);
    args.step_rows = put_rows(step_rows);
    args.goes_on_rows = device_.put(pass.goes_on_rows);
    args.keeps_kv = false;
    ops_.draft_ops()->place_tails(args);
    pass.place(model, own, args, step_rows);
    const std::string what = std::to_string(num_slots) + " slots";
    ASSERT_EQ(device_.values<int32_t>(args.goes_on_rows), pass.goes_on_rows) << what;
    ASSERT_EQ(device_.values<int32_t>(args.ids), pass.ids) << what;
    ASSERT_EQ(device_.values<int32_t>(args.positions), pass.positions) << what;
    ASSERT_EQ(device_.values<int32_t>(args.kv_slot), pass.kv_slot) << what;
    ASSERT_EQ(device_.values<int32_t>(args.kv_len), pass.kv_len) << what;
    ASSERT_EQ(device_.values<int32_t>(args.own.ended), own.ended) << what;
  }
  EXPECT_GT(num_moved, 50);
}

TEST_P(OpsConformance, KeepGuessLeavesTokensInTheSlots) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it guesses nothing";
  const auto below = [&](int64_t n) { return static_cast<int32_t>(between(0, n - 1)); };
  for (const int32_t num_slots : {1, 7, 300}) {
    HostSlots model(num_slots, 1, 3, 50);
    std::vector<ops::SampleRow> rows;
    std::vector<ops::SampledToken> sampled;
    for (int32_t slot = 0; slot <= num_slots; ++slot) {
      if (below(4) == 0 && slot < num_slots) continue;
      rows.emplace_back().slot = slot;  // the last one is padding
      rows.back().num_guess = below(model.most_guessed + 1);
      sampled.push_back({.token = below(4) == 0 ? -1 : below(50)});
    }
    const auto num_rows = std::ssize(rows);
    const ops::KeepGuessArgs args = {
        .model = model.put(device_),
        .rows = device_.put_as(std::span<const ops::SampleRow>(rows), DType::kU8,
                               {num_rows, sizeof(ops::SampleRow)}),
        .sampled =
            device_.put_as(std::span<const ops::SampledToken>(sampled), DType::kI32, {num_rows, 4}),
        .index = below(model.most_guessed)};
    ops_.draft_ops()->keep_guess(args);
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].slot == num_slots || sampled[r].token < 0) continue;
      if (rows[r].num_guess <= args.index) continue;
      model.guess[static_cast<size_t>(rows[r].slot * model.most_guessed + args.index)] =
          sampled[r].token;
    }
    ASSERT_EQ(device_.values<int32_t>(args.model.guess), model.guess) << num_slots;
  }
}

}  // namespace
}  // namespace rudder::testing
