// LookUpProposer: finds guesses in what a sequence has said, on the device (prompt lookup; the op
// is ops/look_up_args.h's). It is a part of each step that samples, in graphs too, and leaves its
// guesses in the slots, where the next step reads them; so steps run ahead. It has no weights, and
// what it reads the slots keep (SlotState.history). The executor's worker thread uses it.
#pragma once

#include <memory>

#include "rudder/base/result.h"
#include "rudder/exec/draft_source.h"
#include "rudder/ops/ops.h"
#include "rudder/step/draft_caps.h"

namespace rudder::exec {

class LookUpProposer final : public DraftSource {
 public:
  static std::unique_ptr<DraftSource> of(const step::LookUp& look_up) {
    return std::unique_ptr<DraftSource>(new LookUpProposer(look_up));
  }

  void describe(step::DraftCaps& caps) const override;
  Result<void> check_device(ops::Ops& ops, const model::Stage& stage) const override;
  Result<int64_t> weight_bytes(ops::Ops& /*ops*/) const override { return 0; }
  int64_t device_bytes(const step::Capacity& /*capacity*/, tensor::DType /*act*/,
                       ops::Rank /*rank*/) const override {
    return 0;  // StepBuffers has what slots keep
  }
  Result<void> shard(ops::Rank /*rank*/) override { return {}; }
  Result<void> load(ops::Ops& /*ops*/) override { return {}; }

  Result<void> bind(const DraftSite& site) override;
  void follow(const DeviceStep& step) override { keep_tokens(*ops_, step); }

 private:
  explicit LookUpProposer(const step::LookUp& look_up) : look_up_(look_up) {}

  const step::LookUp look_up_;
  ops::Ops* ops_ = nullptr;  // once bound
};

}  // namespace rudder::exec
