#include "rudder/exec/slot_table.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "rudder/base/check.h"
#include "rudder/exec/pack.h"

namespace rudder::exec {
namespace {

constexpr step::Capacity kCapacity = {.num_slots = 4,
                                      .num_blocks = 10,
                                      .block_size = 4,
                                      .max_tokens_per_step = 16,
                                      .max_seq_len = 24,
                                      .vocab_size = 50,
                                      .max_in_flight = 2};

// A failed check throws, so that tests see it.
class SlotTableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_check_hook([](const std::string& message) { throw std::logic_error(message); });
  }
  void TearDown() override { set_check_hook(nullptr); }

  static step::SlotEdit edit(int32_t slot, uint32_t generation, int32_t max_len = 20) {
    step::SlotEdit edit;
    edit.slot = step::SlotId(slot);
    edit.generation = generation;
    edit.max_len = max_len;
    return edit;
  }
  // Tokens [begin, begin + q_len) of the plan, logits after the last.
  static step::SeqWork prompt(int32_t slot, uint32_t generation, int32_t begin, int32_t q_len,
                              std::vector<step::BlockId> blocks) {
    step::SeqWork work;
    work.slot = step::SlotId(slot);
    work.generation = generation;
    work.q_len = q_len;
    work.token_begin = begin;
    work.logits = step::LogitsWanted::kLast;
    work.append_blocks = std::move(blocks);
    return work;
  }
  static step::SeqWork decode(int32_t slot, uint32_t generation, int32_t kv_len,
                              std::vector<step::BlockId> blocks = {}) {
    step::SeqWork work = prompt(slot, generation, 0, 1, std::move(blocks));
    work.kv_len = kv_len;
    work.tokens = step::TokenSource::kCarry;
    return work;
  }
  void pack(step::StepPlan plan) {
    plan.id = ++last_step_;
    pack_step(plan, kCapacity, slots_, packed_);
  }

  SlotTable slots_{kCapacity};
  PackedStep packed_;
  step::StepId last_step_ = 0;
};

TEST_F(SlotTableTest, PacksAPromptAndADecode) {
  pack({.slots = {edit(0, 1)}, .seqs = {prompt(0, 1, 0, 5, {7, 2})}, .tokens = {1, 2, 3, 4, 5}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(packed_.kv_slot, (std::vector<int32_t>{28, 29, 30, 31, 8}));
  EXPECT_EQ(packed_.block_table, (std::vector<int32_t>{7, 2}));
  ASSERT_EQ(packed_.sampled.size(), 1u);
  EXPECT_EQ(packed_.sampled[0].position, 5);
  EXPECT_EQ(slots_.accept(*packed_.sampled[0].slot, 42, 5), step::RowEnd::kNone);

  // A decode of slot 0 beside the first chunk of slot 3, which wants no logits.
  step::SeqWork chunk = prompt(3, 9, 1, 4, {0});
  chunk.logits = step::LogitsWanted::kNone;
  pack({.slots = {edit(3, 9)}, .seqs = {decode(0, 1, 5), chunk}, .tokens = {6, 7, 8, 9, 10}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{42, 7, 8, 9, 10}));
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{5, 0, 1, 2, 3}));
  EXPECT_EQ(packed_.q_begin, (std::vector<int32_t>{0, 1, 5}));
  EXPECT_EQ(packed_.kv_len, (std::vector<int32_t>{6, 4}));
  EXPECT_EQ(packed_.max_blocks, 2);
  EXPECT_EQ(packed_.block_table, (std::vector<int32_t>{7, 2, 0, 0}));
  EXPECT_EQ(packed_.logits_rows, (std::vector<int32_t>{0}));
}

TEST_F(SlotTableTest, ACachedPrefixIsNotRunAgain) {
  step::SlotEdit resumed = edit(1, 1);
  resumed.blocks = {5, 6};
  step::SeqWork rest = prompt(1, 1, 0, 2, {3});
  rest.kv_len = 8;
  pack({.slots = {resumed}, .seqs = {rest}, .tokens = {11, 12}});
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(packed_.kv_slot, (std::vector<int32_t>{12, 13}));
  EXPECT_EQ(packed_.block_table, (std::vector<int32_t>{5, 6, 3}));
}

TEST_F(SlotTableTest, RowsOfAnEndedSequenceAreMasked) {
  step::SlotEdit open = edit(0, 1);
  open.sampling.stop_ids = {13, 14};
  pack({.slots = {open, edit(1, 1)},
        .seqs = {prompt(0, 1, 0, 2, {0}), prompt(1, 1, 0, 2, {1})},
        .tokens = {1, 2}});
  EXPECT_EQ(slots_.accept(*packed_.sampled[0].slot, 14, 2), step::RowEnd::kStopId);
  EXPECT_EQ(slots_.accept(*packed_.sampled[1].slot, 3, 2), step::RowEnd::kNone);
  pack({.slots = {}, .seqs = {decode(0, 1, 2), decode(1, 1, 2)}, .tokens = {}});
  EXPECT_EQ(packed_.is_masked, (std::vector<bool>{true, false}));
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{3}));
  EXPECT_EQ(packed_.sampled[0].seq, 1u);
  // A new generation opens the slot again.
  pack({.slots = {edit(0, 2)}, .seqs = {prompt(0, 2, 0, 1, {4})}, .tokens = {8}});
  EXPECT_EQ(packed_.is_masked, (std::vector<bool>{false}));
}

