#include "rudder/exec/memory_budget.h"

#include <gtest/gtest.h>

#include "rudder/exec/feature_reader.h"
#include "rudder/exec/head_proposer.h"
#include "rudder/exec/medusa_proposer.h"
#include "rudder/exec/model_proposer.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/model/decoder.h"
#include "rudder/model/stage.h"
#include "rudder/model/tensors.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::exec {
namespace {

using testing::TinyArch;

constexpr int64_t kMiB = 1 << 20;

MemoryAsk tiny_ask() {
  MemoryAsk ask;
  ask.available_bytes = 64 * kMiB;
  ask.utilization = 0.5;
  ask.max_num_seqs = 4;
  ask.max_num_batched_tokens = 64;
  return ask;
}

// With the spec's weights, as precise as its KV, unless the ask has some.
Result<MemoryBudget> plan_memory(const model::ModelSpec& spec, const StorageDTypes& dtypes,
                                 MemoryAsk ask) {
  if (ask.weights.bytes == 0) {
    RUDDER_TRY(const ops::WeightFormat format, ops::wide_format(dtypes.kv.dtype));
    RUDDER_TRY(ask.weights, model::weight_budget(spec, {}, model::all_as(format), {}, ask.stage));
  }
  return budget_memory(spec, dtypes, ask);
}

TEST(MemoryBudget, EveryPartIsCounted) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const StorageDTypes dtypes = {tensor::DType::kF32, tensor::DType::kBF16};
  const auto budget = plan_memory(spec, dtypes, tiny_ask());
  ASSERT_TRUE(budget) << budget.error().to_string();
  EXPECT_EQ(budget->max_seq_len, 512);
  EXPECT_EQ(budget->kv.block_bytes,
            3 * 2 * 2 * 16 * 16 * 2);  // layers, k+v, heads, dim, block, bf16
  EXPECT_EQ(budget->weights.bytes, model::weight_budget(spec, {}, model::all_as({}))->bytes);
  MemoryAsk quantised = tiny_ask();
  quantised.weights.bytes = budget->weights.bytes / 2;
  quantised.weights.formats = "F8_E4M3";
  EXPECT_EQ(plan_memory(spec, dtypes, quantised)->weights.bytes, quantised.weights.bytes);
  EXPECT_EQ(budget->workspace_bytes,
            model::Decoder::workspace_bytes(spec, {64, 64, 512}, tensor::DType::kF32));
  const step::Capacity capacity = {.num_slots = 4,
                                   .num_blocks = 0,
                                   .block_size = 16,
                                   .max_tokens_per_step = 64,
                                   .max_seq_len = 512,
                                   .vocab_size = 160};
  EXPECT_EQ(budget->sequence_bytes,
            StepBuffers::device_bytes(capacity) + Scorer::device_bytes(capacity));
  EXPECT_GT(budget->sequence_bytes, 5 * 160 * 5);  // penalty counts alone
  EXPECT_EQ(budget->num_blocks, 4 * 512 / 16);     // every sequence at its longest, and no more
  EXPECT_LE(budget->total_bytes(), 32 * kMiB);
  EXPECT_NE(budget->to_table().find("2048 tokens in 128 blocks of 16, BF16"), std::string::npos)
      << budget->to_table();
}

// What layers keep of a sequence besides KV: the pool is a share of what KV would have, the rows of
// drafts are the slots'.
// What is computed again behind the last one is fewer bytes of blocks than another would take.
TEST(MemoryBudget, CheckpointsStandAStatesBytesApart) {
  const StorageDTypes dtypes = {tensor::DType::kF32, tensor::DType::kF32};
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kRecurrent);
  MemoryAsk ask = tiny_ask();
  ask.kv_cache_memory_bytes = kMiB;
  ask.states = {.fraction = 0.25, .checkpoint_blocks = 0};
  for (const int32_t block_size : {1, 2, 3, 7, 16}) {
    ask.block_size = block_size;
    const auto budget = plan_memory(spec, dtypes, ask);
    ASSERT_TRUE(budget) << budget.error().to_string();
    const int64_t blocks = budget->states.checkpoint_blocks;
    const int64_t bytes = budget->block_bytes() * budget->kv.groups.size();
    EXPECT_LT((blocks - 1) * bytes, budget->states.bytes) << block_size;
    EXPECT_GE(blocks * bytes, budget->states.bytes) << block_size;
  }
}

