#include "rudder/exec/slot_table.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
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
                                      .max_in_flight = 2,
                                      .max_repeat = 8,
                                      .drafts = {.max_draft = 2, .takes_trees = true}};

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
    if (!blocks.empty()) work.append_blocks = {std::move(blocks)};
    return work;
  }
  static step::SeqWork decode(int32_t slot, uint32_t generation, int32_t kv_len,
                              std::vector<step::BlockId> blocks = {}) {
    step::SeqWork work = prompt(slot, generation, 0, 1, std::move(blocks));
    work.kv_len = kv_len;
    work.tokens = step::TokenSource::kCarry;
    return work;
  }
  // The carried token, then drafts from StepPlan.tokens[begin] on.
  static step::SeqWork drafted(int32_t slot, uint32_t generation, int32_t kv_len, int32_t begin,
                               int32_t num_draft) {
    step::SeqWork work = decode(slot, generation, kv_len);
    work.q_len = 1 + num_draft;
    work.num_draft = num_draft;
    work.token_begin = begin;
    work.logits = step::LogitsWanted::kAll;
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

// An edit as (slot, index, block) or (slot, token, is_prompt).
using Triple = std::array<int32_t, 3>;
std::vector<Triple> triples(const std::vector<ops::BlockWrite>& writes) {
  std::vector<Triple> out;
  for (const ops::BlockWrite& write : writes) out.push_back({write.row, write.index, write.block});
  return out;
}
std::vector<Triple> triples(const std::vector<ops::HistoryToken>& history) {
  std::vector<Triple> out;
  for (const ops::HistoryToken& h : history) out.push_back({h.slot, h.token, h.is_prompt});
  return out;
}

// A slot names the state of its sequence, where there are any; padding has none.
TEST_F(SlotTableTest, StatesAreNamedWhereThereAreAny) {
  step::Capacity capacity = kCapacity;
  capacity.drafts.takes_trees = false;
  capacity.states = {.count = 3, .bytes = 64};
  SlotTable slots(capacity);
  step::SlotEdit first = edit(0, 1);
  first.state = 2;
  step::SlotEdit second = edit(3, 1);
  second.state = 0;
  const step::ObjectCopy restored = {step::state_ref(1), step::state_ref(0)};
  const step::ObjectCopy saved = {step::state_ref(2), step::state_ref(1)};
  pack_step({.id = 1,
             .slots = {first, second},
             .seqs = {prompt(3, 1, 0, 4, {7, 2}), prompt(0, 1, 4, 3, {5, 6})},
             .tokens = {1, 2, 3, 4, 5, 6, 7},
             .copies_before = {restored},
             .copies_after = {saved}},
            capacity, slots, packed_);
  EXPECT_EQ(packed_.states.state, (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(packed_.states.num_draft, (std::vector<int32_t>{0, 0}));
  EXPECT_EQ(packed_.states.copies_before, std::vector<step::ObjectCopy>{restored});
  EXPECT_EQ(packed_.states.copies_after, std::vector<step::ObjectCopy>{saved});
  pad_step(8, 3, capacity, packed_);
  EXPECT_EQ(packed_.states.state, (std::vector<int32_t>{0, 2, step::kNoState}));
  pack_step({.id = 2, .slots = {}, .seqs = {drafted(0, 1, 3, 0, 2)}, .tokens = {9, 9}}, capacity,
            slots, packed_);
  EXPECT_EQ(packed_.states.state, std::vector<int32_t>{2});
  EXPECT_EQ(packed_.states.num_draft, std::vector<int32_t>{2});
  EXPECT_TRUE(packed_.states.copies_before.empty() && packed_.states.copies_after.empty());
  EXPECT_THROW(pack_step({.id = 3, .slots = {edit(1, 1)}, .seqs = {}, .tokens = {}}, capacity,
                         slots, packed_),
               std::logic_error);
  EXPECT_THROW(pack({.slots = {first}, .seqs = {}, .tokens = {}}), std::logic_error);
}

TEST_F(SlotTableTest, PacksAPromptAndADecode) {
  pack({.slots = {edit(0, 1)}, .seqs = {prompt(0, 1, 0, 5, {7, 2})}, .tokens = {1, 2, 3, 4, 5}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(packed_.kv_slot[0], (std::vector<int32_t>{28, 29, 30, 31, 8}));
  ASSERT_EQ(packed_.edits.opened.size(), 1u);
  EXPECT_EQ(packed_.edits.opened[0].slot, 0);
  EXPECT_EQ(packed_.edits.opened[0].has_counts, 0);
  EXPECT_EQ(triples(packed_.edits.blocks), (std::vector<Triple>{{0, 0, 7}, {0, 1, 2}}));
  ASSERT_EQ(packed_.num_sampled(), 1);
  EXPECT_EQ(packed_.sample_rows[0].position, 5);
  EXPECT_EQ(packed_.sample_rows[0].slot, 0);

  // A decode of slot 0 beside the first chunk of slot 3, which wants no logits.
  step::SeqWork chunk = prompt(3, 9, 1, 4, {0});
  chunk.logits = step::LogitsWanted::kNone;
  pack({.slots = {edit(3, 9)}, .seqs = {chunk, decode(0, 1, 5)}, .tokens = {6, 7, 8, 9, 10}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{7, 8, 9, 10, -1 - 0}));
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{0, 1, 2, 3, 5}));
  EXPECT_EQ(packed_.q_begin, (std::vector<int32_t>{0, 4, 5}));
  EXPECT_EQ(packed_.kv_len, (std::vector<int32_t>{4, 6}));
  EXPECT_EQ(packed_.table_row, (std::vector<int32_t>{3, 0}));
  EXPECT_EQ(packed_.max_q_len, 4);
  EXPECT_EQ(packed_.max_kv_len, 6);
  EXPECT_EQ(triples(packed_.edits.blocks), (std::vector<Triple>{{3, 0, 0}}));
  EXPECT_EQ(packed_.logits_rows, (std::vector<int32_t>{4}));
  EXPECT_EQ(packed_.sampled_seq, (std::vector<int32_t>{1}));
}

// Tables and KV slots of each group; the device counts in blocks of one layer.
TEST_F(SlotTableTest, KvGroupsHaveTablesOfTheirOwn) {
  step::Capacity capacity = kCapacity;
  const std::vector<step::KvGroup> groups = {{.window = 0, .layers = 2},
                                             {.window = 5, .layers = 3}};
  capacity.kv_groups = step::KvGroups(groups);
  SlotTable slots(capacity);
  const auto pack_next = [&](step::StepPlan plan) {
    plan.id = ++last_step_;
    pack_step(plan, capacity, slots, packed_);
  };
  // Two cached blocks, of which the window of position 8 reaches the second.
  step::SlotEdit open = edit(1, 1);
  open.blocks = {{7, 8}, {step::kNoBlock, 3}};
  step::SeqWork work = prompt(1, 1, 0, 5, {});
  work.kv_len = 8;
  work.append_blocks = {{9, 2}, {1, 4}};
  pack_next({.slots = {open}, .seqs = {work}, .tokens = {1, 2, 3, 4, 5}});
  EXPECT_EQ(triples(packed_.edits.blocks),
            (std::vector<Triple>{
                {1, 0, 14}, {1, 1, 16}, {6, 1, 9}, {1, 2, 18}, {1, 3, 4}, {6, 2, 3}, {6, 3, 12}}));
  EXPECT_EQ(packed_.kv_slot[0], (std::vector<int32_t>{72, 73, 74, 75, 16}));
  EXPECT_EQ(packed_.kv_slot[1], (std::vector<int32_t>{12, 13, 14, 15, 48}));
  pack_next({.slots = {}, .seqs = {decode(1, 1, 13)}, .tokens = {}});
  pad_step(2, 2, capacity, packed_);
  EXPECT_EQ(packed_.kv_slot[1].back(), -1);

  // A position whose window reaches a block that is gone, a group too few, tables of unequal
  // length.
  open = edit(2, 1);
  open.blocks = {{5}, {step::kNoBlock}};
  work = prompt(2, 1, 0, 1, {});
  work.kv_len = 4;
  work.append_blocks = {{6}, {0}};
  EXPECT_THROW(pack_next({.slots = {open}, .seqs = {work}, .tokens = {1}}), std::logic_error);
  open = edit(2, 2);
  work = prompt(2, 2, 0, 1, {6});
  EXPECT_THROW(pack_next({.slots = {open}, .seqs = {work}, .tokens = {1}}), std::logic_error);
  open = edit(2, 3);
  work = prompt(2, 3, 0, 1, {});
  work.append_blocks = {{6}, {0, 1}};
  EXPECT_THROW(pack_next({.slots = {open}, .seqs = {work}, .tokens = {1}}), std::logic_error);
}

TEST_F(SlotTableTest, ACachedPrefixIsNotRunAgain) {
  step::SlotEdit resumed = edit(1, 1);
  resumed.blocks = {{5, 6}};
  step::SeqWork rest = prompt(1, 1, 0, 2, {3});
  rest.kv_len = 8;
  pack({.slots = {resumed}, .seqs = {rest}, .tokens = {11, 12}});
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(packed_.kv_slot[0], (std::vector<int32_t>{12, 13}));
  EXPECT_EQ(triples(packed_.edits.blocks), (std::vector<Triple>{{1, 0, 5}, {1, 1, 6}, {1, 2, 3}}));
}

TEST_F(SlotTableTest, PacksWhatEachRowSamplesBy) {
  step::SlotEdit first = edit(0, 1);
  first.sampling.temperature = 0;
  first.sampling.stop_ids = {13, 14};
  step::SlotEdit second = edit(1, 1, 17);
  second.sampling.seed = uint64_t{1} << 40;
  second.sampling.top_k = 7;
  second.sampling.num_logprobs = 3;
  second.sampling.stop_ids = {15};
  second.sampling.logit_bias = {{4, 1.5f}, {5, -2.0f}};
  pack({.slots = {first}, .seqs = {prompt(0, 1, 0, 2, {0})}, .tokens = {1, 2}});
  EXPECT_TRUE(packed_.all_greedy);
  EXPECT_FALSE(packed_.any_logprobs || packed_.any_changed);
  pack({.slots = {second}, .seqs = {decode(0, 1, 2), prompt(1, 1, 0, 2, {1})}, .tokens = {1, 2}});
  EXPECT_FALSE(packed_.all_greedy);
  EXPECT_TRUE(packed_.any_logprobs && packed_.any_changed);
  EXPECT_EQ(packed_.lists, (std::vector<int32_t>{13, 14, 15, 4, std::bit_cast<int32_t>(1.5f), 5,
                                                 std::bit_cast<int32_t>(-2.0f)}));
  ASSERT_EQ(packed_.num_sampled(), 2);
  const ops::SampleRow& row = packed_.sample_rows[1];
  EXPECT_EQ(row.seed, uint64_t{1} << 40);
  EXPECT_EQ(row.top_k, 7);
  EXPECT_EQ(row.num_logprobs, 3);
  EXPECT_EQ(row.stop_begin, 2);
  EXPECT_EQ(row.num_stop_ids, 1);
  EXPECT_EQ(row.bias_begin, 3);
  EXPECT_EQ(row.num_bias, 2);
  EXPECT_EQ(row.max_len, 17);
}

TEST_F(SlotTableTest, CountsHistoryForPenalties) {
  step::SlotEdit open = edit(0, 1);
  open.sampling.frequency_penalty = 1;
  open.history = {4, 4, 9, 6, 6};
  open.history_prompt_len = 3;
  open.prompt_len = 3;
  open.num_output = 2;
  open.sampling.stop_ids = {1};
  open.sampling.min_tokens = 4;
  pack({.slots = {open}, .seqs = {prompt(0, 1, 0, 1, {0})}, .tokens = {4}});
  EXPECT_EQ(packed_.edits.opened[0].has_counts, 1);
  EXPECT_EQ(triples(packed_.edits.history),
            (std::vector<Triple>{{0, 4, 1}, {0, 4, 1}, {0, 9, 1}, {0, 6, 0}, {0, 6, 0}}));
  EXPECT_EQ(packed_.sample_rows[0].has_penalties, 1);
  EXPECT_EQ(packed_.sample_rows[0].stop_from, 7);  // behind four tokens of output
  // Without a penalty nothing is counted.
  pack({.slots = {edit(0, 2)}, .seqs = {prompt(0, 2, 0, 1, {0})}, .tokens = {4}});
  EXPECT_EQ(packed_.edits.opened[0].has_counts, 0);
  EXPECT_TRUE(packed_.edits.history.empty());
  EXPECT_EQ(packed_.sample_rows[0].has_penalties, 0);
}

// The rows of the first iteration, and the state of the slots behind the last.
TEST_F(SlotTableTest, ARepeatedStepMovesItsSlotsByAllIterations) {
  step::SlotEdit first = edit(0, 1);
  first.sampling.stop_ids = {1};
  first.sampling.min_tokens = 6;
  pack({.slots = {first, edit(1, 1, 5)},
        .seqs = {prompt(0, 1, 0, 2, {0}), prompt(1, 1, 0, 2, {1})},
        .tokens = {1, 2}});
  step::StepPlan plan;
  plan.seqs = {decode(0, 1, 2, {2}), decode(1, 1, 2)};  // slot 1 ends on its length
  plan.repeat = 4;
  pack(plan);
  EXPECT_EQ(packed_.repeat, 4);
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{2, 2}));
  EXPECT_EQ(packed_.kv_len, (std::vector<int32_t>{3, 3}));
  EXPECT_EQ(packed_.sample_rows[0].position, 3);
  EXPECT_EQ(packed_.sample_rows[0].stop_from, 6);
  pack({.slots = {}, .seqs = {decode(0, 1, 6)}, .tokens = {}});
  EXPECT_EQ(packed_.repeat, 1);
  EXPECT_EQ(packed_.sample_rows[0].position, 7);
  EXPECT_EQ(packed_.sample_rows[0].stop_from, 6);
}

TEST_F(SlotTableTest, PaddingBelongsToNobody) {
  pack({.slots = {edit(0, 1)}, .seqs = {prompt(0, 1, 0, 1, {3})}, .tokens = {8}});
  pad_step(3, 3, kCapacity, packed_);
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{8, 0, 0}));
  EXPECT_EQ(packed_.kv_slot[0], (std::vector<int32_t>{12, -1, -1}));
  EXPECT_EQ(packed_.q_begin, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(packed_.kv_len, (std::vector<int32_t>{1, 0, 0}));
  EXPECT_EQ(packed_.table_row, (std::vector<int32_t>{0, 4, 4}));
  EXPECT_EQ(packed_.logits_rows, (std::vector<int32_t>{0, 1, 2}));
  ASSERT_EQ(packed_.num_sampled(), 3);
  EXPECT_EQ(packed_.sample_rows[2].slot, 4);
  EXPECT_EQ(packed_.sampled_seq.size(), 1u);
}

