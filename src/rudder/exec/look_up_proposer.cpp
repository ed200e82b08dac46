#include "rudder/exec/look_up_proposer.h"

#include "rudder/base/check.h"

namespace rudder::exec {

void LookUpProposer::describe(step::DraftCaps& caps) const {
  caps.guesses_from_rows = true;
  caps.keeps_guesses = true;
  caps.look_up = look_up_;
}

Result<void> LookUpProposer::check_device(ops::Ops& ops, const model::Stage& /*stage*/) const {
  if (ops.draft_ops() != nullptr) return {};
  return fail(ErrorCode::kUnsupported, "what is looked up, by this backend",
              "speculative-config.method");
}

Result<void> LookUpProposer::bind(const DraftSite& site) {
  RUDDER_CHECK(1 <= look_up_.min_n && look_up_.min_n <= look_up_.max_n &&
               look_up_.max_n <= ops::kMaxNgram);
  ops_ = &site.ops;
  return {};
}

}  // namespace rudder::exec
