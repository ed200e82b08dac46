// The end of a step that has logits, op by op or in a capture: samples them, and lets a proposer
// that guesses as a part of steps do so; of trees the tokens that were sampled then lie as those of
// a chain. The executor's worker thread calls it.
#pragma once

#include <span>

#include "rudder/exec/draft_source.h"
#include "rudder/exec/step_buffers.h"
#include "rudder/ops/ops.h"

namespace rudder::exec {

// Who reads the tokens of a step, beside the slots; all outlive the step.
struct SampleReaders {
  std::span<const ops::KvLayer> kv = {};  // all layers of the device
  ops::TokenRows kept_rows = {};          // what lies beside them for the source, if anything
  DraftSource* source = nullptr;          // null: none on this device
};

inline void sample_step(ops::Ops& ops, const DeviceStep& step, const ops::View& logits,
                        const SampleReaders& readers) {
  ops::SampleArgs sample = step.sample;
  sample.logits = logits;
  ops.sample(sample);
  if (readers.source != nullptr) readers.source->follow(step);
  if (step.forward.attention.ancestors.empty()) return;
  ops.tree_ops()->keep_paths({.batch = step.forward.attention,
                              .logits_rows = step.forward.logits_rows,
                              .sampled = step.sample.sampled,
                              .layers = readers.kv,
                              .beside = readers.kept_rows});
}

}  // namespace rudder::exec
