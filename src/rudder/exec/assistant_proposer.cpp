#include "rudder/exec/assistant_proposer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/exec/make_executor.h"
#include "rudder/exec/scorer.h"
#include "rudder/model/loader.h"

namespace rudder::exec {
namespace {

using ops::View;
using tensor::DType;

View as_column(View view) {
  view.shape = {view.shape.numel(), 1};
  return view;
}

}  // namespace

Result<std::unique_ptr<DraftSource>> AssistantProposer::read(const StepLimits& limits,
                                                             const model::ModelSpec& target) {
  Result<model::AssistantSpec> spec = model::read_assistant(*limits.draft_model);
  if (!spec) return of_draft(spec.error());
  if (!limits.draft_tree.tree.empty()) {
    return fail(ErrorCode::kUnsupported, "an assistant guesses chains alone",
                "speculative-config.speculative_token_tree");
  }
  RUDDER_TRY_VOID(model::fit_assistant(target, *spec));
  auto source = std::make_unique<AssistantProposer>(*std::move(spec), model::AssistantWeights());
  source->checkpoint_ = limits.draft_model;
  return source;
}

Result<void> AssistantProposer::check_device(ops::Ops& ops, const model::Stage& /*stage*/) const {
  return check_runs_heads(ops);
}

Result<void> AssistantProposer::check_model(const model::ModelSpec& /*model*/,
                                            const step::KvGroups& /*groups*/,
                                            int32_t max_seq_len) const {
  return check_positions(spec_.layers, max_seq_len);
}

Result<void> AssistantProposer::join(std::vector<model::Stage>& stages) const {
  return model::join_assistant(spec_, stages);
}

Result<int64_t> AssistantProposer::weight_bytes(ops::Ops& ops) const {
  return model::assistant_bytes(spec_, model::stored_formats(*checkpoint_, ops), ops::rank_of(ops));
}

int64_t AssistantProposer::device_bytes(const step::Capacity& capacity, DType act,
                                        ops::Rank rank) const {
  return model::Assistant::device_bytes(spec_, capacity.num_slots, capacity.max_seq_len, act,
                                        rank) +
         RowPasses::device_bytes(capacity, spec_.target_hidden, act) +
         capacity.num_slots * int64_t{sizeof(int32_t)};
}

Result<void> AssistantProposer::shard(ops::Rank rank) {
  RUDDER_TRY(spec_, model::shard_assistant(spec_, rank));
  return {};
}

Result<void> AssistantProposer::load(ops::Ops& ops) {
  Result<model::AssistantWeights> weights = model::load_assistant(*checkpoint_, spec_, ops);
  if (!weights) return of_draft(weights.error());
  weights_ = *std::move(weights);
  checkpoint_ = nullptr;
  return {};
}

Result<void> AssistantProposer::bind(const DraftSite& site) {
  RUDDER_CHECK(spec_.layers.vocab == site.capacity.vocab_size);
  ops_ = &site.ops;
  final_rows_ = site.sampled_rows;
  block_table_ = site.slots.block_table;
  group_rows_ = site.capacity.num_slots + 1;
  const model::AssistantSource source =
      model::assistant_source(spec_, site.spec, site.weights, site.kv);
  RUDDER_TRY(assistant_,
             model::Assistant::make(spec_, weights_, source, site.ops, site.capacity.num_slots,
                                    site.capacity.max_seq_len));
  RUDDER_TRY(passes_, RowPasses::make(site));
  RUDDER_TRY_VOID(name_slots(site.capacity.num_slots));
  if (site.has_graphs && site.ops.graph_ops() != nullptr) {
    step::Capacity passes = RowPasses::capacity_of(site.capacity);
    passes.max_seq_len = site.capacity.max_seq_len;
    graphs_ =
        std::make_unique<Graphs>(site.ops, passes, bind_passes(site.ops, *assistant_, passes));
  }
  return {};
}

Result<void> AssistantProposer::name_slots(int32_t num_slots) {
  std::vector<int32_t> names(static_cast<size_t>(num_slots));
  std::iota(names.rbegin(), names.rend(), -num_slots);
  RUDDER_TRY(slots_, ops_->upload({names.data(), DType::kI32, {num_slots, 1}}, DType::kI32));
  return {};
}

// The tokens of the next pass are those that the slots have sampled; padding keeps its own.
void AssistantProposer::take_sampled(const DeviceStep& pass, int64_t count) {
  const View ids = pass.forward.ids.rows(0, count);
  ops_->gather_rows({.x = slots_,
                     .rows = pass.forward.attention.table_row.rows(0, count),
                     .out = as_column(ids)});
  ops::BeginStepArgs args;
  args.state = passes_->buffers().state();
  args.ids = ids;
  args.kv_slot = pass.forward.kv_slot.rows(0, count);  // -1 already
  ops_->begin_step(args);
}

Result<Setup> AssistantProposer::enqueue(const DeviceStep& step, std::span<GuessAsk> asks) {
  Setup setup;
  const int32_t most = passes_->pack(asks);
  if (most == 0) return setup;
  const int64_t count = passes_->packed.num_seqs();
  const bool is_captured = graphs_ != nullptr && graphs_->pad(passes_->packed, setup);
  RUDDER_TRY(DeviceStep pass, passes_->begin_behind(step));
  pass.forward.attention.block_table = block_table_;
  pass.forward.attention.group_rows = group_rows_;
  if (is_captured) RUDDER_TRY_VOID(graphs_->capture(pass, setup));
  assistant_->pick(final_rows_, pass.forward.goes_on_rows);
  for (int32_t i = 0; i < most; ++i) {
    if (i > 0) take_sampled(pass, count);
    run_packed(*ops_, *assistant_, is_captured ? graphs_.get() : nullptr, pass);
    passes_->keep(pass, i);
  }
  return setup;
}

}  // namespace rudder::exec
