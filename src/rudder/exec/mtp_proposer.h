// MtpProposer: an MTP head of the model's own checkpoint (model/mtp.h), which guesses chains from
// the row that the model's decoder keeps beside each token (pass_proposer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/pass_proposer.h"
#include "rudder/model/decoder.h"
#include "rudder/model/mtp.h"
#include "rudder/model/spec.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

class MtpProposer final : public PassProposer {
 public:
  // Spec and weights are the rank's part.
  MtpProposer(model::MtpSpec spec, model::MtpWeights weights)
      : PassProposer({}), spec_(std::move(spec)), weights_(std::move(weights)) {}
  // From limits.draft_model, the model's own checkpoint, for the whole model `target`.
  static Result<std::unique_ptr<DraftSource>> read(const StepLimits& limits,
                                                   const model::ModelSpec& target);

  Result<void> check_device(ops::Ops& ops, const model::Stage& stage) const override;
  Result<void> join(std::vector<model::Stage>& stages) const override;
  RowsRead rows_read() const override {
    return {.layers = {}, .final_norm = true, .width = spec_.layers.hidden};
  }
  Result<int64_t> weight_bytes(ops::Ops& ops) const override;
  Result<void> shard(ops::Rank rank) override;
  Result<void> load(ops::Ops& ops) override;

 private:
  const model::ModelSpec& layers() const override { return spec_.layers; }
  bool is_head() const override { return true; }
  Result<std::unique_ptr<model::Decoder>> make_decoder(const DraftSite& site,
                                                       std::span<const ops::KvLayer> kv,
                                                       const model::DecoderLimits& limits,
                                                       int32_t num_feedback) const override;
  int64_t decoder_bytes(const model::DecoderLimits& limits, int32_t num_feedback, tensor::DType act,
                        ops::Rank rank) const override;

  model::MtpSpec spec_;
  model::MtpWeights weights_;
  const weights::Checkpoint* checkpoint_ = nullptr;  // until it is loaded
};

}  // namespace rudder::exec
