// PassPacker: packs passes of a draft model or head (pass_proposer.h): tokens of sequences, in the
// blocks that these have, and what the device lacks of their block tables. The executor's worker
// thread uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/exec/guess_asks.h"
#include "rudder/exec/pack.h"
#include "rudder/step/executor.h"

namespace rudder::exec {

class PassPacker {
 public:
  PassPacker() = default;
  // `capacity` is of the passes; their KV lies beside the blocks of `group`, a group of the model.
  // A token is run `shift` positions before its own.
  PassPacker(const step::Capacity& capacity, size_t group, int32_t shift);

  void clear();
  // The slot as if it were new, with the blocks that it has by now.
  void open(const GuessAsk& ask);
  // Tokens of the sequence, of which the host knows that they stand from `begin` on.
  void add_tokens(const GuessAsk& ask, int32_t begin, std::span<const int32_t> tokens);
  // So many tokens that ops::PlaceTailsArgs finds, and a row of logits of the last one.
  void add_tail(const GuessAsk& ask, int32_t q_len, int32_t num_ahead);
  // Of the token that is added: its KV lies where the sequence has that of its token at `offset`.
  void add_kv_slot(const GuessAsk& ask, int32_t offset);
  // Of the tokens that were added last.
  void add_sequence(const GuessAsk& ask, int32_t num_tokens, int32_t kv_len);

  PackedStep packed;

 private:
  // Of a slot's blocks, those that the device's table has.
  struct Written {
    uint32_t generation = 0;
    size_t num_blocks = 0;
  };

  step::Capacity capacity_;
  size_t group_ = 0;
  int32_t shift_ = 0;
  std::vector<Written> written_;  // by slot
};

}  // namespace rudder::exec
