#include "rudder/pjrt/device_weights.h"

#include <variant>

#include "rudder/model/rope.h"
#include "rudder/pjrt/pjrt_ops.h"

namespace rudder::pjrt {

using tensor::DType;

Result<void> DeviceWeights::keep(WeightName name, int32_t index, const tensor::View& host,
                                 const Client& client) {
  auto buffer = std::make_unique<Buffer>();
  RUDDER_TRY(*buffer, client.upload(host, true));
  all_[{name, index}] = buffer.get();
  owned_.push_back(std::move(buffer));
  return {};
}

Result<void> DeviceWeights::keep_norm(WeightName name, int32_t index, const ops::NormSpec& norm,
                                      const Client& client) {
  return norm.empty() ? Result<void>() : keep(name, index, norm.weight, client);
}

void DeviceWeights::keep_linear(WeightName name, WeightName bias, int32_t index,
                                const ops::LinearWeight& linear) {
  const auto& weight = static_cast<const DeviceWeight&>(*linear.packed);
  all_[{name, index}] = &weight.weight;
  if (!weight.bias.empty()) all_[{bias, index}] = &weight.bias;
}

Result<void> DeviceWeights::take_layer(int32_t index, const model::LayerWeights& weights,
                                       const Client& client) {
  const model::Attention::Weights& attention = attention_of(weights);
  const auto& mlp = std::get<model::GatedMlp::Weights>(weights.mlp);
  const std::pair<WeightName, const ops::NormSpec*> norms[] = {
      {WeightName::kMixerPreNorm, &weights.mixer_pre_norm},
      {WeightName::kMixerPostNorm, &weights.mixer_post_norm},
      {WeightName::kMlpPreNorm, &weights.mlp_pre_norm},
      {WeightName::kMlpPostNorm, &weights.mlp_post_norm},
      {WeightName::kQNorm, &attention.q_norm},
      {WeightName::kKNorm, &attention.k_norm},
      {WeightName::kVNorm, &attention.v_norm}};
  for (const auto& [name, norm] : norms) RUDDER_TRY_VOID(keep_norm(name, index, *norm, client));
  if (!attention.sinks.empty()) {
    RUDDER_TRY_VOID(keep(WeightName::kSinks, index, attention.sinks, client));
  }
  float scale = weights.scale;
  RUDDER_TRY_VOID(keep(WeightName::kScale, index, {&scale, DType::kF32, {}}, client));
  keep_linear(WeightName::kQkv, WeightName::kQkvBias, index, attention.qkv);
  keep_linear(WeightName::kOut, WeightName::kOutBias, index, attention.out);
  keep_linear(WeightName::kGateUp, WeightName::kGateUpBias, index, mlp.gate_up);
  keep_linear(WeightName::kDown, WeightName::kDownBias, index, mlp.down);
  return {};
}

Result<DeviceWeights> DeviceWeights::take(const ModelShape& shape, const model::Weights& weights,
                                          const Client& client) {
  DeviceWeights taken;
  taken.keep_linear(WeightName::kHead, WeightName::kHead, 0, weights.head);
  if (weights.embedding.empty()) {
    taken.keep_linear(WeightName::kTable, WeightName::kTable, 0, weights.head);
  } else {
    RUDDER_TRY_VOID(taken.keep(WeightName::kTable, 0, weights.embedding, client));
  }
  RUDDER_TRY_VOID(taken.keep_norm(WeightName::kFinalNorm, 0, weights.final_norm, client));
  for (int32_t i = 0; i < std::ssize(shape.spec.ropes); ++i) {
    const model::RopeSpec& rope = shape.spec.ropes[static_cast<size_t>(i)];
    std::vector<float> table = model::rope_table(rope, static_cast<int32_t>(shape.max_seq_len));
    const tensor::Shape dims = {shape.max_seq_len, 2, rope.rotary_dim / 2};
    RUDDER_TRY_VOID(taken.keep(WeightName::kRope, i, {table.data(), DType::kF32, dims}, client));
  }
  for (int32_t i = 0; i < std::ssize(weights.layers); ++i) {
    RUDDER_TRY_VOID(taken.take_layer(i, weights.layers[static_cast<size_t>(i)], client));
  }
  return taken;
}

}  // namespace rudder::pjrt
