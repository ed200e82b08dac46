// Of tiny_model.h: what guesses for tiny models.
#include <span>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/testing/tiny_model.h"
#include "rudder/testing/weight_maker.h"

namespace rudder::testing {

using tensor::DType;

model::DraftHeadSpec tiny_head_spec(TinyHead kind, int32_t num_heads) {
  const bool shares_embedding = kind != TinyHead::kOwnEmbedding;
  const model::ModelSpec target = tiny_spec(TinyArch::kPreNorm, num_heads);
  model::DraftHeadSpec spec;
  spec.layer = target;
  spec.layer.layers.resize(1);
  spec.layer.hidden = shares_embedding ? target.hidden : 48;
  model::Attention& attention = *attention_of(spec.layer.layers[0]);
  attention.qkv_bias = false;
  model::gated_mlp_of(spec.layer.layers[0])->bias = false;
  spec.target_hidden = target.hidden;
  spec.draft_vocab =
      num_heads == kTinyHeads ? (target.vocab + 2) / 3 : 140;  // a part for each of eight
  spec.aux_layers = {2, 0, 1};
  spec.norm_before_fc = !shares_embedding;
  spec.norm_before_residual = !shares_embedding;
  spec.norm_output = !shares_embedding;
  spec.has_embedding = !shares_embedding;
  if (kind == TinyHead::kProduct) {
    spec.input = model::HeadInput::kProduct;
    spec.draft_vocab = target.vocab;
    spec.aux_layers.clear();
    spec.num_aux = 1;
    spec.fc_bias = true;
  }
  return spec;
}

Result<model::DraftHeadWeights> random_head_weights(const model::DraftHeadSpec& spec, ops::Ops& ops,
                                                    uint64_t seed) {
  WeightMaker maker(ops, seed);
  model::DraftHeadWeights weights;
  const model::LayerTensors tensors =
      model::head_tensors(spec, "midlayer.", &weights, ops::rank_of(ops));
  for (const model::NormTensor& norm : tensors.norms) {
    RUDDER_TRY(*norm.target, maker.norm(norm, spec.layer.norm_eps));
  }
  for (const model::LinearModule& linear : tensors.linears) {
    RUDDER_TRY(*linear.target, maker.linear(linear, 1.5));
  }
  if (spec.has_embedding) {
    RUDDER_TRY(weights.embedding, maker.table(spec.layer.vocab, spec.layer.hidden));
  }
  if (!spec.is_product()) {
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(spec.draft_vocab));
    const int32_t apart = (spec.layer.vocab - 1) / (spec.draft_vocab - 1);
    for (int32_t i = 0; i < spec.draft_vocab; ++i) ids.push_back(apart * i);
    RUDDER_TRY(weights.target_ids,
               ops.upload({ids.data(), DType::kI32, {spec.draft_vocab}}, DType::kI32));
  }
  weights.bytes = maker.bytes();
  return weights;
}

model::MedusaSpec tiny_medusa_spec(bool shares_lm_head) {
  const model::ModelSpec target = tiny_spec(TinyArch::kPreNorm);
  return {.layout = shares_lm_head ? model::MedusaLayout::kVllm : model::MedusaLayout::kPublished,
          .num_heads = 5,
          .num_layers = 2,
          .hidden = target.hidden,
          .vocab = target.vocab,
          .has_bias = !shares_lm_head,
          .shares_lm_head = shares_lm_head};
}

Result<model::MedusaWeights> random_medusa_weights(const model::MedusaSpec& spec, ops::Ops& ops,
                                                   uint64_t seed) {
  WeightMaker maker(ops, seed);
  model::MedusaWeights weights;
  for (const model::LinearModule& linear :
       model::medusa_tensors(spec, &weights, ops::rank_of(ops)).linears) {
    RUDDER_TRY(*linear.target, maker.linear(linear, 1.5));
  }
  weights.bytes = maker.bytes();
  return weights;
}