TEST(MemoryBudget, StatesAreCountedWhereLayersKeepAny) {
  const StorageDTypes dtypes = {tensor::DType::kF32, tensor::DType::kF32};
  EXPECT_TRUE(
      plan_memory(testing::tiny_spec(TinyArch::kPreNorm), dtypes, tiny_ask())->states.empty());
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kRecurrent);
  MemoryAsk ask = tiny_ask();
  ask.kv_cache_memory_bytes = kMiB;
  ask.states = {.fraction = 0.25, .checkpoint_blocks = 8};
  const auto budget = plan_memory(spec, dtypes, ask);
  ASSERT_TRUE(budget) << budget.error().to_string();
  const int64_t bytes = 2 * (64 + 64 * 4);  // layers, a line and a sum
  EXPECT_EQ(budget->states.bytes, bytes);
  EXPECT_EQ(budget->states.checkpoint_blocks, 8);
  // Of four sequences and the blocks that they may fill; the share would hold more.
  EXPECT_EQ(budget->states.count, 4 + 4 * 512 / 16);
  MemoryAsk less = ask;
  less.states.fraction = 0.05;
  const auto few = plan_memory(spec, dtypes, less);
  ASSERT_TRUE(few) << few.error().to_string();
  EXPECT_EQ(few->states.count, static_cast<int32_t>(0.05 * kMiB / bytes));
  EXPECT_EQ(few->num_blocks, (kMiB - few->states.count * bytes) / few->kv.block_bytes);
  EXPECT_EQ(few->total_bytes() - few->kv_bytes() - few->state_bytes(),
            budget->total_bytes() - budget->kv_bytes() - budget->state_bytes());
  EXPECT_NE(few->to_table().find("81 of 0.0 MiB, of sequences and of checkpoints every 8 blocks"),
            std::string::npos)
      << few->to_table();
  // Unless it is said, a sequence's checkpoints take as much as its blocks.
  less.states.checkpoint_blocks = 0;
  EXPECT_EQ(plan_memory(spec, dtypes, less)->states.checkpoint_blocks, 1);
  less.block_size = 1;
  EXPECT_EQ(plan_memory(spec, dtypes, less)->states.checkpoint_blocks,
            (bytes + 2 * 2 * 16 * 4 - 1) / (2 * 2 * 16 * 4));  // k+v, heads, dim
  MemoryAsk drafting = ask;
  drafting.drafts.max_draft = 3;
  EXPECT_GE(plan_memory(spec, dtypes, drafting)->sequence_bytes - budget->sequence_bytes,
            (4 + 1) * (1 + 3) * 2 * 64 * 4);
}

TEST(MemoryBudget, StatesThatDoNotFitAreRefusedByTheSettingToChange) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kRecurrent);
  const StorageDTypes dtypes = {tensor::DType::kF32, tensor::DType::kF32};
  MemoryAsk ask = tiny_ask();
  ask.kv_cache_memory_bytes = kMiB;
  ask.states.fraction = 0.001;
  const auto too_few = plan_memory(spec, dtypes, ask);
  ASSERT_FALSE(too_few);
  EXPECT_EQ(too_few.error().where, "state-memory-fraction");
  EXPECT_NE(too_few.error().message.find("which 0.002 would hold"), std::string::npos)
      << too_few.error().message;
  ask.states.fraction = 0.002;
  EXPECT_EQ(plan_memory(spec, dtypes, ask)->states.count, 3);
  ask.max_model_len = 16;
  ask.kv_cache_memory_bytes = 8192;
  ask.states.fraction = 1;  // no block is left
  EXPECT_EQ(plan_memory(spec, dtypes, ask).error().where, "state-memory-fraction");
  ask.kv_cache_memory_bytes = 4096;
  EXPECT_EQ(plan_memory(spec, dtypes, ask).error().where, "kv-cache-memory-bytes");
}

