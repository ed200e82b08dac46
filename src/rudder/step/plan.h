// StepPlan: what one step runs. Built by the scheduler, read by executors, immutable once launched;
// normative text in docs/contracts/step.md.
//
// A step is a list of sequences; each gives q_len tokens starting at kv_len and says at which of
// those positions it wants logits. There is no prefill and no decode in the types.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/step/ids.h"
#include "rudder/step/sampling.h"

namespace rudder::step {

enum class TokenSource : uint8_t {
  kHost,   // StepPlan.tokens[token_begin, token_begin + q_len)
  kCarry,  // the slot's last sampled token, still on the device; q_len is 1
};

enum class LogitsWanted : uint8_t {
  kNone,  // a chunk that is not the last
  kLast,  // sample after the last of the q_len positions
};

struct SeqWork {
  SlotId slot;
  uint32_t generation = 0;  // of the slot; the executor checks it and results carry it
  int32_t kv_len = 0;       // tokens already in KV
  int32_t q_len = 0;        // tokens to run now, >= 1
  TokenSource tokens = TokenSource::kHost;
  LogitsWanted logits = LogitsWanted::kNone;
  int32_t token_begin = 0;             // into StepPlan.tokens, for kHost
  std::vector<BlockId> append_blocks;  // appended to the slot's block table before the step runs
};

// Opens a slot, or re-opens it under a new generation: edits are applied, in order, before the step
// runs. A slot needs no close: a new generation replaces what it held.
struct SlotEdit {
  SlotId slot;
  uint32_t generation = 0;
  SamplingParams sampling;
  std::vector<BlockId> blocks;  // the slot's block table so far (cached prefix), in order
  int32_t num_output = 0;       // output tokens already sampled (a resumed sequence)
  int32_t max_len = 0;          // the row ends when prompt and output together reach it
  // Prompt and output so far when sampling.needs_history(), else empty.
  std::vector<int32_t> history;
  int32_t history_prompt_len = 0;  // the first this many of `history` are the prompt
};

struct StepPlan {
  StepId id = 0;
  std::vector<SlotEdit> slots;
  std::vector<SeqWork> seqs;
  std::vector<int32_t> tokens;

  int32_t num_tokens() const {
    int32_t total = 0;
    for (const SeqWork& seq : seqs) total += seq.q_len;
    return total;
  }
};

}  // namespace rudder::step
