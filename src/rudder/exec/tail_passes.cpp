#include "rudder/exec/tail_passes.h"

#include <algorithm>
#include <vector>

namespace rudder::exec {
namespace {

// Where a head leaves what goes on behind each row of logits, and what its next guess goes on from.
std::vector<int32_t> rows_of_slots(const PackedStep& packed) {
  std::vector<int32_t> rows;
  rows.reserve(packed.sample_rows.size());
  for (const ops::SampleRow& row : packed.sample_rows) rows.push_back(row.slot);
  return rows;
}

}  // namespace

Result<Setup> TailPasses::enqueue(std::span<const GuessAsk> asks) {
  setup_ = {};
  entry_ = (entry_ + kPasses) % static_cast<size_t>(capacity_.max_in_flight);
  RUDDER_TRY_VOID(enqueue_named(asks));
  RUDDER_TRY_VOID(enqueue_tails(asks));
  RUDDER_TRY_VOID(enqueue_guesses(asks));
  return setup_;
}

// The tokens that the plan names, no more than a pass has room for.
Result<void> TailPasses::enqueue_named(std::span<const GuessAsk> asks) {
  parts_.packer.clear();
  for (const GuessAsk& ask : asks) {
    std::span<const int32_t> named = ask.tokens;
    if (is_head_ && ask.begin == 0 && !named.empty()) named = named.subspan(1);
    if (named.empty()) continue;
    parts_.packer.open(ask);
    parts_.packer.add_tokens(ask, ask.end() - static_cast<int32_t>(named.size()), named);
  }
  return enqueue_pass(kNamed, 1);
}

// The last tokens of each sequence, which give its first guess.
Result<void> TailPasses::enqueue_tails(std::span<const GuessAsk> asks) {
  parts_.packer.clear();
  for (const GuessAsk& ask : asks) {
    if (ask.num_guess == 0) continue;
    parts_.packer.open(ask);
    parts_.packer.add_tail(ask, std::max(2, is_head_ ? 1 + ask.num_draft : 0), 0);
  }
  return enqueue_pass(kTails, 1);
}

// Each guess but the last gives the next one.
Result<void> TailPasses::enqueue_guesses(std::span<const GuessAsk> asks) {
  parts_.packer.clear();
  int32_t longest = 0;
  for (const GuessAsk& ask : asks) {
    if (ask.num_guess < 2) continue;
    parts_.packer.add_tail(ask, 1, 1);
    longest = std::max(longest, ask.num_guess);
  }
  if (is_head_) parts_.packer.packed.guesses.goes_on_rows = rows_of_slots(parts_.packer.packed);
  return enqueue_pass(kGuesses, longest - 1);
}

void TailPasses::place(const DeviceStep& step, int32_t num_ahead) {
  parts_.ops.draft_ops()->place_tails({.model = slots_,
                                       .own = step.sample.state,
                                       .q_begin = step.forward.attention.q_begin,
                                       .table_row = step.forward.attention.table_row,
                                       .ids = step.forward.ids,
                                       .positions = step.forward.positions,
                                       .kv_slot = step.forward.kv_slot,
                                       .kv_len = step.forward.attention.kv_len,
                                       .logits_rows = step.forward.logits_rows,
                                       .sample_rows = step.sample.rows,
                                       .num_ahead = num_ahead,
                                       .shift = is_head_ ? 1 : 0,
                                       .block_size = capacity_.block_size});
}

// What is packed, if anything. Each iteration leaves a token more of the guesses in the slots.
Result<void> TailPasses::enqueue_pass(Pass pass, int32_t num_iterations) {
  PackedStep& packed = parts_.packer.packed;
  if (packed.num_tokens() == 0) return {};
  const bool samples = packed.num_sampled() > 0;
  if (is_head_ && samples) packed.guesses.feedback_rows = rows_of_slots(packed);
  const int32_t num_ahead = pass == kGuesses ? 1 : 0;
  const bool is_captured = parts_.graphs != nullptr && parts_.graphs->pad(packed, setup_);
  RUDDER_TRY(DeviceStep step, parts_.buffers.begin(packed, entry_ + pass));
  if (samples) place(step, num_ahead);
  if (is_captured) RUDDER_TRY_VOID(parts_.graphs->capture(step, setup_));
  for (int32_t i = 0; i < num_iterations; ++i) {
    if (i > 0) parts_.buffers.advance(step);
    run_packed(parts_.ops, parts_.decoder, is_captured ? parts_.graphs : nullptr, step);
    if (!samples) continue;
    parts_.ops.draft_ops()->keep_guess({.model = slots_,
                                        .rows = step.sample.rows,
                                        .sampled = step.sample.sampled,
                                        .index = num_ahead + i});
  }
  return {};
}

}  // namespace rudder::exec