TEST_F(SlotTableTest, ASequenceWithDraftsSamplesAtEachPosition) {
  step::SlotEdit open = edit(0, 1);
  open.prompt_len = 2;
  open.sampling.stop_ids = {7};
  open.sampling.min_tokens = 3;
  pack({.slots = {open, edit(1, 1)},
        .seqs = {prompt(0, 1, 0, 2, {3, 4}), prompt(1, 1, 0, 1, {5})},
        .tokens = {8, 9}});
  step::SeqWork masked = drafted(0, 1, 2, 1, 2);
  masked.constrained = true;
  pack({.slots = {}, .seqs = {masked, decode(1, 1, 1)}, .tokens = {40, 41, 42}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{-1, 41, 42, -2}));
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{2, 3, 4, 1}));
  EXPECT_EQ(packed_.kv_slot[0], (std::vector<int32_t>{14, 15, 16, 21}));
  EXPECT_EQ(packed_.logits_rows, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(packed_.sampled_seq, (std::vector<int32_t>{0, 0, 0, 1}));
  EXPECT_EQ(packed_.num_masks, 3);
  const std::array<int32_t, 3> drafts = {41, 42, -1};
  for (int32_t i = 0; i < 3; ++i) {
    const ops::SampleRow& row = packed_.sample_rows[static_cast<size_t>(i)];
    EXPECT_EQ(row.position, 3 + i);
    EXPECT_EQ(row.draft, drafts[static_cast<size_t>(i)]);
    EXPECT_EQ(row.mask_row, i);
    EXPECT_EQ(row.stop_from, 5);
    EXPECT_EQ(row.stop_begin, 0);  // one list for all
  }
  EXPECT_EQ(packed_.sample_rows[3].draft, -1);
  EXPECT_EQ(packed_.sample_rows[3].mask_row, -1);
  // Of the two drafts both, one or none may have been right.
  pack({.slots = {}, .seqs = {decode(0, 1, 5)}, .tokens = {}});
  pack({.slots = {}, .seqs = {decode(0, 1, 5)}, .tokens = {}});  // and now the host knows: one
  EXPECT_THROW(pack({.slots = {}, .seqs = {decode(0, 1, 4)}, .tokens = {}}), std::logic_error);
  EXPECT_THROW(pack({.slots = {}, .seqs = {decode(0, 1, 8)}, .tokens = {}}), std::logic_error);
}

