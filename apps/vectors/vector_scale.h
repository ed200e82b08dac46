// How far trained vectors may be scaled before they change what the model says too much. Main
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/engine/request.h"
#include "rudder/steer/config.h"
#include "rudder/steer/train/vector_files.h"
#include "steered_answers.h"

namespace rudder::apps {

// Adds those of the vectors that are of `layers`, times `scale`, at their points.
Result<std::shared_ptr<const steer::Config>> add_vectors(
    const engine::RequestLimits& limits, const std::vector<steer::TrainedVector>& vectors,
    const std::vector<int32_t>& layers, double scale);

// Of the next token under the steering, over answers that are sampled under it.
Result<Divergence> divergence_under(ModelSession& session, const steer::Config& steering,
                                    const std::vector<PromptRow>& prompts, int32_t max_tokens,
                                    double scale);

struct ScaleLimit {
  double scale = 0;  // 0: none that was tried is within the budget
  Divergence divergence;
};

// The largest scale up to `largest` whose divergence is within the budget, to an eighth of it: by
// halving until one is, and then the way back in three steps.
Result<ScaleLimit> find_scale(double largest, double budget,
                              const std::function<Result<Divergence>(double)>& divergence_at);

}  // namespace rudder::apps
