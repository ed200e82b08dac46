// The end of a step that has logits, op by op or in a capture: samples them, and looks up what may
// follow; of trees the tokens that were sampled then lie as those of a chain. The executor's worker
// thread calls it.
#pragma once

#include <span>

#include "rudder/exec/step_buffers.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

// `kv`: all layers of the device, `head_rows` what lies beside them for a draft head, if anything;
// they outlive the step.
inline void sample_step(ops::Ops& ops, const DeviceStep& step, const ops::View& logits,
                        std::span<const ops::KvLayer> kv, const ops::TokenRows& head_rows) {
  ops::SampleArgs sample = step.sample;
  sample.logits = logits;
  ops.sample(sample);
  if (!step.look_up.empty()) ops.draft_ops()->look_up(step.look_up);
  if (step.forward.attention.ancestors.empty()) return;
  ops.tree_ops()->keep_paths({.batch = step.forward.attention,
                              .logits_rows = step.forward.logits_rows,
                              .sampled = step.sample.sampled,
                              .layers = kv,
                              .beside = head_rows});
}

}  // namespace rudder::exec
