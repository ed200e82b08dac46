#include "rudder/exec/make_executor.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "rudder/base/contain.h"
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
                              .reads_aside = ops.has_reader() && rank.is_alone(),
                              .encodes = ops.has_encode() && rank.is_alone()},
                     .rank = rank}));
  if (limits.draft_model != nullptr) {
    RUDDER_TRY_VOID(check_draft_model(draft, spec, budget.kv.groups, budget.max_seq_len, ops));
  }
  return budget;
}

// All keep KV alike, so one has as many blocks as another, and the longest sequence of all. Weights
// of ranks differ a little; the first has most.
Result<MemoryBudget> budget_all(const weights::Checkpoint& checkpoint, const model::ModelSpec& spec,
                                const std::vector<ops::Ops*>& ranks, const ExecSettings& settings,
                                const StepLimits& limits) {
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

std::vector<ops::Ops*> all_ranks(std::span<const Ranks> replicas) {
  std::vector<ops::Ops*> all;
  for (const Ranks& ranks : replicas) {
    for (const auto& ops : ranks) all.push_back(ops.get());
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

// What all ranks of a model load with.
struct Loading {
  const weights::Checkpoint& checkpoint;
  const weights::Checkpoint* draft_model;  // null: none guesses
  const model::ModelSpec& spec;
  const ExecSettings& settings;
  const MemoryBudget& memory;
  const step::Capacity& capacity;
  const LoadProgress& progress;
};

struct LoadedRank {
  std::unique_ptr<step::Executor> executor;
  std::shared_ptr<steer::capture::Lens> lens;
  int64_t weight_bytes = 0;
};

Result<LoadedRank> load_rank(const Loading& loading, std::unique_ptr<ops::Ops> ops,
                             const ProgressFn& progress) {
  LoadedRank loaded;
  DeviceExecutor::Model model;
  RUDDER_TRY(model.spec, model::shard_spec(loading.spec, ops::rank_of(*ops)));
  RUDDER_TRY(model.weights, model::load_weights(loading.checkpoint, loading.spec, *ops, progress));
  loaded.weight_bytes = model.weights.bytes;
  if (loading.memory.has_lens) {
    RUDDER_TRY(loaded.lens, HeadLens::make(ops->make_reader(), loading.spec, model.weights));
  }
  if (loading.draft_model != nullptr) {
    DraftModel& draft = model.draft.emplace();
    RUDDER_TRY(draft.spec, read_draft(*loading.draft_model));
    RUDDER_TRY(draft.weights, model::load_weights(*loading.draft_model, draft.spec, *ops, {}));
  }
  model.ops = std::move(ops);
  model.kv = loading.memory.kv;
  RUDDER_TRY(loaded.executor,
             DeviceExecutor::start(std::move(model), loading.capacity,
                                   {.enforce_eager = loading.settings.enforce_eager,
                                    .capture_progress = loading.progress.graphs}));
  return loaded;
}

// The progress of several that load at the same time as that of loading all of them.
class JointProgress {
 public:
  JointProgress(ProgressFn report, size_t count) : report_(std::move(report)), done_(count, 0) {}

  ProgressFn of(size_t index) {
    if (!report_) return {};
    return [this, index](int64_t done, int64_t total) {
      const std::lock_guard lock(mutex_);
      done_[index] = done;
      report_(std::accumulate(done_.begin(), done_.end(), int64_t{0}), std::ssize(done_) * total);
    };
  }

 private:
  const ProgressFn report_;
  std::mutex mutex_;
  std::vector<int64_t> done_;
};

// Each on a thread of its own; one that is alone on this one.
std::vector<Result<LoadedRank>> load_ranks(const Loading& loading,
                                           std::vector<std::unique_ptr<ops::Ops>> ranks) {
  JointProgress progress(loading.progress.weights, ranks.size());
  std::vector<Result<LoadedRank>> loaded(ranks.size());
  const auto load = [&](size_t i) {
    loaded[i] = contain([&] { return load_rank(loading, std::move(ranks[i]), progress.of(i)); });
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(load, i);
  load(0);
  for (std::thread& thread : threads) thread.join();
  return loaded;
}

}  // namespace

Result<MemoryBudget> budget_model(const weights::Checkpoint& checkpoint,
                                  std::span<const Ranks> replicas, const ExecSettings& settings,
                                  const StepLimits& limits) {
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(checkpoint));
  return budget_all(checkpoint, spec, all_ranks(replicas), settings, limits);
}

Result<LoadedModels> load_models(const weights::Checkpoint& checkpoint, std::vector<Ranks> replicas,
                                 const ExecSettings& settings, const StepLimits& limits,
                                 const LoadProgress& progress) {
  LoadedModels models;
  RUDDER_TRY(models.spec, model::read_spec(checkpoint));
  RUDDER_TRY(models.memory,
             budget_all(checkpoint, models.spec, all_ranks(replicas), settings, limits));
  const step::Capacity capacity = capacity_of(models.memory, models.spec, limits);
  const size_t num_ranks = replicas.front().size();
  std::vector<std::unique_ptr<ops::Ops>> ranks;
  for (Ranks& replica : replicas) std::ranges::move(replica, std::back_inserter(ranks));
  std::vector<Result<LoadedRank>> loaded = load_ranks(
      {checkpoint, limits.draft_model, models.spec, settings, models.memory, capacity, progress},
      std::move(ranks));
  for (const Result<LoadedRank>& one : loaded) {
    if (!one) return tl::unexpected<Error>(one.error());
  }
  models.memory.weight_bytes = loaded.front()->weight_bytes;  // as packed
  models.lens = std::move(loaded.front()->lens);
  for (size_t first = 0; first < loaded.size(); first += num_ranks) {
    std::vector<std::unique_ptr<step::Executor>> group;
    for (size_t i = 0; i < num_ranks; ++i) group.push_back(std::move(loaded[first + i]->executor));
    models.executors.push_back(GroupExecutor::of(std::move(group)));
  }
  return models;
}

Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, Ranks ranks,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress) {
  std::vector<Ranks> replicas;
  replicas.push_back(std::move(ranks));
  RUDDER_TRY(LoadedModels models,
             load_models(checkpoint, std::move(replicas), settings, limits, progress));
  return LoadedModel{.executor = std::move(models.executors.front()),
                     .spec = std::move(models.spec),
                     .memory = std::move(models.memory),
                     .lens = std::move(models.lens)};
}

Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, std::unique_ptr<ops::Ops> ops,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress) {
  Ranks alone;
  alone.push_back(std::move(ops));
  return load_model(checkpoint, std::move(alone), settings, limits, progress);
}

}  // namespace rudder::exec
