#include "rudder/exec/make_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "rudder/base/contain.h"
#include "rudder/exec/adapter_table.h"
#include "rudder/exec/check_trees.h"
#include "rudder/exec/device_executor.h"
#include "rudder/exec/draft_sources.h"
#include "rudder/exec/head_lens.h"
#include "rudder/exec/pipeline_executor.h"
#include "rudder/exec/read_model.h"
#include "rudder/exec/stage_link.h"
#include "rudder/exec/tier_caps.h"
#include "rudder/model/loader.h"
#include "rudder/model/shard.h"
#include "rudder/model/stage.h"
#include "rudder/wrap/group_executor.h"

namespace rudder::exec {
namespace {

// Executors are made in three steps: each device gets a memory budget, and all budgets are made
// equal (budget_all); each device loads its part of the model and starts an executor of its own
// (load_ranks); the executors of a replica become one (join).

// How a model is divided among devices. The devices are listed replica by replica, the devices of a
// replica stage by stage, the devices of a stage rank by rank. load_models() and budget_model() own
// one while they run.
struct Division {
  const weights::Checkpoint& checkpoint;
  const model::ModelSpec& spec;  // of the whole model
  const std::vector<model::Stage> stages;
  const size_t num_ranks;  // of each stage
  const ExecSettings& settings;
  const StepLimits& limits;

