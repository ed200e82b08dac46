// HostOps: the base of every CPU backend: memory, copies, events, and the macro-ops that copy or
// count rather than compute. The device is the host: an op
// runs before its call returns, so an event is done when it is recorded, and there are no graphs. A
// fault of an op (no memory for its scratch) is kept as a device's is: status() and the events
// recorded after it tell it. A rank of a group (host_comm.h) tells its faults to the group, and its
// events tell those of the group.
#pragma once

#include <memory>
#include <vector>

#include "rudder/base/thread_pool.h"
#include "rudder/cpu/device_memory.h"
#include "rudder/cpu/draft_ops.h"
#include "rudder/cpu/experts.h"
#include "rudder/cpu/host_comm.h"
#include "rudder/cpu/stream_mixer.h"
#include "rudder/ops/ops.h"

namespace rudder::cpu {

class HostOps : public ops::Ops,
                public ops::TreeOps,
                public ops::FeatureOps,
                public ops::PatternOps,
                public ops::RankOps {
 public:
  ops::TreeOps* tree_ops() override { return this; }
  ops::DraftOps* draft_ops() final { return &draft_ops_; }
  ops::FeatureOps* feature_ops() final { return this; }
  ops::PatternOps* pattern_ops() override { return this; }
  ops::StreamOps* stream_ops() final { return &stream_mixer_; }
  ops::ExpertOps* expert_ops() final { return &experts_; }
  ops::RankOps* rank_ops() final { return this; }

  bool is_host() const override { return true; }
  ops::Comm* comm() final { return comm_.get(); }
  int64_t available_memory() const override;
  Result<ops::View> allocate(tensor::DType dtype, tensor::Shape shape) final;
  Result<ops::View> upload(const ops::View& host, tensor::DType dtype) final;
  Result<ops::View> allocate_staging(int64_t bytes) final;
  void copy_in(const ops::View& device, const ops::View& staging) final;
  void copy_out(const ops::View& staging, const ops::View& device) final;

  std::unique_ptr<ops::Event> make_event() final;
  void record(ops::Event& event) final;
  Result<void> status() final;

  Result<void> prepare(const ops::StepBounds& bounds) final;

  void begin_step(const ops::BeginStepArgs& args) final;
  void advance_step(const ops::AdvanceStepArgs& args) final;
  void begin_attention(const ops::AttentionBatch& batch) final { batch_ = batch; }
  void quantise(const ops::QuantiseArgs& args) final;
  void gather_rows(const ops::GatherRowsArgs& args) final;
  void gather_logits(const ops::GatherLogitsArgs& args) final;
  void sum_ranks(const ops::View& x) final;
  void end_patterns(const ops::EndPatternsArgs& args) final;

 protected:
  explicit HostOps(std::shared_ptr<HostComm> comm) : comm_(std::move(comm)) {}

  const ops::AttentionBatch& batch() const { return batch_; }
  // Keeps the first fault: an op could not do its work, and what it should have written is stale.
  void note(const Result<void>& outcome);

  // The op without what it asks of other ranks: `delta` is the sum of their parts, in memory that
  // the next call writes again. `pool` may be null: one thread adds.
  ops::ResidualNormArgs with_ranks_summed(const ops::ResidualNormArgs& args, ThreadPool* pool);
  // tap_shares(), on the threads of `pool`; null: on this one.
  void run_share_taps(const ops::TapSharesArgs& args, ThreadPool* pool);
  // The op without norms that span the ranks: it has applied them to `qkv`.
  ops::QkvPrepArgs with_spanning_norms_applied(const ops::QkvPrepArgs& args);

 private:
  const std::shared_ptr<HostComm> comm_;  // null: alone
  ops::View sums_;                        // [max_tokens, hidden] f32
  std::vector<double> squares_;           // [max_tokens, 2] of q, of k
  DeviceMemory memory_;
  ops::AttentionBatch batch_;
  StreamMixer stream_mixer_;
  Experts experts_{*this};
  HostDraftOps draft_ops_;
  Result<void> fault_;
};

// One row of QuantiseArgs; returns its scale.
float quantise_row(const float* x, int64_t width, tensor::F8E4M3* out);

}  // namespace rudder::cpu
