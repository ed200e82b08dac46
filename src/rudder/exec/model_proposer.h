// ModelProposer: a draft model, which is a smaller model of the same tokens that guesses for the
// model (pass_proposer.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "rudder/base/result.h"
#include "rudder/exec/pass_proposer.h"
#include "rudder/model/decoder.h"
#include "rudder/model/spec.h"
#include "rudder/model/weights.h"
#include "rudder/step/draft_tree.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

class ModelProposer final : public PassProposer {
 public:
  // Spec and weights are the rank's part of it.
  ModelProposer(model::ModelSpec spec, model::Weights weights, step::RankedTree tree = {})
      : PassProposer(std::move(tree)), spec_(std::move(spec)), weights_(std::move(weights)) {}
  // From limits.draft_model.
  static Result<std::unique_ptr<DraftSource>> read(const StepLimits& limits,
                                                   const model::ModelSpec& target);

  Result<int64_t> weight_bytes(ops::Ops& ops) const override;
  Result<void> shard(ops::Rank rank) override;
  Result<void> load(ops::Ops& ops) override;

 private:
  const model::ModelSpec& layers() const override { return spec_; }
  bool is_head() const override { return false; }
  Result<std::unique_ptr<model::Decoder>> make_decoder(const DraftSite& site,
                                                       std::span<const ops::KvLayer> kv,
                                                       const model::DecoderLimits& limits,
                                                       int32_t num_feedback) const override;
  int64_t decoder_bytes(const model::DecoderLimits& limits, int32_t num_feedback, tensor::DType act,
                        ops::Rank rank) const override;

  model::ModelSpec spec_;
  model::Weights weights_;
  const weights::Checkpoint* checkpoint_ = nullptr;  // until it is loaded
};

}  // namespace rudder::exec