  const model::Stage& stage_of(size_t device) const {
    return stages[device / num_ranks % stages.size()];
  }
  // Each stage may run a step of its own, and one more step waits in front of the first stage.
  int32_t max_in_flight() const {
    return std::max(step::Capacity{}.max_in_flight, static_cast<int32_t>(stages.size()) + 1);
  }
};

Result<std::vector<model::Stage>> stages_of(const weights::Checkpoint& checkpoint,
                                            const model::ModelSpec& spec, ops::Ops& ops,
                                            const ExecSettings& settings,
                                            const StepLimits& limits) {
  RUDDER_TRY_VOID(check_trees(limits, spec, ops, settings.parallel.stages));
  if (settings.parallel.stages == 1) return std::vector<model::Stage>(1);
  RUDDER_TRY(std::vector<model::Stage> stages,
             model::divide_checkpoint(checkpoint, spec, ops, settings.parallel.stages));
  if (limits.draft_model == nullptr) return stages;
  RUDDER_TRY(const std::unique_ptr<DraftSource> source, read_source(limits, spec));
  RUDDER_TRY_VOID(source->join(stages));  // it is where the model samples
  return stages;
}

// Device memory for the encoders of dictionaries, with which a device reads captured rows as
// features. The CPU backend needs none: the host code that reads features has the dictionaries in
// memory already.
int64_t feature_bytes(const ExecSettings& settings, ops::Ops& ops) {
  constexpr int64_t kDefaultMb = 256;
  const bool reads = ops.reader_ops() != nullptr && ops.feature_ops() != nullptr && !ops.is_host();
  if (!reads || !settings.dictionaries.any) return 0;
  return (settings.feature_memory_mb > 0 ? settings.feature_memory_mb : kDefaultMb) << 20;
}

// The drafts that an executor takes: as many as the settings ask for, as `source` guesses (null:
// nothing guesses on the device). `may_take_trees`: the device's steps can verify trees.
step::DraftCaps draft_caps(const StepLimits& limits, const DraftSource* source,
                           bool may_take_trees) {
  step::DraftCaps caps = {.max_draft = limits.max_draft, .guesses = source != nullptr};
  if (source != nullptr) source->describe(caps);
  caps.takes_trees = may_take_trees && (limits.host_trees || !caps.guess_tree.empty());
  return caps;
}

// One row more than may be named at once, for a new version of one while the old one runs.
lora::TableSize adapter_table_size(const ExecSettings& settings) {
  if (!settings.lora.enable) return {};
  return {.num_rows = settings.lora.max_loras + 1, .max_rank = settings.lora.max_rank};
}

// The memory budget of one device. `max_model_len` is the longest sequence that the settings allow,
// or a shorter one if another device has no room for that.
Result<MemoryBudget> budget_rank(const Division& division, ops::Ops& ops, const model::Stage& stage,
                                 int32_t max_model_len) {
  const ExecSettings& settings = division.settings;
  const StepLimits& limits = division.limits;
  const ops::Rank rank = ops::rank_of(ops);
  const ops::ReaderOps* const reader = ops.reader_ops();
  RUDDER_TRY(const model::ModelSpec part, model::shard_spec(division.spec, rank));
  RUDDER_TRY(const std::unique_ptr<DraftSource> source, read_source(limits, division.spec));
  const bool may_take_trees =
      ops.tree_ops() != nullptr && stage.is_alone() && model::runs_trees(part);
  const step::DraftCaps drafts = draft_caps(limits, source.get(), may_take_trees);
  const bool guesses = source != nullptr && stage.is_last();
  int64_t source_bytes = 0;
  if (guesses) {
    RUDDER_TRY_VOID(source->check_device(ops, stage));
    RUDDER_TRY(source_bytes, source->weight_bytes(ops));
    RUDDER_TRY_VOID(shard_source(*source, rank));
  }
  RUDDER_TRY(const model::WeightBudget weights,
             model::budget_weights(division.checkpoint, division.spec, ops, rank, stage));
  const lora::TableSize adapters = adapter_table_size(settings);
  if (!adapters.empty() && ops.adapter_ops() == nullptr) {
    return fail(ErrorCode::kUnsupported, fmt::format("the backend {} has no adapters", ops.name()),
                "enable-lora");
  }
  RUDDER_TRY(MemoryBudget budget,
             budget_memory(part, {.act = ops.act_dtype(), .kv = ops.kv_format()},
                           {.weights = weights,
                            .available_bytes = ops.available_memory(),
                            .utilization = settings.gpu_memory_utilization,
                            .kv_cache_memory_bytes = settings.kv_cache_memory_bytes,
                            .max_model_len = max_model_len,
                            .block_size = settings.block_size,
                            .attention_lookback = ops.attention_lookback(),
                            .max_num_seqs = limits.max_num_seqs,
                            .max_num_batched_tokens = limits.max_num_batched_tokens,
                            .drafts = drafts,
                            .source = guesses ? source.get() : nullptr,
                            .source_weight_bytes = source_bytes,
                            .states = {.fraction = settings.states.memory_fraction,
                                       .checkpoint_blocks = settings.states.checkpoint_blocks},
                            .taps = {.enable_steering = settings.enable_steering,
                                     .max_steering_rows = settings.max_steering_rows,
                                     .steering_bytes = settings.steering_memory_mb << 20,
                                     .capture_bytes = settings.capture_memory_mb << 20,
                                     .embedding_bytes = settings.embedding_memory_mb << 20,
                                     .max_num_seqs = limits.max_num_seqs,
                                     .max_in_flight = division.max_in_flight(),
                                     .reads_aside = reader != nullptr,
                                     .reader_bytes = reader == nullptr ? 0 : reader->reader_bytes(),
                                     .encodes = ops.feature_ops() != nullptr,
                                     .feature_bytes = feature_bytes(settings, ops),
                                     .patterns = ops.pattern_ops() != nullptr,
                                     .routers = ops::router_taps_of(ops.expert_ops()) != nullptr},
                            .adapters = {adapters, AdapterTable::device_bytes(
                                                       model::stage_spec(part, stage), adapters,
                                                       limits.max_num_batched_tokens, ops)},
                            .rank = rank,
                            .stage = stage,
                            .max_in_flight = division.max_in_flight()}));
  if (guesses) {
    RUDDER_TRY_VOID(source->check_model(division.spec, budget.kv.groups, budget.max_seq_len));
  }
  return budget;
}

// One memory budget for all devices. Every device holds a part of each block, state and sequence,
// so all devices get the numbers of the device that has room for the fewest blocks and states and
// for the shortest sequence. The result is the first device's budget, since the first rank of a
// stage has the largest weights; where there are several stages, it has a budget for each in
// `stages`.
Result<MemoryBudget> budget_all(const Division& division, const std::vector<ops::Ops*>& devices) {
  const auto budget_each = [&](int32_t max_model_len) -> Result<std::vector<MemoryBudget>> {
    std::vector<MemoryBudget> budgets;
    for (size_t i = 0; i < devices.size(); ++i) {
      RUDDER_TRY(budgets.emplace_back(),
                 budget_rank(division, *devices[i], division.stage_of(i), max_model_len));
    }
    return budgets;
  };
  RUDDER_TRY(std::vector<MemoryBudget> all, budget_each(division.settings.max_model_len));
  int32_t shortest = all.front().max_seq_len;
  bool are_equal = true;
  for (const MemoryBudget& one : all) {
    are_equal = are_equal && one.max_seq_len == all.front().max_seq_len;
    shortest = std::min(shortest, one.max_seq_len);
  }
  if (!are_equal) {
    RUDDER_TRY(all, budget_each(shortest));
  }
  int32_t num_blocks = all.front().num_blocks;
  step::StatePool states = all.front().states;
  for (const MemoryBudget& one : all) {
    num_blocks = std::min(num_blocks, one.num_blocks);
    states.count = std::min(states.count, one.states.count);
    states.checkpoint_blocks = std::max(states.checkpoint_blocks, one.states.checkpoint_blocks);
  }
  for (MemoryBudget& one : all) {
    one.num_blocks = num_blocks;
    one.states.count = states.count;
    one.states.checkpoint_blocks = states.checkpoint_blocks;
  }
  MemoryBudget budget = all.front();
  RUDDER_TRY(budget.tiers, budget_tiers(division.settings.tiers, budget, devices));
  if (division.stages.size() == 1) return budget;
  for (size_t i = 0; i < division.stages.size(); ++i) {
    budget.stages.push_back(all[i * division.num_ranks]);
  }
  budget.readers.has_lens = budget.stages.back().readers.has_lens;
  return budget;
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
          .max_in_flight = memory.max_in_flight,
          .max_repeat = limits.max_repeat,
          .drafts = memory.drafts,
          .kv_groups = memory.kv.groups,
          .states = memory.states,
          .tiers = memory.tiers,
          .geometry = memory.geometry,
          .taps = memory.taps,
          .adapters = memory.adapters.size};
}

// What the loading threads read in common.
struct Loading {
  const Division& division;
  const MemoryBudget& memory;
  const LoadProgress& progress;
};

// The part that a device has in its replica.
struct DevicePart {
  model::Stage stage;
  // Connects the ranks of equal index of the replica's stages; null: one stage has all layers.
  std::shared_ptr<StageLink> link;
};

// A device that is loaded. It owns what it has of the model through its executor.
struct LoadedRank {
  std::unique_ptr<step::Executor> executor;
  // The device's part of the lens, if it has one. The reader of the stage's first rank reads the
  // heads of all ranks.
  std::unique_ptr<ops::Ops> reader;
  HeadLens::Weights lens;
  std::unique_ptr<ops::Ops> feature_ops;  // where rows are read as features
  HeldMemory held;
  int64_t weight_bytes = 0;
};

Result<LoadedRank> load_rank(const Loading& loading, std::unique_ptr<ops::Ops> ops,
                             const DevicePart& part, const ProgressFn& progress) {
  const Division& division = loading.division;
  const bool is_alone = loading.memory.stages.empty();
  const MemoryBudget& memory =
      is_alone ? loading.memory : loading.memory.stages[static_cast<size_t>(part.stage.index)];
  LoadedRank loaded;
  DeviceExecutor::Model model;
  RUDDER_TRY(model.spec, model::shard_spec(division.spec, ops::rank_of(*ops)));
  model.spec = model::stage_spec(model.spec, part.stage);
  RUDDER_TRY(model.weights,
             model::load_weights(division.checkpoint, division.spec, *ops, progress, part.stage));
  loaded.weight_bytes = model.weights.bytes;
  if (memory.readers.has_lens) {
    if (ops::rank_of(*ops).index == 0) loaded.reader = ops->reader_ops()->make_reader();
    loaded.lens = {
        model.weights.final_norm, {model.weights.head}, model.weights.layers.back().residual};
  }
  if (memory.readers.feature_bytes > 0 && part.stage.is_first() && ops::rank_of(*ops).index == 0) {
    loaded.feature_ops = ops->reader_ops()->make_reader();
  }
  if (memory.drafts.guesses && part.stage.is_last()) {
    RUDDER_TRY(model.draft, read_source(division.limits, division.spec));
    RUDDER_TRY_VOID(model.draft->load(*ops));
    RUDDER_TRY_VOID(shard_source(*model.draft, ops::rank_of(*ops)));
  }
  if (!memory.adapters.size.empty()) {
    RUDDER_TRY(std::vector<model::AdaptedProduct> products,
               model::adapted_products(division.checkpoint, division.spec, model.weights,
                                       ops::rank_of(*ops), part.stage));
    RUDDER_TRY(model.adapters, AdapterTable::make(*ops, std::move(products), memory.adapters.size,
                                                  division.limits.max_num_batched_tokens));
  }
  model.ops = std::move(ops);
  model.kv = memory.kv;
  RUDDER_TRY(
      loaded.executor,
      DeviceExecutor::start(std::move(model), capacity_of(memory, division.spec, division.limits),
                            {.enforce_eager = division.settings.enforce_eager,
                             .capture_progress = loading.progress.graphs,
                             .link = part.link,
                             .make_decoder = division.limits.make_decoder,
                             .record_folder = division.settings.tiers.disk_dir,
                             .held = &loaded.held}));
  RUDDER_TRY(loaded.held.parts,
             model::parts_of(division.checkpoint, division.spec, ops::rank_of(*loaded.held.ops),
                             part.stage, *loaded.held.weights));
  return loaded;
}

// Devices load at the same time; JointProgress reports their progress as that of one load. The
// loading threads call it.
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

// Loads every device, at the same time: the first on the caller's thread, each other one on a
// thread that ends before the call returns.
std::vector<Result<LoadedRank>> load_ranks(const Loading& loading,
                                           std::vector<std::unique_ptr<ops::Ops>> ranks,
                                           const std::vector<DevicePart>& parts) {
  JointProgress progress(loading.progress.weights, ranks.size());
  std::vector<Result<LoadedRank>> loaded(ranks.size());
  const auto load = [&](size_t i) {
    loaded[i] =
        contain([&] { return load_rank(loading, std::move(ranks[i]), parts[i], progress.of(i)); });
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < ranks.size(); ++i) threads.emplace_back(load, i);
  load(0);
  for (std::thread& thread : threads) thread.join();
  return loaded;
}

// The error that made the load fail; null: all devices are loaded. When one rank fails, the other
// ranks of its group fail with kCancelled; their errors count only if there is no other.
const Error* why_not_loaded(const std::vector<Result<LoadedRank>>& loaded) {
  const Error* why = nullptr;
  for (const Result<LoadedRank>& one : loaded) {
    if (one || (why != nullptr && why->code != ErrorCode::kCancelled)) continue;
    why = &one.error();
  }
  return why;
}

// The lens of a replica. The head that it reads lies on the last stage, divided among its ranks.
Result<std::unique_ptr<HeadLens>> make_lens(const model::ModelSpec& spec,
                                            std::span<Result<LoadedRank>> replica) {
  std::unique_ptr<ops::Ops> reader;
  HeadLens::Weights weights;
  for (Result<LoadedRank>& one : replica) {
    if (one->lens.heads.empty()) continue;
    if (weights.heads.empty()) {
      reader = std::move(one->reader);
      weights.final_norm = one->lens.final_norm;
      weights.residual = one->lens.residual;
    }
    weights.heads.push_back(std::move(one->lens.heads.front()));
  }
  return HeadLens::make(std::move(reader), spec, std::move(weights));
}

Result<std::unique_ptr<DeviceFeatureReader>> make_features(const MemoryBudget& memory,
                                                           const ExecSettings& settings,
                                                           std::unique_ptr<ops::Ops> reader) {
  FeatureBounds bounds = feature_bounds(memory);
  const bool is_bf16 = memory.geometry.dtype == tensor::DType::kBF16;
  bounds.dtype =
      settings.dictionaries.dtype.value_or(is_bf16 ? tensor::DType::kBF16 : tensor::DType::kF32);
  return DeviceFeatureReader::make(std::move(reader), bounds);
}

// The part of each device, in the order of the devices. Every rank of a stage has the whole
// residual stream, so a rank sends it to the rank of equal index of the next stage, and to no
// other.
std::vector<DevicePart> parts_of(const Division& division, size_t num_devices) {
  std::vector<DevicePart> parts;
  std::vector<std::shared_ptr<StageLink>> links(division.num_ranks);
  for (size_t i = 0; i < num_devices; ++i) {
    const model::Stage& stage = division.stage_of(i);
    std::shared_ptr<StageLink>& link = links[i % division.num_ranks];
    if (!stage.is_alone() && stage.is_first()) {
      link = std::make_shared<StageLink>(stage.count, division.max_in_flight());
    }
    parts.push_back({stage, link});
  }
  return parts;
}

// Makes one executor of the executors of a replica's devices.
std::unique_ptr<step::Executor> join(const Division& division,
                                     std::span<Result<LoadedRank>> replica) {
  std::vector<std::unique_ptr<step::Executor>> stages;
  for (size_t first = 0; first < replica.size(); first += division.num_ranks) {
    std::vector<std::unique_ptr<step::Executor>> group;
    for (Result<LoadedRank>& rank : replica.subspan(first, division.num_ranks)) {
      group.push_back(std::move(rank->executor));
    }
    stages.push_back(wrap::GroupExecutor::of(std::move(group)));
  }
  if (stages.size() == 1) return std::move(stages.front());
  return std::make_unique<PipelineExecutor>(std::move(stages));
}

size_t ranks_of_stage(const std::vector<ops::Ops*>& devices) {
  return static_cast<size_t>(ops::rank_of(*devices.front()).count);
}

}  // namespace

