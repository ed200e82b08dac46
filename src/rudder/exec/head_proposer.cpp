#include "rudder/exec/head_proposer.h"

#include "rudder/exec/make_executor.h"
#include "rudder/model/head_decoder.h"
#include "rudder/model/loader.h"

namespace rudder::exec {

Result<std::unique_ptr<DraftSource>> HeadProposer::read(const StepLimits& limits,
                                                        const model::ModelSpec& target) {
  Result<model::DraftHeadSpec> spec =
      model::read_draft_head(*limits.draft_model, limits.draft_method == step::DraftMethod::kEagle
                                                      ? model::HeadInput::kProduct
                                                      : model::HeadInput::kSideBySide);
  if (!spec) return of_draft(spec.error());
  RUDDER_TRY_VOID(model::fit_draft_head(target, *spec));
  auto source = std::make_unique<HeadProposer>(*std::move(spec), model::DraftHeadWeights(),
                                               limits.draft_tree);
  source->checkpoint_ = limits.draft_model;
  return source;
}

Result<void> HeadProposer::check_device(ops::Ops& ops, const model::Stage& /*stage*/) const {
  return check_runs_heads(ops);
}

Result<void> HeadProposer::join(std::vector<model::Stage>& stages) const {
  model::join_head(spec_, stages);
  return {};
}

RowsRead HeadProposer::rows_read() const {
  return {.layers = spec_.aux_layers, .final_norm = spec_.is_product(), .width = spec_.aux_width()};
}

Result<int64_t> HeadProposer::weight_bytes(ops::Ops& ops) const {
  return model::draft_head_bytes(spec_, model::stored_formats(*checkpoint_, ops),
                                 ops::rank_of(ops));
}

Result<void> HeadProposer::shard(ops::Rank rank) {
  RUDDER_TRY(spec_, model::shard_draft_head(spec_, rank));
  return {};
}

Result<void> HeadProposer::load(ops::Ops& ops) {
  Result<model::DraftHeadWeights> weights = model::load_draft_head(*checkpoint_, spec_, ops);
  if (!weights) return of_draft(weights.error());
  weights_ = *std::move(weights);
  checkpoint_ = nullptr;
  return {};
}

Result<std::unique_ptr<model::Decoder>> HeadProposer::make_decoder(
    const DraftSite& site, std::span<const ops::KvLayer> kv, const model::DecoderLimits& limits,
    int32_t num_feedback) const {
  const model::HeadSource source = {
      .embedding = site.weights.embedding, .head = &site.weights.head, .rows = site.kept_rows};
  return model::make_head_decoder(spec_, weights_, source, kv.front(), site.ops, limits,
                                  num_feedback);
}

int64_t HeadProposer::decoder_bytes(const model::DecoderLimits& limits, int32_t num_feedback,
                                    tensor::DType act, ops::Rank rank) const {
  return model::head_workspace_bytes(spec_, limits, num_feedback, act, rank);
}

}  // namespace rudder::exec
