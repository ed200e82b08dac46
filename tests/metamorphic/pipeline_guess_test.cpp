// What guesses for a pipeline, on its last stage: the text is that of plain decoding on one device,
// and the guesses are those that one device makes, bit for bit.
#include <gtest/gtest.h>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/exec/pipeline_executor.h"
#include "rudder/exec/stage_link.h"
#include "rudder/model/stage.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

std::unique_ptr<step::Executor> guessing_pipeline(const Backend& backend, TinyArch arch,
                                                  const step::Capacity& capacity,
                                                  int32_t num_stages, Guesser guesser) {
  const model::ModelSpec whole = testing::tiny_spec(arch);
  std::vector<model::Stage> stages(1);
  if (num_stages > 1) {
    stages = value_of(
        model::divide_layers(whole, {}, num_stages, model::all_as({ops::Codes::kF32}), {}));
    join_guesser(stages, whole, guesser);
  }
  const auto link = std::make_shared<exec::StageLink>(num_stages, capacity.max_in_flight);
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (const model::Stage& stage : stages) {
    exec::DeviceExecutor::Model model;
    model.ops = backend.make();
    model.weights = value_of(testing::random_weights(whole, *model.ops, kModelSeed, stage));
    model.spec = model::stage_spec(whole, stage);
    add_guesser(model, whole, guesser);
    model.kv = exec::stage_kv_layout(
        value_of(exec::make_kv_layout(whole, {.kv = model.ops->kv_format(),
                                              .block_size = capacity.block_size,
                                              .max_seq_len = capacity.max_seq_len,
                                              .lookback = model.ops->attention_lookback()})),
        stage);
    step::Capacity mine = capacity;
    add_guesser(mine, guesser);
    mine.kv_groups = model.kv.groups;
    mine.num_blocks *= model.kv.groups.size();
    give_states(mine, whole);
    executors.push_back(value_of(exec::DeviceExecutor::start(
        std::move(model), mine, {.link = num_stages > 1 ? link : nullptr})));
  }
  if (num_stages == 1) return std::move(executors.front());
  return std::make_unique<exec::PipelineExecutor>(std::move(executors));
}

// Index into backends(), model, stages.
class PipelineGuesses : public ::testing::TestWithParam<std::tuple<size_t, TinyArch, int32_t>> {};

TEST_P(PipelineGuesses, AsOnOneDeviceAndTheTextIsThatOfPlainDecoding) {
  const auto [index, arch, num_stages] = GetParam();
  const Backend& backend = backends()[index];
  step::Capacity capacity = with_encodes(kRoomy, arch);
  std::vector<Ask> asks = random_masked_asks(8, 63, 30);
  add_random_taps(asks, capacity, 64);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend, arch, capacity), asks);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7 % 23);
  capacity.drafts.max_draft = 5;
  std::vector<Guesser> guessers(std::begin(kGuessersOnRanks), std::end(kGuessersOnRanks));
  guessers.push_back(Guesser::kItself);
  for (const Guesser guesser : guessers) {
    if (!takes_guesser(arch, guesser) || !runs_in_stages(arch, guesser)) continue;
    for (const int32_t cohorts : {1, num_stages}) {
      SCOPED_TRACE(guesser_name(guesser) + " in cohorts of " + std::to_string(cohorts));
      sched::SchedSettings settings = plain_settings();
      settings.max_num_batched_tokens = 60;
      settings.max_in_flight = 3;
      settings.enable_prefix_caching = true;
      settings.num_cohorts = cohorts;
      std::vector<GuessNotes::Notes> notes;
      for (const int32_t count : {1, num_stages}) {
        const auto executor = guessing_pipeline(backend, arch, capacity, count, guesser);
        GuessNotes noting(*executor);
        const Outcome outcome = run(noting, settings, asks);
        expect_same(plain, outcome.got, std::to_string(count) + " stages");
        EXPECT_GT(outcome.stats.draft_tokens, least_drafts(guesser) / 2);
        if (guesser != Guesser::kLookUp) {
          EXPECT_GT(noting.ahead_steps, 10);
        }
        notes.push_back(noting.notes);
      }
      EXPECT_EQ(notes[0], notes[1]);
    }
  }
}

std::vector<std::tuple<size_t, TinyArch, int32_t>> guess_params(bool daily) {
  std::vector<std::tuple<size_t, TinyArch, int32_t>> params;
  const std::vector<Pair> pairs =
      daily ? daily_pairs(all_backends(), Turn::kFirst) : other_pairs(all_backends(), Turn::kFirst);
  for (const auto& [index, arch] : pairs) {
    if (!runs_in_stages(arch)) continue;
    params.emplace_back(index, arch, params.size() % 2 == 0 ? 2 : 3);
  }
  return params;
}
INSTANTIATE_TEST_SUITE_P(Tiny, PipelineGuesses, ::testing::ValuesIn(guess_params(true)));
INSTANTIATE_TEST_SUITE_P(Full, PipelineGuesses, ::testing::ValuesIn(guess_params(false)));

}  // namespace
}  // namespace rudder::metamorphic