TEST(MemoryBudget, MessagesOfAStageAreCountedForEachStepInFlight) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const StorageDTypes dtypes = {tensor::DType::kBF16, tensor::DType::kBF16};
  EXPECT_EQ(plan_memory(spec, dtypes, tiny_ask())->message_bytes, 0);
  MemoryAsk ask = tiny_ask();
  ask.max_in_flight = 3;
  const auto stages =
      model::divide_layers(spec, {}, 2, model::all_as({}), {tensor::DType::kBF16}).value();
  const auto budget_of = [&](size_t stage) {
    ask.stage = stages[stage];
    return plan_memory(spec, dtypes, ask).value();
  };
  const MemoryBudget first = budget_of(0);
  const int64_t rows = int64_t{64} * spec.hidden * 2;  // of the largest step, bf16
  EXPECT_GE(first.message_bytes, 3 * rows);
  EXPECT_LT(first.message_bytes, 4 * rows);
  EXPECT_NE(first.to_table().find("between stages, for 3 steps in flight"), std::string::npos);
  const MemoryBudget last = budget_of(1);
  EXPECT_GT(last.message_bytes, 0) << "what it samples goes back";
  EXPECT_LT(last.message_bytes, rows);
  MemoryBudget without = first;
  without.message_bytes = 0;
  EXPECT_EQ(first.total_bytes() - without.total_bytes(), first.message_bytes);
  ask.taps = {.capture_bytes = kMiB, .max_num_seqs = 4, .max_in_flight = 3};
  EXPECT_GT(budget_of(0).message_bytes, first.message_bytes + kMiB / 2) << "with captured records";
}

// Where rows are captured for clients and dictionaries may be named, on one device.
TEST(MemoryBudget, TheReaderOfFeaturesIsCounted) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const StorageDTypes dtypes = {tensor::DType::kBF16, tensor::DType::kBF16};
  MemoryAsk ask = tiny_ask();
  ask.taps = {.enable_steering = true,
              .max_steering_rows = 4,
              .steering_bytes = kMiB,
              .capture_bytes = kMiB,
              .max_num_seqs = 4,
              .max_in_flight = 2,
              .reader_bytes = 12345};
  const auto without = plan_memory(spec, dtypes, ask);
  ASSERT_TRUE(without) << without.error().to_string();
  EXPECT_EQ(without->readers.feature_bytes, 0);
  ask.taps.feature_bytes = 4 * kMiB;
  const auto with = plan_memory(spec, dtypes, ask);
  ASSERT_TRUE(with) << with.error().to_string();
  EXPECT_EQ(with->readers.feature_bytes, 4 * kMiB);
  EXPECT_EQ(with->tap_bytes - without->tap_bytes,
            12345 + DeviceFeatureReader::device_bytes(
                        {.dictionary_bytes = 4 * kMiB,
                         .widest = static_cast<int32_t>(with->geometry.widest())},
                        tensor::DType::kBF16));
  EXPECT_NE(with->to_table().find("4.0 MiB of encoders"), std::string::npos) << with->to_table();
  const auto feature_bytes = [&](const MemoryAsk& other) {
    const auto budget = plan_memory(spec, dtypes, other);
    EXPECT_TRUE(budget) << budget.error().to_string();
    return budget->readers.feature_bytes;
  };
  MemoryAsk unsteered = ask;
  unsteered.taps.enable_steering = false;
  EXPECT_EQ(feature_bytes(unsteered), 0);
  MemoryAsk embeddings = ask;
  embeddings.taps.capture_bytes = 0;
  embeddings.taps.embedding_bytes = kMiB;
  EXPECT_EQ(feature_bytes(embeddings), 0);
  MemoryAsk other_rank = ask;
  other_rank.rank = {.index = 1, .count = 2};
  EXPECT_EQ(feature_bytes(other_rank), 0);
}

