// Captured steps against steps run op by op: the same sequences must get the same tokens and the
// same logprobs, bit for bit. TapeOps captures as a GPU does: what the host knew at the capture
// stays, what the device holds is read anew.
#include "rudder/exec/graph_shapes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/testing/random_proposer.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

TEST(GraphBuckets, AreFineAndEndWithTheMost) {
  EXPECT_EQ(exec::graph_buckets(1), (std::vector<int32_t>{1}));
  EXPECT_EQ(exec::graph_buckets(8), (std::vector<int32_t>{1, 2, 4, 8}));
  EXPECT_EQ(exec::graph_buckets(37), (std::vector<int32_t>{1, 2, 4, 8, 16, 24, 32, 37}));
  const std::vector<int32_t> all = exec::graph_buckets(512);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.back(), 512);
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_LE(all[i] - all[i - 1], std::max(4, all[i] / 2)) << all[i];
    EXPECT_LE(all[i] - all[i - 1], 32) << all[i];
  }
}

TEST(GraphBuckets, OfDraftsHaveEachSmallNumber) {
  EXPECT_EQ(exec::draft_graph_buckets(2, 6), (std::vector<int32_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(exec::draft_graph_buckets(15, 37), (std::vector<int32_t>{15, 16, 20, 24, 28, 32, 37}));
  const std::vector<int32_t> all = exec::draft_graph_buckets(9, 256);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end()));
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.front(), 9);
  EXPECT_EQ(all.back(), 256);
  // Kernels of products are chosen by powers of two: padding changes none.
  for (const int32_t power : {16, 32, 64, 128}) {
    EXPECT_TRUE(std::binary_search(all.begin(), all.end(), power));
  }
}

TEST(TapeOps, ReplaysWithTheHostsValuesAndTheDevicesMemory) {
  const auto ops = testing::make_tape_ops(backends().front().make());
  const ops::View x = ops->allocate(tensor::DType::kF32, {2, 4}).value();
  const ops::View rows = ops->allocate(tensor::DType::kI32, {1}).value();
  const ops::View out = ops->allocate(tensor::DType::kF32, {1, 4}).value();
  x.as<float>()[4] = 7;
  ops::GatherRowsArgs args{.x = x, .rows = rows, .out = out};
  ops->graph_ops()->begin_capture();
  ops->gather_rows(args);
  const std::unique_ptr<ops::Graph> graph = ops->graph_ops()->end_capture().value();
  args.out = {};
  EXPECT_EQ(out.as<float>()[0], 0);
  rows.as<int32_t>()[0] = 1;
  ops->graph_ops()->replay(*graph);
  EXPECT_EQ(out.as<float>()[0], 7);
}

constexpr step::Capacity kCapacity = {.num_slots = 21,
                                      .num_blocks = 60,  // few enough to need every one
                                      .block_size = 16,
                                      .max_tokens_per_step = 256,
                                      .max_seq_len = 256,
                                      .vocab_size = 160,
                                      .max_in_flight = 3};

std::vector<Ask> long_asks() {
  std::vector<Ask> asks = random_masked_asks(36, 17, 40);
  std::mt19937 engine(18);
  for (size_t i = 0; i < asks.size(); ++i) {
    Ask& ask = asks[i];
    const auto longer = static_cast<int32_t>(engine() % 100);
    for (int32_t t = 0; t < longer; ++t) {
      ask.prompt.push_back(static_cast<int32_t>(engine() % 160));
    }
    ask.max_len += longer;
    ask.arrival = static_cast<int32_t>(i / 9 * 12);
  }
  return asks;
}
// Checkpoints of states would cut prompts where they are wanted, so there are none.
sched::SchedSettings cutting_settings(testing::TinyArch arch) {
  sched::SchedSettings settings;
  settings.enable_prefix_caching = !model::keeps_states(testing::tiny_spec(arch));
  settings.max_num_seqs = 8;
  settings.max_num_batched_tokens = 140;
  settings.max_in_flight = 3;
  return settings;
}

class Graphs : public ::testing::TestWithParam<Pair> {
 protected:
  static std::unique_ptr<exec::DeviceExecutor> executor(bool enforce_eager) {
    Backend taped = backends()[std::get<0>(GetParam())];
    taped.make = [make = taped.make] { return testing::make_tape_ops(make()); };
    return tiny_executor(taped, std::get<1>(GetParam()), kCapacity,
                         {.enforce_eager = enforce_eager});
  }

  static void expect_same(const std::vector<Ask>& asks, int32_t in_flight) {
    sched::SchedSettings settings;
    settings.max_num_seqs = 21;
    settings.max_num_batched_tokens = 256;
    settings.max_in_flight = in_flight;
    const auto eager = executor(true);
    const auto graphed = executor(false);
    const Outcome expected = run(*eager, settings, asks);
    const Outcome got = run(*graphed, settings, asks);
    EXPECT_EQ(expected.graph_steps, 0);
    EXPECT_GT(3 * got.graph_steps, 2 * got.steps);
    EXPECT_LT(got.graph_steps, got.steps);
    for (size_t i = 0; i < asks.size(); ++i) {
      EXPECT_FALSE(got.got[i].tokens.empty());
      EXPECT_EQ(got.got[i].tokens, expected.got[i].tokens) << "sequence " << i;
      EXPECT_EQ(got.got[i].logprobs, expected.got[i].logprobs) << "sequence " << i;
      EXPECT_EQ(got.got[i].end, expected.got[i].end) << "sequence " << i;
    }
    EXPECT_EQ(got.masked_results, expected.masked_results);
  }
};

