// Latents: the ops of attention over short rows (ops/latent_args.h), for every CPU backend, on rows
// in f32. A head's part of the weight is read once a call, whatever format it has, and each token's
// sums are taken alone, in one order: so its bits depend on neither its chunk nor its company. A
// backend's state ops own the object, and the backend's thread calls it; the threads of `pool`
// help.
#pragma once

#include "rudder/base/thread_pool.h"
#include "rudder/ops/facets.h"

namespace rudder::cpu {

// Row `index` of a weight of the backend as f32, [weight.in].
using ReadWeightRow = void (*)(const ops::LinearWeight& weight, int64_t index, float* to);

class Latents final : public ops::LatentOps {
 public:
  // null: the caller's thread does all. It outlives the object.
  Latents(ThreadPool* pool, ReadWeightRow read_row) : pool_(pool), read_row_(read_row) {}

  void latent_prep(const ops::LatentPrepArgs& args) override;
  void latent_values(const ops::LatentValuesArgs& args) override;

 private:
  ThreadPool* const pool_;
  const ReadWeightRow read_row_;
};

}  // namespace rudder::cpu