TEST(MemoryBudget, ADraftModelAndItsKvAreCounted) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const model::ModelSpec draft = testing::tiny_spec(TinyArch::kHeadNorm);
  MemoryAsk ask = tiny_ask();
  ask.drafts.max_draft = 3;
  const auto without = plan_memory(spec, {}, ask);
  const ModelProposer source(draft, {});
  ask.source = &source;
  ask.source_weight_bytes = 1000;
  const auto with = plan_memory(spec, {}, ask);
  ASSERT_TRUE(without && with);
  EXPECT_EQ(without->draft.bytes, 0);
  EXPECT_EQ(without->draft.kv_bytes, 0);
  const step::Capacity capacity = {.num_slots = 4,
                                   .num_blocks = 0,
                                   .block_size = 16,
                                   .max_tokens_per_step = 64,
                                   .max_seq_len = 512,
                                   .vocab_size = 160,
                                   .drafts = {.max_draft = 3}};
  EXPECT_EQ(with->draft.bytes, 1000 + source.device_bytes(capacity, tensor::DType::kF32, {}));
  EXPECT_EQ(with->draft.kv_bytes, draft_kv_layout(draft, {tensor::DType::kF32}, 16)->block_bytes);
  EXPECT_GT(with->draft.kv_bytes, 0);
  EXPECT_EQ(with->num_blocks, without->num_blocks);
  EXPECT_EQ(with->kv_bytes() - without->kv_bytes(), with->draft.kv_bytes * with->num_blocks);
  // What is left to the cache is left to both.
  ask.kv_cache_memory_bytes = 20 * with->block_bytes() + 1;
  ask.max_model_len = 64;
  EXPECT_EQ(plan_memory(spec, {}, ask)->num_blocks, 20);
}

TEST(MemoryBudget, ADraftHeadAndTheRowsThatItReadsAreCounted) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const model::DraftHeadSpec head = testing::tiny_head_spec(testing::TinyHead::kOwnEmbedding);
  MemoryAsk ask = tiny_ask();
  ask.drafts.max_draft = 3;
  const ModelProposer layer(head.layer, {});
  ask.source = &layer;
  const auto model = plan_memory(spec, {}, ask);
  const HeadProposer source(head, {});
  ask.source = &source;
  const auto with = plan_memory(spec, {}, ask);
  ASSERT_TRUE(model && with);
  // Three rows of 64 floats a token.
  EXPECT_EQ(with->draft.kv_bytes - model->draft.kv_bytes, 16 * 3 * 64 * 4);
  // Beside what its layer takes: twice those rows, and rows of 96, of 64 tokens; rows of 48 of 4
  // slots; logits of 54 tokens for each of them.
  EXPECT_EQ(with->draft.bytes - model->draft.bytes, 4 * (64 * (2 * 3 * 64 + 96) + 4 * (48 + 54)));
}

TEST(MemoryBudget, AHeadOfAProductTakesOneRowAndNoLogitsOfItsOwn) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const model::DraftHeadSpec head = testing::tiny_head_spec(testing::TinyHead::kProduct);
  MemoryAsk ask = tiny_ask();
  ask.drafts.max_draft = 3;
  const ModelProposer layer(head.layer, {});
  ask.source = &layer;
  const auto model = plan_memory(spec, {}, ask);
  const HeadProposer source(head, {});
  ask.source = &source;
  const auto with = plan_memory(spec, {}, ask);
  ASSERT_TRUE(model && with);
  EXPECT_EQ(with->draft.kv_bytes - model->draft.kv_bytes, 16 * 64 * 4);
  // The row, the embedding and the row side by side, of 64 tokens; rows of 4 slots.
  EXPECT_EQ(with->draft.bytes - model->draft.bytes, 4 * (64 * (64 + 2 * 64) + 4 * 64));
}

TEST(MemoryBudget, ATreeOfADraftHeadTakesRowsToGoOnFrom) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const model::DraftHeadSpec head = testing::tiny_head_spec(testing::TinyHead::kOwnEmbedding);
  MemoryAsk ask = tiny_ask();
  ask.drafts.max_draft = 4;
  ask.drafts.takes_trees = true;
  const HeadProposer chains(head, {});
  ask.source = &chains;
  const auto chain = plan_memory(spec, {}, ask);
  for (const int32_t parent : {0, 0, 1, 2}) ask.drafts.guess_tree.add(parent);
  const HeadProposer trees(head, {}, {.tree = ask.drafts.guess_tree});
  ask.source = &trees;
  const auto tree = plan_memory(spec, {}, ask);
  ASSERT_TRUE(chain && tree);
  // Two more rows of 48 floats of 4 slots. Of 64 tokens words of ancestors, and which rows they go
  // on from; without a tree that is of 4, in a line of 64 bytes.
  EXPECT_EQ(tree->draft.bytes - chain->draft.bytes, 4 * 4 * 2 * 48 + 64 * 8 + 64 * 4 - 64);
}

