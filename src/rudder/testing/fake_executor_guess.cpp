// FakeExecutor: what it guesses behind a step, and how long that takes.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "rudder/testing/fake_executor.h"
#include "rudder/testing/fake_model.h"

namespace rudder::testing {

void FakeExecutor::time_guesses(const step::StepPlan& plan, InFlight& step) {
  int32_t num_guess = 0;
  for (const step::SeqWork& work : plan.seqs) num_guess = std::max(num_guess, work.guess.num_guess);
  const bool sets_up = num_guess > 0 && num_guessed_++ < options_.num_setups;
  step.guess_us = options_.guess_us * num_guess + (sets_up ? options_.setup_us : 0);
  step.told_guess_us = sets_up && options_.knows_setups ? 0 : step.guess_us;
}

void FakeExecutor::run_guess(const step::SeqWork& work, const Slot& slot, step::SeqResult* result) {
  const bool is_sampled = !result->tokens.empty();
  const FakeProposer::Sequence sequence = {
      .token_at =
          [&](int32_t position) {
            return position == slot.kv_len ? *slot.carry
                                           : cell(slot, proposer_->group(), position).token;
          },
      .row_at = [&](int32_t position) { return cell(slot, proposer_->group(), position).row; },
      .len = slot.kv_len + (is_sampled ? 1 : 0),
      .max_len = slot.max_len,
      .blocks = slot.blocks};
  const std::vector<int32_t> right =
      is_sampled ? next_tokens(slot, work.guess.num_guess) : std::vector<int32_t>();
  std::vector<std::string> wrong;
  result->guess = proposer_->run(work, sequence, right, &wrong);
  for (std::string& text : wrong) violation(std::move(text));
}

// What comes behind the carried token, if nothing steers it and no mask holds it back.
std::vector<int32_t> FakeExecutor::next_tokens(const Slot& slot, int32_t count) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> history = slot.history;
  uint64_t hash = cell(slot, 0, slot.kv_len - 1).prefix_hash;
  int32_t token = *slot.carry;
  for (int32_t i = 1; i <= count; ++i) {
    hash = extend_hash(hash, token);
    token = testing::sample_token({.prefix_hash = hash,
                                   .position = slot.kv_len + i,
                                   .num_output = slot.num_output + i - 1,
                                   .max_len = slot.max_len,
                                   .vocab_size = options_.capacity.vocab_size,
                                   .sampling = slot.sampling,
                                   .history = history,
                                   .history_prompt_len = slot.history_prompt_len})
                .token;
    if (slot.sampling.needs_history()) history.push_back(token);
    tokens.push_back(token);
  }
  return tokens;
}

}  // namespace rudder::testing
