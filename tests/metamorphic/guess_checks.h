// What holds of everything that an executor guesses with by itself: draft models, draft heads,
// Medusa heads, assistants.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "metamorphic/guess_notes.h"
#include "metamorphic/harness.h"

namespace rudder::metamorphic {

// How steps are made up and launched.
struct GuessWay {
  Backend device;
  int32_t budget;  // tokens of a step
  int32_t in_flight;
};
// Whole prompts, one step in flight; chunks and run-ahead; run-ahead on a device that lags behind.
std::vector<GuessWay> guess_ways(const Backend& backend);
sched::SchedSettings guess_settings(const GuessWay& way);

// Not every sequence of the checks fits at once.
inline constexpr step::Capacity kGuessTight = {.num_slots = 16,
                                               .num_blocks = 12,
                                               .block_size = 16,
                                               .max_tokens_per_step = 96,
                                               .max_seq_len = 256,
                                               .vocab_size = 160,
                                               .max_in_flight = 3,
                                               .max_repeat = 4,
                                               .drafts = {.max_draft = 5}};

// A fresh executor that guesses.
using MakeGuessing =
    std::function<std::unique_ptr<exec::DeviceExecutor>(const GuessWay&, const step::Capacity&)>;

// Of a place at which both guessed, as far as both did: how long a guess is follows from what the
// scheduler has in flight. More than `least` tokens are compared.
void expect_same_guesses(const GuessNotes::Notes& alone, const GuessNotes::Notes& together,
                         const std::string& what, size_t least);

// Tokens, logprobs, scores and captured rows are those of plain decoding, bit for bit (step.I11):
// of masked, steered and captured sequences drawn by `seed`, with every guess verified and with
// those that pay, and with preemption.
void expect_text_of_plain_decoding(const Pair& pair, uint32_t seed, const MakeGuessing& make);

// A guess depends on the tokens before it alone: not on the steps that ran them, on what else was
// in them, on drafts that were rejected, on preemption, on which blocks they lie in or on who
// computed these.
void expect_guesses_of_tokens_alone(const Pair& pair, const MakeGuessing& make);

}  // namespace rudder::metamorphic