TEST_F(SlotTableTest, EndsAtMaxLenAndOnBadLogits) {
  pack({.slots = {edit(0, 1, 4), edit(1, 1)},
        .seqs = {prompt(0, 1, 0, 2, {0}), prompt(1, 1, 0, 2, {1})},
        .tokens = {1, 2}});
  Slot& first = *packed_.sampled[0].slot;
  EXPECT_EQ(slots_.accept(first, 5, 2), step::RowEnd::kNone);
  EXPECT_EQ(slots_.accept(first, 5, 3), step::RowEnd::kLength);  // the fourth token
  EXPECT_TRUE(first.has_ended);
  Slot& second = *packed_.sampled[1].slot;
  EXPECT_EQ(slots_.accept(second, -1, 2), step::RowEnd::kNumerical);
  EXPECT_TRUE(second.has_ended);
}

TEST_F(SlotTableTest, CountsHistoryForPenalties) {
  step::SlotEdit open = edit(0, 1);
  open.sampling.frequency_penalty = 1;
  open.history = {4, 4, 9, 6, 6};
  open.history_prompt_len = 3;
  open.num_output = 2;
  open.sampling.min_tokens = 4;
  pack({.slots = {open}, .seqs = {prompt(0, 1, 0, 1, {0})}, .tokens = {4}});
  Slot& slot = *packed_.sampled[0].slot;
  ops::SampleRow row = slots_.sample_row(slot, 5);
  ASSERT_NE(row.output_count, nullptr);
  EXPECT_EQ(row.output_count[6], 2);
  EXPECT_EQ(row.output_count[4], 0);
  EXPECT_EQ(row.prompt_seen[4], 1);
  EXPECT_EQ(row.prompt_seen[6], 0);
  EXPECT_TRUE(row.ban_stop_ids);
  slots_.accept(slot, 6, 5);
  slots_.accept(slot, 7, 6);
  row = slots_.sample_row(slot, 7);
  EXPECT_EQ(row.output_count[6], 3);
  EXPECT_FALSE(row.ban_stop_ids);  // four tokens are out
  // Without a penalty nothing is counted.
  pack({.slots = {edit(0, 2)}, .seqs = {prompt(0, 2, 0, 1, {0})}, .tokens = {4}});
  EXPECT_EQ(slots_.sample_row(slot, 1).output_count, nullptr);
}

// exec.X1
TEST_F(SlotTableTest, RefusesPlansThatBreakTheContract) {
  const auto refused = [&](step::StepPlan plan) {
    plan.tokens.resize(4, 1);
    EXPECT_THROW(pack(std::move(plan)), std::logic_error);
  };
  pack({.slots = {edit(0, 5)}, .seqs = {prompt(0, 5, 0, 2, {0})}, .tokens = {1, 2}});
  slots_.accept(*packed_.sampled[0].slot, 3, 2);

  refused({.slots = {edit(4, 1)}, .seqs = {}, .tokens = {}});                        // no slot
  refused({.slots = {edit(0, 5)}, .seqs = {}, .tokens = {}});                        // opened twice
  refused({.slots = {edit(1, 1, 25)}, .seqs = {}, .tokens = {}});                    // max_len
  refused({.slots = {}, .seqs = {prompt(2, 1, 0, 1, {1})}, .tokens = {}});           // not open
  refused({.slots = {}, .seqs = {decode(0, 4, 2)}, .tokens = {}});                   // generation
  refused({.slots = {}, .seqs = {decode(0, 5, 3)}, .tokens = {}});                   // kv_len
  refused({.slots = {}, .seqs = {decode(0, 5, 2), decode(0, 5, 3)}, .tokens = {}});  // two rows
  refused({.slots = {edit(1, 2)}, .seqs = {decode(1, 2, 0, {1})}, .tokens = {}});    // no carry
  refused({.slots = {edit(1, 3)}, .seqs = {prompt(1, 3, 0, 1, {10})}, .tokens = {}});  // block id
  refused({.slots = {edit(1, 4)}, .seqs = {prompt(1, 4, 0, 4, {})}, .tokens = {}});    // no block
  refused({.slots = {edit(1, 5)}, .seqs = {prompt(1, 5, 2, 3, {1})}, .tokens = {}});   // tokens
  refused({.slots = {edit(1, 6, 4)}, .seqs = {prompt(1, 6, 0, 4, {1})}, .tokens = {}});
  refused({.slots = {edit(1, 7)}, .seqs = {prompt(1, 7, 0, 2, {1})}, .tokens = {1, 50}});
}

}  // namespace
}  // namespace rudder::exec
