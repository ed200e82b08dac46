// StreamMixer: the ops of a residual of several rows for every CPU backend, on rows in f32. It
// keeps nothing; HostOps owns the one object, and its thread calls it.
#pragma once

#include "rudder/ops/facets.h"

namespace rudder::cpu {

class StreamMixer final : public ops::StreamOps {
 public:
  void mix_streams(const ops::MixStreamsArgs& args) override;
  void sum_blocks(const ops::SumBlocksArgs& args) override;
  void connect_streams(const ops::ConnectStreamsArgs& args) override;
  void gate_streams(const ops::GateStreamsArgs& args) override;
  void scale_add(const ops::ScaleAddArgs& args) override;
};

}  // namespace rudder::cpu