Result<MemoryBudget> budget_model(const weights::Checkpoint& checkpoint,
                                  std::span<const Ranks> replicas, const ExecSettings& settings,
                                  const StepLimits& limits) {
  const std::vector<ops::Ops*> devices = all_ranks(replicas);
  RUDDER_TRY(const model::ModelSpec spec, read_model(checkpoint, settings, *devices.front()));
  RUDDER_TRY(std::vector<model::Stage> stages,
             stages_of(checkpoint, spec, *devices.front(), settings, limits));
  return budget_all(
      {checkpoint, spec, std::move(stages), ranks_of_stage(devices), settings, limits}, devices);
}

Result<LoadedModels> load_models(const weights::Checkpoint& checkpoint, std::vector<Ranks> replicas,
                                 const ExecSettings& settings, const StepLimits& limits,
                                 const LoadProgress& progress) {
  LoadedModels models;
  const std::vector<ops::Ops*> devices = all_ranks(replicas);
  RUDDER_TRY(models.spec, read_model(checkpoint, settings, *devices.front()));
  RUDDER_TRY(std::vector<model::Stage> stages,
             stages_of(checkpoint, models.spec, *devices.front(), settings, limits));
  const Division division{checkpoint, models.spec, std::move(stages), ranks_of_stage(devices),
                          settings,   limits};
  RUDDER_TRY(models.memory, budget_all(division, devices));
  const size_t num_devices = replicas.front().size();
  std::vector<std::unique_ptr<ops::Ops>> ranks;
  for (Ranks& replica : replicas) std::ranges::move(replica, std::back_inserter(ranks));
  std::vector<Result<LoadedRank>> loaded = load_ranks(
      {division, models.memory, progress}, std::move(ranks), parts_of(division, devices.size()));
  if (const Error* const error = why_not_loaded(loaded)) return tl::unexpected<Error>(*error);
  models.memory.weights.bytes = loaded.front()->weight_bytes;  // as packed
  for (size_t i = 0; i < models.memory.stages.size(); ++i) {
    models.memory.stages[i].weights.bytes = loaded[i * division.num_ranks]->weight_bytes;
  }
  std::shared_ptr<HeadLens> lens;
  if (models.memory.readers.has_lens) {
    RUDDER_TRY(lens, make_lens(models.spec, std::span(loaded).first(num_devices)));
    models.lens = lens;
  }
  std::vector<HeldMemory> held;
  held.reserve(loaded.size());
  for (Result<LoadedRank>& rank : loaded) held.push_back(std::move(rank->held));
  models.resident = std::make_shared<ResidentModel>(models.spec, std::move(held), std::move(lens));
  if (models.memory.readers.feature_bytes > 0) {
    RUDDER_TRY(models.features,
               make_features(models.memory, settings, std::move(loaded.front()->feature_ops)));
  }
  for (size_t first = 0; first < loaded.size(); first += num_devices) {
    models.executors.push_back(join(division, std::span(loaded).subspan(first, num_devices)));
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
                     .lens = std::move(models.lens),
                     .features = std::move(models.features)};
}

Result<LoadedModel> load_model(const weights::Checkpoint& checkpoint, std::unique_ptr<ops::Ops> ops,
                               const ExecSettings& settings, const StepLimits& limits,
                               const LoadProgress& progress) {
  Ranks alone;
  alone.push_back(std::move(ops));
  return load_model(checkpoint, std::move(alone), settings, limits, progress);
}

}  // namespace rudder::exec
