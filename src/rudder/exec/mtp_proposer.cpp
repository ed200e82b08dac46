#include "rudder/exec/mtp_proposer.h"

#include "rudder/exec/make_executor.h"
#include "rudder/model/check_facets.h"
#include "rudder/model/loader.h"

namespace rudder::exec {

Result<std::unique_ptr<DraftSource>> MtpProposer::read(const StepLimits& limits,
                                                       const model::ModelSpec& target) {
  RUDDER_TRY(model::MtpSpec spec, model::read_mtp(*limits.draft_model, target));
  auto source = std::make_unique<MtpProposer>(std::move(spec), model::MtpWeights());
  source->checkpoint_ = limits.draft_model;
  return source;
}

Result<void> MtpProposer::check_device(ops::Ops& ops, const model::Stage& /*stage*/) const {
  RUDDER_TRY_VOID(check_runs_heads(ops));
  return model::check_facets(spec_.layers, ops);
}

// The last one looks embeddings up.
Result<void> MtpProposer::join(std::vector<model::Stage>& stages) const {
  stages.back().has_table = true;
  return {};
}

Result<int64_t> MtpProposer::weight_bytes(ops::Ops& ops) const {
  return model::tensor_bytes(model::mtp_tensors(spec_, nullptr, ops::rank_of(ops)),
                             model::stored_formats(*checkpoint_, ops));
}

Result<void> MtpProposer::shard(ops::Rank rank) {
  RUDDER_TRY(spec_, model::shard_mtp(spec_, rank));
  return {};
}

Result<void> MtpProposer::load(ops::Ops& ops) {
  RUDDER_TRY(weights_, model::load_mtp(*checkpoint_, spec_, ops));
  checkpoint_ = nullptr;
  return {};
}

Result<std::unique_ptr<model::Decoder>> MtpProposer::make_decoder(
    const DraftSite& site, std::span<const ops::KvLayer> kv, const model::DecoderLimits& limits,
    int32_t num_feedback) const {
  const model::HeadSource source = {
      .embedding = site.weights.embedding, .head = &site.weights.head, .rows = site.kept_rows};
  return model::MtpHead::make(spec_, weights_, source, kv.front(), site.ops, limits, num_feedback);
}

int64_t MtpProposer::decoder_bytes(const model::DecoderLimits& limits, int32_t num_feedback,
                                   tensor::DType act, ops::Rank rank) const {
  return model::MtpHead::device_bytes(spec_, limits, num_feedback, act, rank);
}

}  // namespace rudder::exec
