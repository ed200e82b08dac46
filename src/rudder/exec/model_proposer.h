// ModelProposer: the draft source that is a draft model, a smaller model with the same vocabulary.
// This file says how a draft model is read, loaded and divided among ranks; pass_proposer.h says
// how it guesses. The thread that loads a rank calls read(), load() and shard(); the executor then
// owns the proposer, and its worker thread calls all else. The proposer owns the rank's part of the
// draft model.
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
  // `spec` and `weights` are the rank's part of the draft model; with a tree it guesses that tree,
  // else chains.
  ModelProposer(model::ModelSpec spec, model::Weights weights, step::RankedTree tree = {})
      : PassProposer(std::move(tree)), spec_(std::move(spec)), weights_(std::move(weights)) {}
  // Of the draft model at limits.draft_model, whole and not loaded yet. kUnsupported: it is asked
  // for a tree and has layers that run none.
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