// Numbers of rows that no graph has, as sequences end one by one; stops, penalties, logprobs.
TEST_P(Graphs, EverySamplingAsEager) {
  expect_same(random_asks(21, 11, 100), 1);
}

TEST_P(Graphs, RunAheadAsEager) {
  std::vector<Ask> asks = random_asks(40, 12, 100);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 10 * 40);
  expect_same(asks, 3);
}

// A constrained step replays its forward pass and is sampled outside the graph.
TEST_P(Graphs, ConstrainedAsEager) {
  expect_same(random_masked_asks(21, 14, 80), 2);
}

TEST_P(Graphs, PlainGreedyAsEager) {
  std::vector<Ask> asks = random_asks(21, 13, 60);
  for (Ask& ask : asks) {
    step::SamplingParams plain;
    plain.temperature = 0;
    plain.stop_ids = ask.sampling.stop_ids;
    ask.sampling = plain;
  }
  expect_same(asks, 2);
}

// Drafts of up to 9 tokens: sequences of both families, constrained, steered and captured ones.
TEST_P(Graphs, DraftedAsPlain) {
  const testing::TinyArch arch = std::get<1>(GetParam());
  const step::Capacity roomy = with_taps(kRoomy, arch);
  std::vector<Ask> asks = random_masked_asks(9, 15, 90);
  add_random_taps(std::span(asks).first(6), roomy, 3);
  const Backend& plain_backend = backends()[std::get<0>(GetParam())];
  const std::vector<Got> plain = run_alone(*tiny_executor(plain_backend, arch, roomy), asks);
  const auto whole = wholes(asks, plain);
  Backend taped = plain_backend;
  taped.make = [make = taped.make] { return testing::make_tape_ops(make()); };
  for (const int32_t max_draft : {2, 9}) {
    step::Capacity capacity = with_taps(kCapacity, arch);
    capacity.num_slots = 6;
    capacity.drafts.max_draft = max_draft;
    sched::SchedSettings settings;
    settings.max_num_seqs = 6;
    settings.max_num_batched_tokens = 256;
    settings.max_in_flight = 3;
    testing::RandomProposer proposer(
        5, 160, [&](sched::SequenceId id) { return std::span<const int32_t>(whole[id.value]); });
    exec::DeviceExecutor::Options options;
    if (max_draft == 9) options.narrow_graphs = {.least_steps = 1, .spacing = 0};
    const Outcome got =
        run(*tiny_executor(taped, arch, capacity, options), settings, asks, &proposer);
    metamorphic::expect_same(plain, got.got, "drafts of " + std::to_string(max_draft));
    EXPECT_GT(got.stats.accepted_tokens, 50u);
    EXPECT_GT(got.stats.drafts, 20u);
    // Of steps that cut no prompt; the first of each kind with rare taps is run op by op.
    EXPECT_GT(20 * got.graph_steps, 13 * (got.steps - got.prompt_steps));
  }
}

// Prompts that are cut, some while others decode: steps of the same numbers of tokens, with other
// numbers of sequences and of rows of logits in each.
TEST_P(Graphs, PromptsAsPlain) {
  const testing::TinyArch arch = std::get<1>(GetParam());
  const Backend& plain_backend = backends()[std::get<0>(GetParam())];
  Backend taped = plain_backend;
  taped.make = [make = taped.make] { return testing::make_tape_ops(make()); };
  for (const bool has_taps : {false, true}) {
    step::Capacity capacity = has_taps ? with_encodes(kCapacity, arch) : kCapacity;
    const step::Capacity roomy = has_taps ? with_encodes(kRoomy, arch) : kRoomy;
    capacity.num_blocks = 160;
    std::vector<Ask> asks = long_asks();
    if (has_taps) add_random_taps(std::span(asks).first(4), roomy, 6);
    const std::vector<Got> plain = run_alone(*tiny_executor(plain_backend, arch, roomy), asks);
    const Outcome got = run(*tiny_executor(taped, arch, capacity), cutting_settings(arch), asks);
    metamorphic::expect_same(plain, got.got, has_taps ? "taps" : "no taps");
    const bool has_cache = cutting_settings(arch).enable_prefix_caching;
    EXPECT_GT(got.prompt_graph_steps, has_taps ? 1 : has_cache ? 3 : 2);
    EXPECT_LT(got.prompt_graph_steps, got.prompt_steps);
  }
}

