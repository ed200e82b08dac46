#include "rudder/sched/step_builder.h"

#include <algorithm>

#include "rudder/base/mutants.h"

namespace rudder::sched {

void StepBuilder::add(Sequence& sequence, int32_t q_len, int32_t old_len) {
  const RunState& run = sequence.run;
  const int32_t uncomputed = sequence.uncomputed();
  step::SeqWork& work = plan().seqs.emplace_back();
  work.slot = run.slot;
  work.generation = run.generation;
  work.kv_len = run.planned_len;
  work.q_len = q_len;
  if (run.has_carry) {
    work.num_draft = q_len - 1;
    work.takes_guess = sequence.draft.own > 0;
    work.tree = sequence.draft.tree;
  }
  if (sequence.taps.record_elements() > 0) work.captures = spare.take_spans();
  elements_left -= sequence.taps.write(work);
  write_tokens(sequence, work);
  if (sequence.sampling.num_prompt_logprobs >= 0) write_scores(sequence, work);
  if (q_len - work.num_draft == uncomputed) {
    work.logits = work.num_draft > 0 ? step::LogitsWanted::kAll : step::LogitsWanted::kLast;
  }
  drafts.add_guess(*this, sequence, work);
  write_blocks(sequence, old_len, work);
  advance(sequence, work);
  plan_checkpoint(sequence, work);
  shape.add(work);
  tokens_left -= q_len;
  record.sequences.push_back(&sequence);
  if (RUDDER_MUTANT(kPublishBeforeCompute)) {
    blocks.cache().publish(sequence.chain, sequence.tokens, sequence.tables,
                           std::min(run.planned_len, static_cast<int32_t>(sequence.tokens.size())));
  }
}

void StepBuilder::write_tokens(const Sequence& sequence, step::SeqWork& work) const {
  std::vector<int32_t>& tokens = plan().tokens;
  const auto end = static_cast<int32_t>(tokens.size());
  if (sequence.run.has_carry) {
    const std::vector<int32_t>& drafted = sequence.draft.tokens;
    work.tokens = step::TokenSource::kCarry;
    if (!drafted.empty()) work.token_begin = end;
    tokens.insert(tokens.end(), drafted.begin(), drafted.end());
  } else {
    work.token_begin = end;
    const auto begin = sequence.tokens.begin() + sequence.run.planned_len;
    tokens.insert(tokens.end(), begin, begin + work.q_len);
  }
}

// The logits of each token of the prompt score the one behind it, once: a preempted sequence does
// not ask again for what steps in flight bring.
void StepBuilder::write_scores(Sequence& sequence, step::SeqWork& work) {
  const int32_t scored = RUDDER_MUTANT(kScoredTwice) ? 0 : sequence.run.scored_len;
  const int32_t begin = std::max(work.kv_len, scored);
  const int32_t end = std::min(work.kv_len + work.q_len, sequence.prompt_len - 1);
  if (begin >= end) return;
  work.score_begin = begin - work.kv_len;
  const auto second = sequence.tokens.begin() + 1;
  work.score_tokens.assign(second + begin, second + end);
  sequence.run.scored_len = end;
}

void StepBuilder::write_blocks(const Sequence& sequence, int32_t old_len,
                               step::SeqWork& work) const {
  if (sequence.table_len() <= old_len) return;
  work.append_blocks = spare.take_tables(sequence.tables.size());
  for (size_t g = 0; g < sequence.tables.size(); ++g) {
    const std::vector<cache::BlockId>& table = sequence.tables[g].blocks;
    work.append_blocks[g].assign(table.begin() + old_len, table.end());
  }
}

// The sequence is where this step will have it, if it does not end and all its drafts are right.
void StepBuilder::advance(Sequence& sequence, step::SeqWork& work) {
  RunState& run = sequence.run;
  const int32_t most_accepted = work.most_accepted();
  const int32_t beside = work.num_draft - most_accepted;  // drafts that cannot be right as well
  run.planned_len += work.q_len - beside;
  if (work.logits != step::LogitsWanted::kNone) {
    const int32_t iterations = step::seq_iterations(work, plan().repeat, sequence.max_len);
    work.constrained = sequence.constrained;
    if (sequence.constrained) constrained.push_back(constrained_of(sequence));
    sequence.draft.guess_asked = work.guess.num_guess;
    sequence.draft.is_followed = work.guess.num_guess > 0;
    run.has_carry = true;
    run.samples_pending += iterations + most_accepted;
    run.drafts_pending += most_accepted;
    run.planned_len += iterations - 1;
  }
  run.reserved_len = std::max(run.reserved_len, run.planned_len + beside);
  sequence.draft.drop();
  ++run.inflight;
  run.last_step = plan().id;
}

// Behind the part's tokens, where one is wanted there and it is sure that the sequence has come so
// far. Only if there is a state that nobody needs.
void StepBuilder::plan_checkpoint(Sequence& sequence, const step::SeqWork& work) {
  const int32_t len = work.kv_len + work.q_len;
  const bool is_sure =
      work.num_draft == 0 && sequence.run.drafts_pending == 0 && plan().repeat == 1;
  if (!is_sure || !blocks.wants_checkpoint(sequence, len)) return;
  const cache::StateId state = blocks.cache().take_state();
  if (state == cache::kNoState) return;
  const int32_t num_blocks = len / blocks.block_size();
  plan().copies_after.push_back(
      {.from = step::state_ref(sequence.object), .to = step::state_ref(state)});
  record.checkpoints.push_back(
      {.seq = record.sequences.size(), .state = state, .num_blocks = num_blocks});
  if (RUDDER_MUTANT(kCheckpointBeforeCommit) && len <= std::ssize(sequence.tokens)) {
    blocks.cache().share_checkpoint(sequence.chain, sequence.tokens, num_blocks, sequence.object,
                                    state);
  }
}

}  // namespace rudder::sched
