// Recurrences: the ops of mixers with a state, and of gates, for every CPU backend, on rows in f32.
// A head's state is walked token by token, in blocks of columns that stay in the nearest cache: so
// the bits of a token depend on neither its chunk nor its company. A backend owns the object, and
// its thread calls it; the threads of `pool` help.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/cpu/latents.h"
#include "rudder/ops/facets.h"

namespace rudder::cpu {

class Recurrences final : public ops::StateOps {
 public:
  // null: the caller's thread does all. It outlives the object.
  Recurrences(ThreadPool* pool, ReadWeightRow read_row) : pool_(pool), latents_(pool, read_row) {}

  void convolve(const ops::ConvolveArgs& args) override;
  void recur(const ops::RecurArgs& args) override;
  void gate_rows(const ops::GateRowsArgs& args) override;
  ops::LatentOps* latent_ops() override { return &latents_; }

 private:
  ThreadPool* const pool_;
  Latents latents_;
};

}  // namespace rudder::cpu