TEST(MemoryBudget, MedusaHeadsAreCountedAndTakeNoKv) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  const model::MedusaSpec heads = testing::tiny_medusa_spec(false);
  MemoryAsk ask = tiny_ask();
  ask.drafts.max_draft = 3;
  const auto without = plan_memory(spec, {}, ask);
  const MedusaProposer source(heads, {});
  ask.source = &source;
  ask.source_weight_bytes = 1000;
  const auto with = plan_memory(spec, {}, ask);
  ASSERT_TRUE(with && without);
  const step::Capacity capacity = {.num_slots = 4,
                                   .num_blocks = 0,
                                   .block_size = 16,
                                   .max_tokens_per_step = 64,
                                   .max_seq_len = 512,
                                   .vocab_size = 160,
                                   .drafts = {.max_draft = 3}};
  EXPECT_EQ(with->draft.bytes, 1000 + source.device_bytes(capacity, tensor::DType::kF32, {}));
  EXPECT_EQ(with->draft.kv_bytes, 0);
  EXPECT_EQ(with->num_blocks, without->num_blocks);
}

TEST(MemoryBudget, TokensAndGuessesInSlotsAreCounted) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  MemoryAsk ask = tiny_ask();
  ask.drafts.max_draft = 3;
  const auto without = plan_memory(spec, {}, ask);
  ask.drafts.keeps_guesses = true;
  ask.drafts.look_up = {.min_n = 1, .max_n = 2};
  const auto with = plan_memory(spec, {}, ask);
  ASSERT_TRUE(with && without);
  // Of 4 slots and one of padding 512 tokens and 3 guessed; of a step the tokens of the prompts
  // that begin in it.
  EXPECT_EQ(with->sequence_bytes - without->sequence_bytes,
            5 * (512 + 3) * 4 + (512 + 4 * 64) * 12);
  EXPECT_EQ(with->draft.bytes, 0);
  EXPECT_NE(with->to_table().find("tokens and guesses"), std::string::npos);
  EXPECT_EQ(without->to_table().find("tokens and guesses"), std::string::npos);
}

// Of two ranks: its columns of what is multiplied by parts, where they lie, and its logits.
TEST(MemoryBudget, ARankCountsWhatItsPartOfHeadsTakesBeside) {
  const ops::Rank rank{0, 2};
  const auto whole = testing::tiny_head_spec(testing::TinyHead::kOwnEmbedding);
  const auto head = model::shard_draft_head(whole, rank);
  ASSERT_TRUE(head);
  const auto spec = model::shard_spec(testing::tiny_spec(TinyArch::kPreNorm), rank);
  ASSERT_TRUE(spec);
  MemoryAsk ask = tiny_ask();
  ask.rank = rank;
  ask.drafts.max_draft = 3;
  const ModelProposer layer(head->layer, {});
  ask.source = &layer;
  const auto model = plan_memory(*spec, {}, ask);
  const HeadProposer source(*head, {});
  ask.source = &source;
  const auto with = plan_memory(*spec, {}, ask);
  ASSERT_TRUE(model && with);
  EXPECT_EQ(with->draft.bytes - model->draft.bytes,
            4 * (64 * (2 * 3 * 64 + 96) + 4 * (48 + 54)) + 4 * 64 * (3 * 64 / 2 + 1));
  const auto f32 = tensor::DType::kF32;
  const auto heads = testing::tiny_medusa_spec(false);
  EXPECT_EQ(model::MedusaHeads::device_bytes(heads, 4, f32, rank) -
                model::MedusaHeads::device_bytes(heads, 4, f32),
            4 * 4 * (64 / 2 + 1 + 160 / 2));
}

TEST(MemoryBudget, TheShareBoundsTheCache) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  MemoryAsk ask = tiny_ask();
  const auto all = plan_memory(spec, {}, ask);
  ASSERT_TRUE(all);
  // Room for 10 blocks: too few for the model's length, so sequences get shorter.
  const int64_t fixed = all->total_bytes() - all->kv_bytes();
  ask.utilization = 1;
  ask.available_bytes = fixed + 10 * all->kv.block_bytes + 5;
  auto budget = plan_memory(spec, {}, ask);
  ASSERT_TRUE(budget) << budget.error().to_string();
  EXPECT_EQ(budget->num_blocks, 10);
  EXPECT_EQ(budget->max_seq_len, 160);
  EXPECT_LE(budget->total_bytes(), ask.available_bytes);
  // A length that was asked for is not shortened.
  ask.max_model_len = 200;
  budget = plan_memory(spec, {}, ask);
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().where, "max-model-len");
  EXPECT_EQ(budget.error().code, ErrorCode::kInvalidArgument);
  ask.max_model_len = 0;
  ask.available_bytes = fixed;
  budget = plan_memory(spec, {}, ask);
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().where, "gpu-memory-utilization");
}

