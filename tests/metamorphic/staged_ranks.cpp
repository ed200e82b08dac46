#include "metamorphic/staged_ranks.h"

#include <utility>

#include "metamorphic/tap_asks.h"
#include "rudder/exec/pipeline_executor.h"
#include "rudder/exec/stage_link.h"
#include "rudder/model/shard.h"
#include "rudder/model/stage.h"
#include "rudder/model/tap_geometry.h"
#include "rudder/wrap/group_executor.h"

namespace rudder::metamorphic {
namespace {

std::unique_ptr<step::Executor> start_rank(const StagedRanks& ask, step::Capacity capacity,
                                           const model::Stage& stage, std::unique_ptr<ops::Ops> ops,
                                           std::shared_ptr<exec::StageLink> link) {
  exec::DeviceExecutor::Model model;
  model.ops = std::move(ops);
  const ops::Rank rank = ops::rank_of(*model.ops);
  const model::ModelSpec part = value_of(model::shard_spec(ask.whole, rank));
  model.weights = value_of(testing::random_weights(ask.whole, *model.ops, 7, stage));
  model.spec = stage.is_alone() ? part : model::stage_spec(part, stage);
  add_guesser(model, ask.whole, ask.guesser, ask.change_head);
  add_guesser(capacity, ask.guesser);
  if (ask.has_taps) {
    capacity = with_encodes(capacity, ask.arch);
    capacity.geometry = model::tap_geometry(part, model.ops->act_dtype(), rank);
  }
  model.kv = exec::stage_kv_layout(
      value_of(exec::make_kv_layout(part, {.kv = model.ops->kv_format(),
                                           .block_size = capacity.block_size,
                                           .max_seq_len = capacity.max_seq_len,
                                           .lookback = model.ops->attention_lookback()})),
      stage);
  capacity.kv_groups = model.kv.groups;
  capacity.num_blocks *= model.kv.groups.size();
  give_states(capacity, ask.whole);
  return value_of(exec::DeviceExecutor::start(std::move(model), capacity, {.link = link}));
}

}  // namespace

std::unique_ptr<step::Executor> staged_ranks(const StagedRanks& ask, const step::Capacity& capacity,
                                             std::vector<std::unique_ptr<ops::Ops>> devices) {
  auto stages = value_of(
      model::divide_layers(ask.whole, {}, ask.num_stages, model::all_as({ops::Codes::kF32}), {}));
  join_guesser(stages, ask.whole, ask.guesser);
  std::vector<std::shared_ptr<exec::StageLink>> links(static_cast<size_t>(ask.num_ranks));
  for (auto& link : links) {
    if (ask.num_stages == 1) break;
    link = std::make_shared<exec::StageLink>(ask.num_stages, capacity.max_in_flight);
  }
  auto device = devices.begin();
  std::vector<std::unique_ptr<step::Executor>> groups;
  for (const model::Stage& stage : stages) {
    std::vector<std::unique_ptr<step::Executor>> ranks;
    for (const auto& link : links) {
      ranks.push_back(start_rank(ask, capacity, stage, std::move(*device++), link));
    }
    groups.push_back(wrap::GroupExecutor::of(std::move(ranks)));
  }
  if (groups.size() == 1) return std::move(groups.front());
  return std::make_unique<exec::PipelineExecutor>(std::move(groups));
}

sched::SchedSettings staged_settings(int32_t num_cohorts, int32_t multi_step) {
  sched::SchedSettings settings = plain_settings();
  settings.max_num_batched_tokens = 60;
  settings.max_in_flight = 3;
  settings.multi_step = multi_step;
  settings.enable_prefix_caching = true;
  settings.num_cohorts = num_cohorts;
  return settings;
}

std::vector<Ask> arriving(std::vector<Ask> asks) {
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i * 7 % 23);
  return asks;
}

}  // namespace rudder::metamorphic