// The drafts of a guess that a slot keeps have no tokens until the step begins on the device.
TEST_F(SlotTableTest, ASequenceTakesWhatItsSlotGuesses) {
  step::Capacity capacity = kCapacity;
  capacity.drafts.guesses = capacity.drafts.guesses_from_rows = true;
  capacity.drafts.takes_trees = false;
  capacity.drafts.keeps_guesses = true;
  capacity.drafts.look_up = {.min_n = 1, .max_n = 2};
  SlotTable slots(capacity);
  const auto pack_next = [&](step::StepPlan plan) {
    plan.id = ++last_step_;
    pack_step(plan, capacity, slots, packed_);
  };
  step::SlotEdit open = edit(0, 1);
  open.prompt_len = open.history_prompt_len = 2;
  open.history = {8, 9};
  step::SeqWork first = prompt(0, 1, 0, 2, {3, 4});
  first.guess = {.begin = 2, .num_guess = 2};
  pack_next({.slots = {open}, .seqs = {first}, .tokens = {8, 9}});
  ASSERT_EQ(packed_.edits.kept.size(), 2u);
  EXPECT_EQ(packed_.edits.kept[1].slot, 0);
  EXPECT_EQ(packed_.edits.kept[1].position, 1);
  EXPECT_EQ(packed_.edits.kept[1].token, 9);
  EXPECT_TRUE(packed_.edits.history.empty());  // nothing counts it
  EXPECT_EQ(packed_.sample_rows[0].num_guess, 2);

  step::SeqWork taking = drafted(0, 1, 2, 0, 2);
  taking.takes_guess = true;
  taking.guess = {.begin = 3, .num_guess = 1};
  pack_next({.slots = {}, .seqs = {taking}, .tokens = {}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{-1, -1, -1}));
  EXPECT_EQ(packed_.sample_rows[0].num_guess, 1);
  EXPECT_EQ(packed_.sample_rows[1].num_guess, 0);
  EXPECT_EQ(packed_.sample_rows[0].draft, ops::kNoDraft);
  EXPECT_EQ(packed_.sample_rows[1].draft, ops::kNoDraft);
  EXPECT_EQ(packed_.sample_rows[2].draft, -1);

  // Behind them, before it is known how many were right: more than were asked for are refused.
  step::SeqWork next = drafted(0, 1, 5, 0, 2);
  next.takes_guess = true;
  EXPECT_THROW(pack_next({.slots = {}, .seqs = {next}, .tokens = {}}), std::logic_error);
  next = drafted(0, 1, 5, 0, 1);
  next.takes_guess = true;
  pack_next({.slots = {}, .seqs = {next}, .tokens = {}});
  // It asked for none.
  EXPECT_THROW(pack_next({.slots = {}, .seqs = {next}, .tokens = {}}), std::logic_error);
}

