// Ops: the macro-op interface between a model and a backend. There is one object for a device. One
// thread at a time uses it: the one that loads the model, then the executor's worker.
// Implementations: cpu/ (reference and fast), cuda/. Formulas: args.h. testing/ has an fp64
// reference and one conformance suite for every backend.
//
// make_* and the decoder check shapes once, so arguments are valid here: a backend CHECKs them and
// returns no errors for shapes. Rows are independent: the result of a row depends on neither the
// number of rows in the call nor the row's index among them, bit for bit (on the CPU always, on a
// GPU in its batch-invariant mode).
//
// A backend enqueues ops in order on the device's one stream. Only Event::wait waits for them. A
// backend keeps a device fault and returns it from status() and from every later Event::wait, with
// the op, its shapes and the stream. A CPU runs each op before the call returns.
#pragma once

#include <cstdint>
#include <span>

#include "rudder/base/result.h"
#include "rudder/ops/args.h"
#include "rudder/ops/comm.h"
#include "rudder/ops/device.h"
#include "rudder/ops/facets.h"
#include "rudder/ops/sample_args.h"
#include "rudder/ops/score_args.h"
#include "rudder/ops/slot_args.h"

namespace rudder::ops {

// The dense forward pass, and the choice of tokens. Drafts in a chain are verified by every
// backend: begin_step() places sequences and sample() verifies. residual_norm() taps rows of any
// width.
class Ops : public Device {
 public:
  virtual tensor::DType act_dtype() const = 0;
  virtual KvFormat kv_format() const = 0;
  // What make_linear makes of a part that a file has in this format, for the memory budget.
  // kUnsupported: a format that no product here multiplies.
  virtual Result<WeightFormat> stored_format(const WeightFormat& file) const = 0;
  // The same of parts for a use (LinearPart::use). A backend may keep the output head in more bits
  // than it quantises other weights to, since it has the last word on every token, and quantises no
  // router: where rounding moves a score a little, another expert is chosen.
  virtual Result<WeightFormat> format_for(const WeightFormat& file, ProductUse /*use*/) const {
    return stored_format(file);
  }
  // Stacks the parts along `out` and packs them as this backend multiplies them.
  virtual Result<LinearWeight> make_linear(std::span<const LinearPart> parts) = 0;

  // Called once for each model, after all are loaded and before its first step: the backend chooses
  // its kernels and allocates their workspaces. An Error names a shape that the backend has no
  // kernel for.
  virtual Result<void> prepare(const StepBounds& /*bounds*/) { return {}; }

  // Tokens before the first that a row sees that attention may read beside it: their weight is 0,
  // but their KV must still be the sequence's own.
  virtual int32_t attention_lookback() const { return 0; }

  virtual void begin_step(const BeginStepArgs& args) = 0;
  virtual void advance_step(const AdvanceStepArgs& args) = 0;
  virtual void embed(const EmbedArgs& args) = 0;
  virtual void residual_norm(const ResidualNormArgs& args) = 0;
  virtual void linear(const LinearArgs& args) = 0;
  virtual void qkv_prep(const QkvPrepArgs& args) = 0;
  virtual void begin_attention(const AttentionBatch& batch) = 0;  // once a step, before attention()
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void gated_act(const GatedActArgs& args) = 0;
  virtual void quantise(const QuantiseArgs& args) = 0;
  virtual void gather_rows(const GatherRowsArgs& args) = 0;
  virtual void logits(const LogitsArgs& args) = 0;
  virtual void sample(const SampleArgs& args) = 0;
  virtual void score(const ScoreArgs& args) = 0;

  // facets.h
  virtual TreeOps* tree_ops() { return nullptr; }
  virtual DraftOps* draft_ops() { return nullptr; }
  virtual FeatureOps* feature_ops() { return nullptr; }
  virtual PatternOps* pattern_ops() { return nullptr; }
  virtual StreamOps* stream_ops() { return nullptr; }
  virtual ExpertOps* expert_ops() { return nullptr; }
  virtual StateOps* state_ops() { return nullptr; }
  virtual RankOps* rank_ops() { return nullptr; }
  virtual AdapterOps* adapter_ops() { return nullptr; }
  virtual ReaderOps* reader_ops() { return nullptr; }
};

// What the device knows of its group; null: it is alone.
inline Comm* comm_of(Ops& ops) {
  RankOps* const ranks = ops.rank_ops();
  return ranks == nullptr ? nullptr : ranks->comm();
}

inline Rank rank_of(Ops& ops) {
  Comm* const comm = comm_of(ops);
  return comm == nullptr ? Rank{} : comm->rank();
}

}  // namespace rudder::ops
