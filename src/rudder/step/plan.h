// StepPlan: everything that the scheduler tells the executor about one step. Immutable once
// launched. Normative text: docs/contracts/step.md.
//
// A step is a list of sequences; each runs q_len tokens starting at position kv_len and says at
// which of them it wants logits. The types know no prefill and no decode.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/lora/adapter.h"
#include "rudder/step/cache_objects.h"
#include "rudder/step/draft_tree.h"
#include "rudder/step/ids.h"
#include "rudder/step/records.h"
#include "rudder/step/sampling.h"
#include "rudder/tap/capture.h"
#include "rudder/tap/program.h"

namespace rudder::step {

enum class TokenSource : uint8_t {
  kHost,  // StepPlan.tokens[token_begin, token_begin + q_len)
  // The slot's last sampled token, still on the device, then the sequence's drafts:
  // StepPlan.tokens[token_begin, token_begin + num_draft), or the slot's guess; q_len is 1 +
  // num_draft.
  kCarry,
};

enum class LogitsWanted : uint8_t {
  kNone,  // a chunk that is not the last
  kLast,  // sample after the last of the q_len positions
  kAll,   // after each of them: a sequence with drafts
};

// From this token of the sequence on, until the next span, tokens use the program of `tap_row`.
struct TapSpan {
  int32_t q_begin = 0;
  int32_t tap_row = 0;
};

// These tokens of the sequence are captured.
struct CaptureSpan {
  int32_t q_begin = 0;
  int32_t q_len = 0;
};

// What the executor's own proposer does behind a sequence's part of a step (DraftCaps::guesses).
struct GuessWork {
  // It runs these tokens of the sequence, which stand at `begin` and behind it; none where
  // DraftCaps::guesses_from_rows.
  int32_t begin = 0;
  std::vector<int32_t> tokens = {};
  // Then the tokens that the step samples, and guesses so many that follow them, at most; 0: it
  // does neither. Above 0 the tokens that it has run reach up to the first that the step samples;
  // where DraftCaps::keeps_guesses one may be missing, and all that steps with such work sampled.
  int32_t num_guess = 0;

  bool empty() const { return tokens.empty() && num_guess == 0; }
};

struct SeqWork {
  SlotId slot;
  uint32_t generation = 0;  // of the slot; the executor checks it and results carry it
  // Tokens already in KV; of a kCarry sequence behind one with drafts whose result was not
  // collected when this one was planned, the most that there may be: such a sequence begins where
  // its slot ends.
  int32_t kv_len = 0;
  int32_t q_len = 0;  // tokens to run now, >= 1
  TokenSource tokens = TokenSource::kHost;
  LogitsWanted logits = LogitsWanted::kNone;
  // Tokens that are guessed to follow the carried one. The sequence gives 1 to 1 + num_draft
  // tokens: each position's own sample, up to and with the first that is no draft behind it.
  int32_t num_draft = 0;
  // They are the guess that the slot has from the last step that sampled for it, which asked for as
  // many or more (DraftCaps::keeps_guesses); StepPlan.tokens has none. Those that the guess has not
  // are wrong, whatever comes.
  bool takes_guess = false;
  // Which of them follow which; empty: a chain. Row i's position is kv_len + tree.depth(i), and
  // until its step is over its KV lies at kv_len + i.
  DraftTree tree = {};
  // Its tokens are sampled under masks, one for each position that wants logits, which
  // Executor::supply() brings; only where logits are wanted.
  bool constrained = false;
  int32_t token_begin = 0;  // into StepPlan.tokens, for kHost and for drafts of the host
  // The tokens of the prompt that follow those of the sequence from `score_begin` on: how likely
  // they were is wanted. Not in a plan that is repeated.
  int32_t score_begin = 0;
  std::vector<int32_t> score_tokens = {};
  // By KV group: appended to the slot's block tables before the step runs. Empty: nothing is.
  std::vector<GroupTable> append_blocks = {};
  int32_t tap_row = 0;                     // the program of the first token; 0 = none
  std::vector<TapSpan> tap_spans = {};     // where it changes, ascending, q_begin > 0
  int32_t capture_set = -1;                // of the captured tokens
  std::vector<CaptureSpan> captures = {};  // ascending, disjoint
  GuessWork guess = {};                    // not in a plan that is repeated
  int32_t adapter_row = lora::kNoRow;      // of the adapter table, of all its tokens

