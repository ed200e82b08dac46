// Runs sequences through the real scheduler and the real executor, as the engine does, and returns
// the tokens of each. For tests that compare two ways of running the same sequences.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "metamorphic/pairs.h"
#include "rudder/base/result.h"
#include "rudder/exec/device_executor.h"
#include "rudder/model/spec.h"
#include "rudder/ops/ops.h"
#include "rudder/sched/scheduler.h"
#include "rudder/step/executor.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {

// What was made, which a test cannot go on without.
template <typename T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().to_string());
  return std::move(*result);
}

// Room for every sequence of random_asks(16 or fewer) at once, whole prompts in one step.
inline constexpr step::Capacity kRoomy = {.num_slots = 16,
                                          .num_blocks = 512,
                                          .block_size = 16,
                                          .max_tokens_per_step = 512,
                                          .max_seq_len = 256,
                                          .vocab_size = 160,
                                          .max_in_flight = 3,
                                          .max_repeat = 8};
// All of that room, one step in flight, no block shared.
sched::SchedSettings plain_settings();

// Where layers of the model keep states, unless there are some: enough for every sequence and its
// prefixes, a checkpoint behind every block.
void give_states(step::Capacity& capacity, const model::ModelSpec& whole);
// The model's executor. Capacity and model get the KV groups of its layers, each with as many
// blocks as `capacity` says; states by give_states().
Result<std::unique_ptr<exec::DeviceExecutor>> start_executor(
    exec::DeviceExecutor::Model model, step::Capacity capacity,
    const exec::DeviceExecutor::Options& options = {});
// An executor over a tiny model with random weights.
std::unique_ptr<exec::DeviceExecutor> tiny_executor(
    const Backend& backend, testing::TinyArch arch, const step::Capacity& capacity,
    const exec::DeviceExecutor::Options& options = {});

// The same with a proposer of its own: a tiny model whose weights are drawn with `draft_seed`. With
// the model's own seed, kModelSeed, it is the model itself. With a tree it guesses that, and
// Capacity has it.
inline constexpr uint64_t kModelSeed = 7;
std::unique_ptr<exec::DeviceExecutor> guessing_executor(
    const Backend& backend, testing::TinyArch arch, testing::TinyArch draft_arch,
    uint64_t draft_seed, step::Capacity capacity, const step::RankedTree& tree = {});
// The same with a random draft head (testing::tiny_head_spec); with a tree, that of the capacity.
std::unique_ptr<exec::DeviceExecutor> head_executor(const Backend& backend, testing::TinyArch arch,
                                                    testing::TinyHead kind, step::Capacity capacity,
                                                    const step::RankedTree& tree = {});
// The same with random Medusa heads (testing::tiny_medusa_spec); with a tree, that of the capacity.
std::unique_ptr<exec::DeviceExecutor> medusa_executor(const Backend& backend,
                                                      testing::TinyArch arch, bool shares_lm_head,
                                                      step::Capacity capacity,
                                                      const step::RankedTree& tree = {});

// A plan whose slots have blocks of one KV group, for an executor of tiny_executor: each group gets
// as many, those of a slot in one group being no other's in another. And a state, where there are
// any.
std::shared_ptr<const step::StepPlan> in_groups(step::StepPlan plan,
                                                const step::Executor& executor);

// The mask of the token after `output`: nothing but the tokens so far, so that it does not matter
// when or how they were sampled. Null: any token may come.
using MaskFn = std::function<std::vector<uint32_t>(const std::vector<int32_t>& output)>;
// Of a vocabulary of 160: about one token in three, which ones hangs on every token before.
MaskFn hashed_mask(uint64_t seed);

struct Ask {
  std::vector<int32_t> prompt;
  step::SamplingParams sampling;
  int32_t max_len = 0;
  int32_t arrival = 0;  // rounds of launches and one collect before it is added
  std::shared_ptr<const tap::SequenceTaps> taps = {};
  MaskFn mask = {};
};

// Sequences of every kind; every third begins with one of two common prefixes. All of a
// vocabulary of 160.
std::vector<Ask> random_asks(int count, uint32_t seed, int32_t max_output = 40);
// The same, two of three constrained.
std::vector<Ask> random_masked_asks(int count, uint32_t seed, int32_t max_output = 40);

struct Got {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> scored;
  std::vector<float> scores;   // of each scored token: logprob, then the likeliest and theirs
  std::vector<int32_t> ranks;  // of each scored token among all
  step::SeqEnd end = step::SeqEnd::kNone;
  int32_t cached_tokens = 0;
  int32_t num_draft = 0;     // tokens that were guessed for it
  int32_t num_accepted = 0;  // of them, those that were right
  int64_t clipped_samples = 0;
  std::map<int32_t, std::vector<float>> captured = {};  // a token's rows, by position
};

struct Outcome {
  std::vector<Got> got;  // one per Ask
  sched::SchedStats stats;
  int64_t masked_results = 0;
  int64_t steps = 0;            // iterations
  int64_t graph_steps = 0;      // of them
  int64_t captured_graphs = 0;  // for some of these, behind the start
  int64_t timed_captures = 0;   // of those, within a time that is told: none but of guesses
  // Steps with rare taps (docs/contracts/exec.md): the first with such taps runs op by op.
  int64_t rare_steps = 0;
  int64_t rare_graph_steps = 0;    // of these
  int64_t prompt_steps = 0;        // with tokens whose logits nobody wants
  int64_t prompt_graph_steps = 0;  // of these
  int64_t tree_steps = 0;          // with drafts that branch
  int64_t tree_graph_steps = 0;    // of these
  int64_t trees_beside_prompts = 0;
  int64_t trees_beside_prompts_graphs = 0;  // of these
  int64_t lost_tokens = 0;                  // captured, but no buffer was free
  int64_t constrained_steps = 0;
  int64_t masked_trees = 0;  // of constrained sequences
  int64_t scored_steps = 0;  // with tokens of prompts to score
};
Outcome run(step::Executor& executor, const sched::SchedSettings& settings,
            const std::vector<Ask>& asks, sched::DraftProposer* proposer = nullptr);

// The prompts and what they gave.
std::vector<std::vector<int32_t>> wholes(const std::vector<Ask>& asks, const std::vector<Got>& got);

// One sequence at a time, its prompt in one step, each step collected before the next. `roomy`: a
// fresh executor of kRoomy.
std::vector<Got> run_alone(step::Executor& roomy, std::vector<Ask> asks);
// Everything but cached_tokens and drafts is the same, bit for bit.
void expect_same(const std::vector<Got>& expected, const std::vector<Got>& got,
                 const std::string& what);

}  // namespace rudder::metamorphic