// The same, all steered at one point, of answers of one token: their graphs tap that point alone
// from the third step of a kind on.
TEST_P(Graphs, NarrowPromptsAsPlain) {
  const testing::TinyArch arch = std::get<1>(GetParam());
  const Backend& plain_backend = backends()[std::get<0>(GetParam())];
  Backend taped = plain_backend;
  taped.make = [make = taped.make] { return testing::make_tape_ops(make()); };
  const step::Capacity roomy = with_taps(kRoomy, arch);
  step::Capacity capacity = with_taps(kCapacity, arch);
  capacity.num_blocks = 160;
  std::vector<Ask> asks = long_asks();
  add_few_taps(std::span(asks).first(1), roomy);
  for (Ask& ask : asks) {
    ask.taps = asks.front().taps;
    ask.max_len = static_cast<int32_t>(ask.prompt.size()) + 1;
  }
  const std::vector<Got> plain = run_alone(*tiny_executor(plain_backend, arch, roomy), asks);
  const auto outcome_of = [&](const exec::NarrowRules& rules) {
    const auto executor = tiny_executor(taped, arch, capacity, {.narrow_graphs = rules});
    Outcome got = run(*executor, cutting_settings(arch), asks);
    metamorphic::expect_same(plain, got.got, "narrow graphs");
    EXPECT_GT(got.prompt_graph_steps, 3);
    EXPECT_EQ(got.timed_captures, 0);
    return got;
  };
  const Outcome wide = outcome_of({.least_steps = 1 << 30});
  const Outcome narrow = outcome_of({.least_steps = 3, .spacing = 0});
  EXPECT_GT(narrow.captured_graphs, wide.captured_graphs);
}

// Taps that no graph at start has: what mixers make, whole encodes. Their graphs are captured when
// steps come back.
TEST_P(Graphs, RareTapsAsPlain) {
  const testing::TinyArch arch = std::get<1>(GetParam());
  const step::Capacity roomy = with_encodes(kRoomy, arch);
  std::vector<Ask> asks = random_masked_asks(9, 16, 90);
  add_random_taps(asks, roomy, 5);
  const Backend& plain_backend = backends()[std::get<0>(GetParam())];
  const std::vector<Got> plain = run_alone(*tiny_executor(plain_backend, arch, roomy), asks);
  Backend taped = plain_backend;
  taped.make = [make = taped.make] { return testing::make_tape_ops(make()); };
  step::Capacity capacity = with_encodes(kCapacity, arch);
  sched::SchedSettings settings;
  settings.max_num_seqs = 6;
  settings.max_num_batched_tokens = 256;
  settings.max_in_flight = 3;
  const Outcome got = run(*tiny_executor(taped, arch, capacity), settings, asks);
  metamorphic::expect_same(plain, got.got, "rare taps");
  EXPECT_GT(2 * got.graph_steps, got.steps);
}

// Sequences with taps at few points come and go: graphs that tap these are captured meanwhile, some
// of them again because others took their room, and run what they are wide enough for.
TEST_P(Graphs, NarrowAsPlain) {
  const testing::TinyArch arch = std::get<1>(GetParam());
  const Backend& plain_backend = backends()[std::get<0>(GetParam())];
  Backend taped = plain_backend;
  taped.make = [make = taped.make] { return testing::make_tape_ops(make()); };
  const step::Capacity roomy = with_encodes(kRoomy, arch);
  std::vector<Ask> asks = random_masked_asks(14, 19, 90);
  add_few_taps(std::span(asks).first(9), roomy);
  add_random_taps(std::span(asks).subspan(9, 2), roomy, 5);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 9);
  const std::vector<Got> plain = run_alone(*tiny_executor(plain_backend, arch, roomy), asks);
  sched::SchedSettings settings;
  settings.max_num_seqs = 4;
  settings.max_num_batched_tokens = 256;
  settings.max_in_flight = 3;
  const auto outcome_of = [&](const exec::NarrowRules& rules) {
    const step::Capacity capacity = with_encodes(kCapacity, arch);
    const auto executor = tiny_executor(taped, arch, capacity, {.narrow_graphs = rules});
    Outcome got = run(*executor, settings, asks);
    metamorphic::expect_same(plain, got.got, "narrow graphs");
    EXPECT_EQ(got.timed_captures, 0);
    return got;
  };
  const Outcome none = outcome_of({.least_steps = 1 << 30});
  const Outcome all = outcome_of({.least_steps = 1, .spacing = 0, .most_graphs = 100});
  const Outcome some =
      outcome_of({.least_steps = 2, .spacing = 3, .most_graphs = 2, .idle_steps = 5});
  EXPECT_GT(all.captured_graphs, none.captured_graphs + 6);
  EXPECT_GT(some.captured_graphs, none.captured_graphs + 3);
  EXPECT_EQ(all.steps, none.steps);
}

INSTANTIATE_TEST_SUITE_P(Tiny, Graphs, ::testing::ValuesIn(daily_pairs(all_backends())), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, Graphs, ::testing::ValuesIn(other_pairs(all_backends())), pair_name);

}  // namespace
}  // namespace rudder::metamorphic
