// Packing: turns a StepPlan and the slots that it names into the flat arrays that one forward pass
// and one sample call read, still on the host. The executor's worker thread calls it; the buffers
// are reused from step to step.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/exec/pack_taps.h"
#include "rudder/exec/scorer.h"
#include "rudder/exec/slot_table.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

// Of a step where sequences have states; its copies.
struct PackedStates {
  std::vector<int32_t> state;      // of each sequence, -1: of padding
  std::vector<int32_t> num_draft;  // likewise
  std::vector<step::ObjectCopy> copies_before;
  std::vector<step::ObjectCopy> copies_after;

  void clear();
};

// Of a step of a draft head alone (ForwardBatch).
struct PackedGuesses {
  std::vector<int32_t> feedback_rows;  // by row of logits
  std::vector<int32_t> goes_on_rows;   // by token, of guesses behind guesses
};

struct PackedStep {
  SlotEdits edits;
  int32_t repeat = 1;

  std::vector<int32_t> ids;  // a token; -1 - slot where the device has it; -1 of a slot's guess
  std::vector<int32_t> positions;
  std::vector<std::vector<int32_t>> kv_slot;  // by KV group
  std::vector<int32_t> q_begin = {0};         // one more than sequences
  std::vector<int32_t> kv_len;
  std::vector<int32_t> table_row;
  int32_t max_q_len = 0;  // of sequences that are no trees
  int32_t max_kv_len = 0;
  std::vector<uint64_t> ancestors;  // ops::AttentionBatch.ancestors; of a step with trees alone

  std::vector<int32_t> logits_rows;
  std::vector<ops::SampleRow> sample_rows;  // one a logits row
  std::vector<int32_t> sampled_seq;         // likewise, but for padding: index into StepPlan.seqs
  std::vector<int32_t> lists;               // of the sample rows
  int32_t num_masks = 0;                    // of them, in order: the constrained ones
  bool all_greedy = true;
  bool any_logprobs = false;
  bool any_changed = false;
  bool any_drafts = false;

  PackedStates states;
  PackedGuesses guesses;
  PackedTaps taps;
  PackedScores scores;

  void clear();  // all but `taps`

  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t num_seqs() const { return static_cast<int64_t>(kv_len.size()); }
  int64_t num_sampled() const { return static_cast<int64_t>(sample_rows.size()); }
};

// Applies the plan's slot edits, then packs its sequences; without their taps (pack_taps.h).
void pack_step(const step::StepPlan& plan, const step::Capacity& capacity, SlotTable& slots,
               PackedStep& packed);

// Of a step with trees: chains of more than `most` tokens get words too, as trees of one path, so
// that no sequence without has more; as far as a tree may be as long.
void words_for_chains(int32_t most, PackedStep& packed);

// Appends padding to a step until it has so many tokens and sequences: one token a sequence as far
// as they go, what is left to the last. Padding belongs to the slot behind the last, sees no key
// and writes nothing. Of a step that samples every token it is sampled as well, for nobody.
void pad_step(int64_t num_tokens, int64_t num_seqs, const step::Capacity& capacity,
              PackedStep& packed);

}  // namespace rudder::exec
