#include "rudder/exec/model_proposer.h"

#include "rudder/exec/make_executor.h"
#include "rudder/model/loader.h"
#include "rudder/model/shard.h"
#include "rudder/model/weight_budget.h"

namespace rudder::exec {

Result<std::unique_ptr<DraftSource>> ModelProposer::read(const StepLimits& limits,
                                                         const model::ModelSpec& /*target*/) {
  Result<model::ModelSpec> spec = model::read_spec(*limits.draft_model);
  if (!spec) return of_draft(spec.error());
  if (!limits.draft_tree.tree.empty() && !model::runs_trees(*spec)) {
    return fail(ErrorCode::kUnsupported,
                "a layer of the draft model has a window or a gate: it guesses chains alone",
                "speculative-config.speculative_token_tree");
  }
  auto source =
      std::make_unique<ModelProposer>(*std::move(spec), model::Weights(), limits.draft_tree);
  source->checkpoint_ = limits.draft_model;
  return source;
}

Result<int64_t> ModelProposer::weight_bytes(ops::Ops& ops) const {
  RUDDER_TRY(const model::WeightBudget weights,
             model::budget_weights(*checkpoint_, spec_, ops, ops::rank_of(ops)));
  return weights.bytes;
}

Result<void> ModelProposer::shard(ops::Rank rank) {
  RUDDER_TRY(spec_, model::shard_spec(spec_, rank));
  return {};
}

Result<void> ModelProposer::load(ops::Ops& ops) {
  RUDDER_TRY(weights_, model::load_weights(*checkpoint_, spec_, ops, {}));
  checkpoint_ = nullptr;
  return {};
}

Result<std::unique_ptr<model::Decoder>> ModelProposer::make_decoder(
    const DraftSite& site, std::span<const ops::KvLayer> kv, const model::DecoderLimits& limits,
    int32_t /*num_feedback*/) const {
  return model::Decoder::make(spec_, weights_, kv, site.ops, limits);
}

int64_t ModelProposer::decoder_bytes(const model::DecoderLimits& limits, int32_t /*num_feedback*/,
                                     tensor::DType act, ops::Rank rank) const {
  return model::Decoder::workspace_bytes(spec_, limits, act, rank);
}

}  // namespace rudder::exec