TEST(MemoryBudget, AGivenCacheSizeIsTaken) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  MemoryAsk ask = tiny_ask();
  ask.max_model_len = 100;
  ask.kv_cache_memory_bytes = 20 * kMiB;
  auto budget = plan_memory(spec, {}, ask);
  ASSERT_TRUE(budget);
  EXPECT_EQ(budget->num_blocks, ask.kv_cache_memory_bytes / budget->kv.block_bytes);
  EXPECT_EQ(budget->max_seq_len, 100);
  ask.kv_cache_memory_bytes = 64 * kMiB;
  budget = plan_memory(spec, {}, ask);
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().where, "kv-cache-memory-bytes");
}

TEST(MemoryBudget, TapsAreCountedAndPrinted) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  MemoryAsk ask = tiny_ask();
  const auto without = plan_memory(spec, {}, ask);
  ASSERT_TRUE(without);
  EXPECT_EQ(without->tap_bytes, 0);
  EXPECT_TRUE(without->geometry.empty());
  EXPECT_EQ(without->to_table().find("taps"), std::string::npos);
  ask.taps = {.enable_steering = true,
              .max_steering_rows = 7,
              .steering_bytes = kMiB,
              .capture_bytes = 2 * kMiB,
              .max_num_seqs = 4,
              .max_in_flight = 2};
  const auto budget = plan_memory(spec, {}, ask);
  ASSERT_TRUE(budget) << budget.error().to_string();
  EXPECT_GT(budget->tap_bytes, 3 * kMiB);
  EXPECT_LT(budget->tap_bytes, 4 * kMiB);
  EXPECT_GT(budget->sequence_bytes, without->sequence_bytes);  // taps of a step's tokens
  EXPECT_EQ(budget->geometry.num_layers, 3);
  EXPECT_NE(budget->to_table().find("7 steering programs, 1.0 MiB of vectors, 1.0 MiB of captures"),
            std::string::npos)
      << budget->to_table();
}

TEST(MemoryBudget, EmbeddingsTakeWhatTheyAreGivenOrOneSmallStep) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  MemoryAsk ask = tiny_ask();
  ask.taps = {.embedding_bytes = 2 * kMiB, .max_num_seqs = 4, .max_in_flight = 2};
  const auto budget = plan_memory(spec, {}, ask);
  ASSERT_TRUE(budget) << budget.error().to_string();
  EXPECT_TRUE(budget->taps.captures_prompts_only);
  EXPECT_FALSE(budget->taps.steering());
  EXPECT_LT(budget->tap_bytes, 3 * kMiB);
  EXPECT_NE(budget->to_table().find("1.0 MiB of embeddings a step"), std::string::npos);
  ask.taps.embedding_bytes = 1;
  const auto least = plan_memory(spec, {}, ask);
  ASSERT_TRUE(least);
  EXPECT_GE(least->taps.capture_elements, 16 * spec.hidden);
  ask.taps.capture_bytes = 2 * kMiB;
  EXPECT_FALSE(plan_memory(spec, {}, ask)->taps.captures_prompts_only);
}

TEST(MemoryBudget, OnlyARopeThatReachesFurtherGoesPastTheModelsLength) {
  model::ModelSpec spec = testing::tiny_spec(TinyArch::kPreNorm);
  MemoryAsk ask = tiny_ask();
  ask.max_model_len = 513;
  const auto budget = plan_memory(spec, {}, ask);
  ASSERT_FALSE(budget);
  EXPECT_EQ(budget.error().where, "max-model-len");
  spec.longest_positions = 513;
  EXPECT_TRUE(plan_memory(spec, {}, ask));
  ask.max_model_len = 514;
  EXPECT_FALSE(plan_memory(spec, {}, ask));
}

}  // namespace
}  // namespace rudder::exec