// Two guesses at one token: of one position, behind one row.
TEST_F(SlotTableTest, ATreeHasPositionsOfItsOwnAndPlacesOfAChain) {
  pack({.slots = {edit(0, 1), edit(1, 1)},
        .seqs = {prompt(0, 1, 0, 2, {3, 4}), prompt(1, 1, 0, 1, {5})},
        .tokens = {8, 9}});
  step::SeqWork tree = drafted(0, 1, 2, 1, 2);
  tree.tree.add(0);
  tree.tree.add(0);
  pack({.slots = {}, .seqs = {decode(1, 1, 1), tree}, .tokens = {40, 41, 42}});
  EXPECT_EQ(packed_.ids, (std::vector<int32_t>{-2, -1, 41, 42}));
  EXPECT_EQ(packed_.positions, (std::vector<int32_t>{1, 2, 3, 3}));
  EXPECT_EQ(packed_.kv_slot[0], (std::vector<int32_t>{21, 14, 15, 16}));
  EXPECT_EQ(packed_.max_q_len, 1);  // of those that are no trees
  EXPECT_EQ(packed_.ancestors, (std::vector<uint64_t>{0, 0b1, 0b11, 0b101}));
  EXPECT_EQ(packed_.kv_len, (std::vector<int32_t>{2, 5}));
  for (int32_t i = 0; i < 3; ++i) {
    const ops::SampleRow& row = packed_.sample_rows[static_cast<size_t>(1 + i)];
    EXPECT_EQ(row.position, i == 0 ? 3 : 4);
    EXPECT_EQ(row.draft, -1);
    EXPECT_EQ(row.parent_up, i);
    EXPECT_EQ(row.own_draft, i == 0 ? -1 : 40 + i);
  }
  // One of them may have been right.
  EXPECT_THROW(pack({.slots = {}, .seqs = {decode(0, 1, 5)}, .tokens = {}}), std::logic_error);
  pack({.slots = {}, .seqs = {decode(0, 1, 4)}, .tokens = {}});
  EXPECT_TRUE(packed_.ancestors.empty());
}

