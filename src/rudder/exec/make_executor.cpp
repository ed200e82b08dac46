#include "rudder/exec/make_executor.h"

#include <algorithm>
#include <utility>

#include "rudder/exec/device_executor.h"
#include "rudder/exec/group_executor.h"
#include "rudder/exec/head_lens.h"
#include "rudder/model/loader.h"
#include "rudder/model/shard.h"

namespace rudder::exec {
namespace {

Result<model::ModelSpec> read_draft(const weights::Checkpoint& checkpoint) {
  Result<model::ModelSpec> spec = model::read_spec(checkpoint);
  if (spec) return spec;
  return fail(spec.error().code, spec.error().to_string(), "speculative-config.model");
}

// Of one rank; `spec` is the whole model's.
Result<MemoryBudget> budget_rank(const weights::Checkpoint& checkpoint,
                                 const model::ModelSpec& spec, ops::Ops& ops,
                                 const ExecSettings& settings, const StepLimits& limits) {
  const ops::Rank rank = ops::rank_of(ops);
  RUDDER_TRY(const model::ModelSpec part, model::shard_spec(spec, rank));
  model::ModelSpec draft;
  model::WeightBudget draft_weights;
  if (limits.draft_model != nullptr) {
    RUDDER_TRY(draft, read_draft(*limits.draft_model));
    draft_weights = model::budget_weights(*limits.draft_model, draft, ops);
  }
  const model::WeightBudget weights = model::budget_weights(checkpoint, spec, ops, rank);
  RUDDER_TRY(
      MemoryBudget budget,
      budget_memory(part,
                    {.act = ops.act_dtype(), .kv = ops.kv_dtype(), .linear = weights.linear_dtype},
                    {.weight_bytes = weights.bytes,
                     .available_bytes = ops.available_memory(),
                     .utilization = settings.gpu_memory_utilization,
                     .kv_cache_memory_bytes = settings.kv_cache_memory_bytes,
                     .max_model_len = settings.max_model_len,
                     .block_size = settings.block_size,
                     .attention_lookback = ops.attention_lookback(),
                     .max_num_seqs = limits.max_num_seqs,
                     .max_num_batched_tokens = limits.max_num_batched_tokens,
                     .max_draft = ops.takes_drafts() ? limits.max_draft : 0,
                     .draft = limits.draft_model != nullptr ? &draft : nullptr,
                     .draft_weight_bytes = draft_weights.bytes,
                     .taps = {.enable_steering = settings.enable_steering,
                              .max_steering_rows = settings.max_steering_rows,
                              .steering_bytes = settings.steering_memory_mb << 20,
                              .capture_bytes = settings.capture_memory_mb << 20,
                              .embedding_bytes = settings.embedding_memory_mb << 20,
                              .max_num_seqs = limits.max_num_seqs,
                              .max_in_flight = step::Capacity{}.max_in_flight,
                              .reads_aside = ops.has_reader() && rank.is_alone()},
                     .rank = rank}));
  if (limits.draft_model != nullptr) {
    RUDDER_TRY_VOID(check_draft_model(draft, spec, budget.kv.groups, budget.max_seq_len, ops));
  }
  return budget;
}

// The ranks keep KV alike, so one has as many blocks as another, and the longest sequence of all.
// Their weights differ a little; the first has most.
Result<MemoryBudget> budget_ranks(const weights::Checkpoint& checkpoint,
                                  const model::ModelSpec& spec, const Ranks& ranks,
                                  const ExecSettings& settings, const StepLimits& limits) {
  ExecSettings shortest = settings;
  RUDDER_TRY(MemoryBudget all, budget_rank(checkpoint, spec, *ranks.front(), settings, limits));
  for (size_t i = 1; i < ranks.size(); ++i) {
    RUDDER_TRY(const MemoryBudget one, budget_rank(checkpoint, spec, *ranks[i], shortest, limits));
    if (one.max_seq_len < all.max_seq_len) {
      shortest.max_model_len = one.max_seq_len;
      RUDDER_TRY(all, budget_rank(checkpoint, spec, *ranks.front(), shortest, limits));
    }
    all.num_blocks = std::min(all.num_blocks, one.num_blocks);
  }
  return all;
}

step::Capacity capacity_of(const MemoryBudget& memory, const model::ModelSpec& spec,
                           const StepLimits& limits) {
  return {.num_slots = limits.max_num_seqs,
          .num_blocks = memory.num_blocks,
          .block_size = memory.block_size,
          .max_tokens_per_step = limits.max_num_batched_tokens,
          .max_seq_len = memory.max_seq_len,
          .vocab_size = spec.vocab,
          .max_repeat = limits.max_repeat,
          .max_draft = memory.max_draft,
          .guesses = limits.draft_model != nullptr,
          .kv_groups = memory.kv.groups,
          .geometry = memory.geometry,
          .taps = memory.taps};
}

// The progress of loading rank `index` as that of loading all of them.
ProgressFn of_all(const ProgressFn& progress, size_t index, size_t num_ranks) {
  if (!progress || num_ranks == 1) return progress;
  return [=](int64_t done, int64_t total) {
    progress(static_cast<int64_t>(index) * total + done, static_cast<int64_t>(num_ranks) * total);
  };
}

}  // namespace

Result<MemoryBudget> budget_model(const weights::Checkpoint& checkpoint, const Ranks& ranks,
                                  const ExecSettings& settings, const StepLimits& limits) {
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(checkpoint));
  return budget_ranks(checkpoint, spec, ranks, settings, limits);
}

Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, Ranks ranks,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress) {
  LoadedModel loaded;
  RUDDER_TRY(loaded.spec, model::read_spec(checkpoint));
  RUDDER_TRY(loaded.memory, budget_ranks(checkpoint, loaded.spec, ranks, settings, limits));
  const step::Capacity capacity = capacity_of(loaded.memory, loaded.spec, limits);
  std::vector<std::unique_ptr<step::Executor>> executors;
  for (size_t i = 0; i < ranks.size(); ++i) {
    DeviceExecutor::Model model;
    RUDDER_TRY(model.spec, model::shard_spec(loaded.spec, ops::rank_of(*ranks[i])));
    RUDDER_TRY(model.weights, model::load_weights(checkpoint, loaded.spec, *ranks[i],
                                                  of_all(progress.weights, i, ranks.size())));
    if (i == 0) loaded.memory.weight_bytes = model.weights.bytes;  // as packed
    if (loaded.memory.has_lens) {
      RUDDER_TRY(loaded.lens, HeadLens::make(ranks[i]->make_reader(), loaded.spec, model.weights));
    }
    if (limits.draft_model != nullptr) {
      DraftModel& draft = model.draft.emplace();
      RUDDER_TRY(draft.spec, read_draft(*limits.draft_model));
      RUDDER_TRY(draft.weights,
                 model::load_weights(*limits.draft_model, draft.spec, *ranks[i], {}));
    }
    model.ops = std::move(ranks[i]);
    model.kv = loaded.memory.kv;
    RUDDER_TRY(executors.emplace_back(),
               DeviceExecutor::start(
                   std::move(model), capacity,
                   {.enforce_eager = settings.enforce_eager, .capture_progress = progress.graphs}));
  }
  loaded.executor = GroupExecutor::of(std::move(executors));
  return loaded;
}

Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, std::unique_ptr<ops::Ops> ops,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress) {
  Ranks alone;
  alone.push_back(std::move(ops));
  return load_model(checkpoint, std::move(alone), settings, limits, progress);
}

}  // namespace rudder::exec
