#include "rudder/exec/make_executor.h"

#include <utility>

#include "rudder/exec/device_executor.h"
#include "rudder/exec/head_lens.h"
#include "rudder/model/loader.h"

namespace rudder::exec {
namespace {

Result<MemoryBudget> budget_spec(const weights::Checkpoint& checkpoint,
                                 const model::ModelSpec& spec, const ops::Ops& ops,
                                 const ExecSettings& settings, const StepLimits& limits) {
  const model::WeightBudget weights = model::budget_weights(checkpoint, spec, ops);
  return budget_memory(
      spec, {.act = ops.act_dtype(), .kv = ops.kv_dtype(), .linear = weights.linear_dtype},
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
       .taps = {.enable_steering = settings.enable_steering,
                .max_steering_rows = settings.max_steering_rows,
                .steering_bytes = settings.steering_memory_mb << 20,
                .capture_bytes = settings.capture_memory_mb << 20,
                .embedding_bytes = settings.embedding_memory_mb << 20,
                .max_num_seqs = limits.max_num_seqs,
                .max_in_flight = step::Capacity{}.max_in_flight,
                .reads_aside = ops.has_reader()}});
}

}  // namespace

Result<MemoryBudget> budget_model(const weights::Checkpoint& checkpoint, const ops::Ops& ops,
                                  const ExecSettings& settings, const StepLimits& limits) {
  RUDDER_TRY(const model::ModelSpec spec, model::read_spec(checkpoint));
  return budget_spec(checkpoint, spec, ops, settings, limits);
}

Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, std::unique_ptr<ops::Ops> ops,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress) {
  LoadedModel loaded;
  RUDDER_TRY(loaded.spec, model::read_spec(checkpoint));
  RUDDER_TRY(loaded.memory, budget_spec(checkpoint, loaded.spec, *ops, settings, limits));
  RUDDER_TRY(model::Weights weights,
             model::load_weights(checkpoint, loaded.spec, *ops, progress.weights));
  loaded.memory.weight_bytes = weights.bytes;  // as packed
  if (loaded.memory.has_lens) {
    RUDDER_TRY(loaded.lens, HeadLens::make(ops->make_reader(), loaded.spec, weights));
  }
  RUDDER_TRY(loaded.executor,
             DeviceExecutor::start(
                 {std::move(ops), loaded.spec, std::move(weights), loaded.memory.kv},
                 {.num_slots = limits.max_num_seqs,
                  .num_blocks = loaded.memory.num_blocks,
                  .block_size = loaded.memory.block_size,
                  .max_tokens_per_step = limits.max_num_batched_tokens,
                  .max_seq_len = loaded.memory.max_seq_len,
                  .vocab_size = loaded.spec.vocab,
                  .max_repeat = limits.max_repeat,
                  .max_draft = loaded.memory.max_draft,
                  .kv_groups = loaded.memory.kv.groups,
                  .geometry = loaded.memory.geometry,
                  .taps = loaded.memory.taps},
                 {.enforce_eager = settings.enforce_eager, .capture_progress = progress.graphs}));
  return loaded;
}

}  // namespace rudder::exec