// exec.X1
TEST_F(SlotTableTest, RefusesPlansThatBreakTheContract) {
  const auto refused = [&](step::StepPlan plan) {
    plan.tokens.resize(4, 1);
    EXPECT_THROW(pack(std::move(plan)), std::logic_error);
  };
  pack({.slots = {edit(0, 5)}, .seqs = {prompt(0, 5, 0, 2, {0})}, .tokens = {1, 2}});

  refused({.slots = {edit(4, 1)}, .seqs = {}, .tokens = {}});               // no slot
  refused({.slots = {edit(0, 5)}, .seqs = {}, .tokens = {}});               // opened twice
  refused({.slots = {edit(1, 1, 25)}, .seqs = {}, .tokens = {}});           // max_len
  refused({.slots = {}, .seqs = {prompt(2, 1, 0, 1, {1})}, .tokens = {}});  // not open
  refused({.slots = {}, .seqs = {decode(0, 4, 2)}, .tokens = {}});          // generation
  refused({.slots = {}, .seqs = {decode(0, 5, 3)}, .tokens = {}});          // kv_len
  refused(
      {.slots = {}, .seqs = {decode(0, 5, 2), decode(0, 5, 3)}, .tokens = {}});    // twice the same
  refused({.slots = {edit(1, 2)}, .seqs = {decode(1, 2, 0, {1})}, .tokens = {}});  // no carry
  refused({.slots = {edit(1, 3)}, .seqs = {prompt(1, 3, 0, 1, {10})}, .tokens = {}});  // block id
  refused({.slots = {edit(1, 4)}, .seqs = {prompt(1, 4, 0, 4, {})}, .tokens = {}});    // no block
  refused({.slots = {edit(1, 5)}, .seqs = {prompt(1, 5, 2, 3, {1})}, .tokens = {}});   // tokens
  refused({.slots = {edit(1, 6, 4)}, .seqs = {prompt(1, 6, 0, 4, {1})}, .tokens = {}});
  refused({.slots = {edit(1, 8), edit(1, 9)}, .seqs = {}, .tokens = {}});  // twice in a step
  const auto repeated = [&](step::SeqWork work, int32_t repeat) {
    step::StepPlan plan;
    plan.slots = {edit(1, work.generation)};
    plan.seqs = {std::move(work)};
    plan.repeat = repeat;
    refused(std::move(plan));
  };
  refused({.slots = {}, .seqs = {drafted(0, 5, 2, 0, 3)}, .tokens = {}});  // more than there may be
  refused({.slots = {}, .seqs = {drafted(0, 5, 2, 3, 2)}, .tokens = {}});  // tokens
  step::SeqWork last_alone = drafted(0, 5, 2, 0, 1);
  last_alone.logits = step::LogitsWanted::kLast;
  refused({.slots = {}, .seqs = {last_alone}, .tokens = {}});
  step::SeqWork not_carried = drafted(0, 5, 2, 0, 1);
  not_carried.tokens = step::TokenSource::kHost;
  refused({.slots = {}, .seqs = {not_carried}, .tokens = {}});
  step::SeqWork half_a_tree = drafted(0, 5, 2, 0, 2);
  half_a_tree.tree.add(0);
  refused({.slots = {}, .seqs = {half_a_tree}, .tokens = {}});
  repeated(prompt(1, 20, 0, 1, {1}), 9);  // more iterations than there may be
  repeated(prompt(1, 21, 0, 2, {1}), 2);  // not a single token
  repeated(prompt(1, 22, 0, 1, {1}), 5);  // blocks for four
  step::SlotEdit greedy_for_stops = edit(1, 10);
  greedy_for_stops.sampling.stop_ids.resize(step::kMaxStopIds + 1);
  refused({.slots = {greedy_for_stops}, .seqs = {}, .tokens = {}});
  refused(
      {.slots = {edit(1, 11)}, .seqs = {prompt(1, 11, 0, 1, {1, 2, 3, 4, 5, 6, 7})}, .tokens = {}});
  refused({.slots = {edit(1, 7)}, .seqs = {prompt(1, 7, 0, 2, {1})}, .tokens = {1, 50}});
}

}  // namespace
}  // namespace rudder::exec