namespace {

// The last of a kind that an assistant can read, or null.
const model::LayerSpec* last_layer(const model::ModelSpec& target, bool has_window) {
  const model::LayerSpec* last = nullptr;
  for (const model::LayerSpec& layer : target.layers) {
    if (model::softmax_of(layer) == nullptr || !model::attention_of(layer)->own_kv) continue;
    if ((model::kv_geometry(layer).window > 0) == has_window) last = &layer;
  }
  return last;
}

}  // namespace

bool takes_assistant(const model::ModelSpec& target) {
  return last_layer(target, false) != nullptr || last_layer(target, true) != nullptr;
}

model::AssistantSpec tiny_assistant_spec(const model::ModelSpec& target) {
  model::AssistantSpec spec;
  spec.target_hidden = target.hidden;
  spec.layers = target;
  spec.layers.hidden = 48;
  spec.layers.tied_head = true;
  spec.layers.residual = model::OneStream{};  // whatever the model has
  spec.layers.layer_embedding = {};
  spec.layers.layers.clear();
  for (const bool has_window : {false, true, false}) {
    const model::LayerSpec* const like = last_layer(target, has_window);
    if (like == nullptr) continue;
    model::LayerSpec& layer = spec.layers.layers.emplace_back(*like);
    model::Attention attention = *model::attention_of(*like);  // without what stands beside it
    attention.own_kv = attention.v_norm = attention.v_is_k = attention.out_gate = false;
    attention.qk_norm = model::QkNorm::kPerHead;
    layer.mixer = attention;
    if (model::gated_mlp_of(layer) == nullptr) layer.mlp = model::GatedMlp{.width = 96};
    model::gated_mlp_of(layer)->width /= 2;
  }
  spec.layers.stage = {.index = 1,
                       .count = 2,
                       .first_layer = 0,
                       .num_layers = static_cast<int32_t>(spec.layers.layers.size())};
  RUDDER_CHECK(model::fit_assistant(target, spec).has_value());
  return spec;
}

Result<model::AssistantWeights> random_assistant_weights(const model::AssistantSpec& spec,
                                                         ops::Ops& ops, uint64_t seed) {
  model::AssistantWeights weights;
  RUDDER_TRY(weights.layers, random_weights(spec.layers, ops, seed, spec.layers.stage));
  WeightMaker maker(ops, seed + 1);
  for (const model::LinearModule& linear :
       model::projection_tensors(spec, &weights, ops::rank_of(ops)).linears) {
    RUDDER_TRY(*linear.target, maker.linear(linear, 1.5));
  }
  weights.bytes = weights.layers.bytes + maker.bytes();
  return weights;
}

// Of every other model one whose next guess goes on from what the final norm makes.
model::MtpSpec tiny_mtp_spec(const model::ModelSpec& target) {
  model::MtpSpec spec;
  spec.layers = model::mtp_layers(target).value();
  spec.prefix = "mtp.";
  spec.layer_prefix = "mtp.layers.0.";
  spec.fc = "mtp.fc";
  spec.embedding_norm = "mtp.enorm";
  spec.hidden_norm = "mtp.hnorm";
  spec.final_norm = "mtp.norm";
  spec.goes_on_normed = target.layers.size() % 2 == 0;
  return spec;
}

Result<model::MtpWeights> random_mtp_weights(const model::MtpSpec& spec, ops::Ops& ops,
                                             uint64_t seed) {
  RUDDER_TRY(const model::Weights layers, random_weights(spec.layers, ops, seed));
  WeightMaker maker(ops, seed + 1);
  model::MtpWeights weights;
  const model::LayerTensors tensors = model::mtp_tensors(spec, &weights, ops::rank_of(ops));
  for (const model::NormTensor& norm : std::span(tensors.norms).last(3)) {  // behind the layer's
    RUDDER_TRY(*norm.target, maker.norm(norm, spec.layers.norm_eps));
  }
  RUDDER_TRY(*tensors.linears.back().target, maker.linear(tensors.linears.back(), 1.5));
  weights.layer = layers.layers.front();
  weights.bytes = maker.bytes() + layers.bytes;
  return weights;
}

}  // namespace rudder::testing
