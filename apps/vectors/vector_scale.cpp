#include "vectors/vector_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace rudder::apps {

Result<std::shared_ptr<const steer::Config>> add_vectors(
    const engine::RequestLimits& limits, const std::vector<steer::TrainedVector>& vectors,
    const std::vector<int32_t>& layers, double scale) {
  const auto model = std::make_shared<const steer::Model>(
      steer::Model{.geometry = limits.geometry, .limits = limits.taps, .hash_secret = {}});
  std::vector<steer::OpSpec> ops;
  for (const steer::TrainedVector& vector : vectors) {
    if (std::ranges::find(layers, vector.point.layer) == layers.end()) continue;
    const std::vector<float>& values = vector.direction.values;
    const std::shared_ptr<float[]> buffer = std::make_shared<float[]>(values.size());
    std::ranges::copy(values, buffer.get());
    steer::OpSpec op;
    op.op = steer::OpName::kAdd;
    op.point = vector.point;
    op.vector = {buffer, 0, static_cast<int32_t>(values.size())};
    op.scale = scale;
    op.where = fmt::format("layer {}", vector.point.layer);
    ops.push_back(std::move(op));
  }
  return steer::Config::build(model, std::move(ops));
}

Result<Divergence> divergence_under(ModelSession& session, const steer::Config& steering,
                                    const std::vector<PromptRow>& prompts, int32_t max_tokens,
                                    double scale) {
  RUDDER_TRY(const auto answers, answer_prompts(session, steering, prompts,
                                                {.max_tokens = max_tokens, .temperature = 1},
                                                nullptr, fmt::format("samples at {:.3g}", scale)));
  RUDDER_TRY(const auto readings, read_answers(session, prompts, answers, nullptr,
                                               fmt::format("divergence at {:.3g}", scale)));
  return divergence(answers, readings);
}

Result<ScaleLimit> find_scale(double largest, double budget,
                              const std::function<Result<Divergence>(double)>& divergence_at) {
  constexpr int kHalvings = 8;
  constexpr int kStepsBack = 3;
  double beyond = 0;  // 0: none
  ScaleLimit best;
  double scale = largest;
  for (int i = 0; i <= kHalvings && best.scale == 0; ++i, scale /= 2) {
    RUDDER_TRY(const Divergence found, divergence_at(scale));
    if (found.kl <= budget) {
      best = {scale, found};
    } else {
      beyond = scale;
    }
  }
  if (best.scale == 0 || beyond == 0) return best;
  for (int i = 0; i < kStepsBack; ++i) {
    const double middle = (best.scale + beyond) / 2;
    RUDDER_TRY(const Divergence found, divergence_at(middle));
    if (found.kl <= budget) {
      best = {middle, found};
    } else {
      beyond = middle;
    }
  }
  return best;
}

}  // namespace rudder::apps