  // Drafts of it that can be right, and the tokens that are in KV behind its step if these are.
  int32_t most_accepted() const { return tree.empty() ? num_draft : tree.depth(); }
  int32_t longest_len() const { return kv_len + q_len - num_draft + most_accepted(); }
  // Behind its first position.
  int32_t depth(int32_t row) const { return tree.empty() ? row : tree.depth(row); }
};

// Opens a slot, or re-opens it under a new generation: edits are applied, in order, before the step
// runs. A slot needs no close: a new generation replaces what it held.
struct SlotEdit {
  SlotId slot;
  uint32_t generation = 0;
  SamplingParams sampling;
  std::vector<GroupTable> blocks;  // by KV group: the block table so far (cached prefix); or none
  // Where the executor has states (Capacity::states): the sequence's object. It is as behind the
  // last token in `blocks` when the step begins: by a copy of StepPlan.copies_before, or empty
  // where `blocks` has none.
  StateId state = kNoState;
  int32_t prompt_len = 0;  // the generation begins at this position
  int32_t num_output = 0;  // output tokens already sampled (a resumed sequence)
  int32_t max_len = 0;     // the sequence ends when prompt and output together reach it
  // Prompt and output so far when sampling.needs_history() or DraftCaps::keeps_guesses, else empty.
  std::vector<int32_t> history;
  int32_t history_prompt_len = 0;  // the first this many of `history` are the prompt
};

// A dictionary of a program and where the table has it; with `is_new` the edit brings it.
struct TableDictionary {
  int64_t first_float = 0;  // a multiple of tap::kVectorAlign
  bool is_new = false;
  std::shared_ptr<const tap::DictionaryImage> image = {};
};

// A row of the tap table gets a program: edits are applied, in order, before the step runs. Row 0
// is never edited.
struct TapEdit {
  int32_t tap_row = 0;
  int32_t first_op = 0;     // of the program, among the ops of the table
  int64_t first_float = 0;  // of its vectors; a multiple of tap::kVectorAlign
  std::shared_ptr<const tap::Program> program = {};  // null: the row is empty again
  std::vector<TableDictionary> dictionaries = {};    // of program->dictionaries, in their order
};

// A row of the adapter table gets an adapter: edits are applied, in order, before the step runs.
struct AdapterEdit {
  int32_t adapter_row = 0;
  std::shared_ptr<const lora::Adapter> adapter = {};
};

struct CaptureEdit {
  int32_t capture_set = 0;
  std::shared_ptr<const tap::CaptureSet> set = {};  // null: it is empty again
};

struct StepPlan {
  StepId id = 0;
  std::vector<SlotEdit> slots;
  std::vector<SeqWork> seqs;
  std::vector<int32_t> tokens;
  std::vector<TapEdit> tap_edits = {};  // a plan of nothing but edits is a step too
  std::vector<CaptureEdit> capture_edits = {};
  std::vector<AdapterEdit> adapter_edits = {};
  // Of whole objects, in order: done behind the slots' edits, before a sequence of the step reads
  // or writes anything (where StatePool::slow_copies, they may take longer); and behind the step's
  // last write.
  std::vector<ObjectCopy> copies_before = {};
  std::vector<ObjectCopy> copies_after = {};
  // Of records, begun in any order once the step is launched, beside it and those that follow:
  // StepResult::records_done says which are done.
  std::vector<RecordCopy> record_copies = {};
  // Iterations of the step. After the first, each sequence runs again on the token that it has just
  // sampled, one position further, until it ends. Above 1 only where every sequence is a single
  // token that wants logits and is neither drafted for, captured nor constrained; its append_blocks
  // reach as far as seq_iterations() goes, and its tap row is that of every iteration.
  int32_t repeat = 1;

  int32_t num_tokens() const {
    int32_t total = 0;
    for (const SeqWork& seq : seqs) total += seq.q_len;
    return total;
  }
  // That supply() brings.
  int32_t num_masks() const {
    int32_t total = 0;
    for (const SeqWork& seq : seqs) total += seq.constrained ? 1 + seq.num_draft : 0;
    return total;
  }
};

// The iterations of `repeat` in which a sequence can run; in the others it has ended on its length.
inline int32_t seq_iterations(const SeqWork& work, int32_t repeat, int32_t max_len) {
  return std::min(repeat, max_len - work.kv_len - work.q_len);
}

}  // namespace rudder::step
