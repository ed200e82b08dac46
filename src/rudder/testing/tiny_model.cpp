#include "rudder/testing/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/model/tensors.h"
#include "rudder/testing/decayed_sum.h"
#include "rudder/testing/tiny_experts.h"
#include "rudder/testing/weight_maker.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

Result<model::LayerWeights> random_layer(const model::ModelSpec& spec, size_t index, ops::Rank rank,
                                         WeightMaker& maker) {
  model::LayerWeights weights = model::empty_weights(spec, index);
  const model::LayerTensors tensors = model::layer_tensors(spec, {}, index, &weights, rank);
  std::vector<model::NormTensor> norms = tensors.norms;
  // Tests were given seeds for which rare events happen while norms of inputs were drawn first.
  if (spec.layers[index].norms.pre && spec.layers[index].norms.post) std::swap(norms[1], norms[2]);
  for (const model::NormTensor& norm : norms) {
    RUDDER_TRY(*norm.target, maker.norm(norm, spec.norm_eps));
  }
  for (const model::VectorTensor& vector : tensors.vectors) {
    RUDDER_TRY(*vector.target, vector.rows > 0 ? maker.matrix(vector.rows, vector.count.stored)
                               : vector.kind == model::ValueKind::kWeight
                                   ? maker.vector(vector.count)
                                   : maker.gains(vector.count));
  }
  for (const model::FilterTensor& filter : tensors.filters) {
    RUDDER_TRY(*filter.target, maker.filters(filter));
  }
  for (const model::NumberTensor& number : tensors.numbers) *number.target = maker.gain();
  for (const model::LinearModule& linear : tensors.linears) {
    // The product that scores come from is larger: they tell keys apart.
    const bool is_first = &linear == &tensors.linears.front();
    RUDDER_TRY(*linear.target, maker.linear(linear, is_first ? 1.5 : 1));
  }
  return weights;
}

}  // namespace

std::string_view tiny_arch_name(TinyArch arch) {
  switch (arch) {
    case TinyArch::kPreNorm:
      return "PreNorm";
    case TinyArch::kSandwich:
      return "Sandwich";
    case TinyArch::kPostNorm:
      return "PostNorm";
    case TinyArch::kHeadNorm:
      return "HeadNorm";
    case TinyArch::kGated:
      return "Gated";
    case TinyArch::kScaled:
      return "Scaled";
    case TinyArch::kTwoWidths:
      return "TwoWidths";
    case TinyArch::kRecurrent:
      return "Recurrent";
    case TinyArch::kTwoStreams:
      return "TwoStreams";
    case TinyArch::kBlockSums:
      return "BlockSums";
    case TinyArch::kExperts:
      return "Experts";
    case TinyArch::kSinks:
      return "Sinks";
    case TinyArch::kDelta:
      return "Delta";
    case TinyArch::kSpaces:
      return "Spaces";
    case TinyArch::kByLayer:
      return "ByLayer";
    case TinyArch::kHyper:
      return "Hyper";
    case TinyArch::kDelayed:
      return "Delayed";
    case TinyArch::kGatedStreams:
      return "GatedStreams";
    case TinyArch::kNormedSums:
      return "NormedSums";
    case TinyArch::kGatedAdds:
      return "GatedAdds";
    case TinyArch::kDepthAdds:
      return "DepthAdds";
    case TinyArch::kLatent:
      return "Latent";
  }
  return "";
}

namespace {

// The first layer has a window; the others have wider heads, and a rope of their own.
void widen_all_but_the_first(model::ModelSpec& spec) {
  spec.ropes.push_back({.theta = 1000000,
                        .rotary_dim = 2 * attention_of(spec.layers[0])->head_dim,
                        .scaling = model::RopeProportional{.part = 0.25, .factor = 1}});
  for (model::LayerSpec& layer : spec.layers) {
    model::Attention& own = *attention_of(layer);
    layer.has_scale = true;
    own.scale = 1;
    if (&layer == &spec.layers[0]) {
      own.window = 24;
      continue;
    }
    own.head_dim *= 2;
    own.num_kv_heads = 1;
    own.rope = 1;
    own.v_is_k = true;
  }
}

// Every layer keeps one row of each token.
void make_latent(model::ModelSpec& spec, int32_t num_heads) {
  spec.ropes.push_back({.theta = 10000,
                        .rotary_dim = 8,
                        .scaling = model::RopeYarn{
                            .factor = 4, .attention_factor = 1.25, .original_max_positions = 32}});
  spec.query_growth = {.slope = 0.2, .period = 24};
  model::LatentAttention latent{
      .hidden = spec.hidden,
      .shape = {.num_heads = num_heads, .nope_dim = 12, .rope_dim = 8, .value_dim = 20, .rank = 24},
      .query_rank = 40,
      .scale = 0.25f,
      .bias = true,
      .rope = 1};
  spec.layers.front().mixer = latent;
  latent.query_rank = 0;
  latent.bias = false;
  spec.layers[1].mixer = latent;
  std::get<model::LatentAttention>(spec.layers[1].mixer).rope = model::kNoRope;
  latent.neighbours = false;
  spec.layers.back().mixer = latent;
}

// What only some layers of the model have; all of them have `attention` yet.
void change_layers(TinyArch arch, const model::Attention& attention, model::ModelSpec& spec) {
  if (arch == TinyArch::kScaled) {
    spec.ropes[0].scaling = model::RopeProportional{.part = 0.5, .factor = 1};
    attention_of(spec.layers[1])->rope = model::kNoRope;
    spec.layers[1].has_scale = true;  // the last one's would vanish in the final norm
  }
  if (arch == TinyArch::kRecurrent) {
    const model::CustomMixer toy{make_decayed_sum(attention.num_heads, attention.head_dim)};
    spec.layers.front().mixer = toy;
    spec.layers.back().mixer = toy;
  }
  if (arch == TinyArch::kDelta) {
    spec.ropes[0].rotary_dim = attention.head_dim / 4;
    const model::GatedDelta delta{.key_heads = attention.num_heads,
                                  .value_heads = 2 * attention.num_heads,
                                  .key_dim = 12,
                                  .value_dim = 8,
                                  .conv_length = 4};
    spec.layers.front().mixer = delta;
    spec.layers.back().mixer = model::ShortConv{.width = 80, .length = 3, .bias = true};
  }
  if (arch == TinyArch::kSpaces) {
    model::StateSpace space{.heads = 2 * attention.num_heads,
                            .groups = attention.num_heads,
                            .head_dim = 12,
                            .state_dim = 8,
                            .conv_length = 4,
                            .step_low = 0.25f,
                            .step_high = 2,
                            .norm_runs = attention.num_heads};
    spec.layers.front().mixer = space;
    spec.layers.front().mlp = model::NoMlp{};
    space.groups = 2;
    space.gates_first = false;
    space.conv_bias = false;
    spec.layers[1].mixer =
        model::Parallel{.hidden = spec.hidden, .attention = attention, .space = space};
    spec.layers.back().mixer = model::NoMixer{};
  }
  if (arch == TinyArch::kLatent) make_latent(spec, attention.num_heads);
  if (arch == TinyArch::kHyper) {  // latent attention in which nothing turns
    spec.layers[1].mixer = model::LatentAttention{.hidden = spec.hidden,
                                                  .shape = {.num_heads = attention.num_heads,
                                                            .nope_dim = 12,
                                                            .rope_dim = 0,
                                                            .value_dim = 20,
                                                            .rank = 24},
                                                  .query_rank = 40,
                                                  .scale = 0.25f,
                                                  .sinks = true,
                                                  .out_gate = true,
                                                  .rope = model::kNoRope};
  }
  if (arch == TinyArch::kTwoStreams) spec.layers[0].has_scale = true;
  if (arch == TinyArch::kExperts) add_experts(spec);
  if (arch == TinyArch::kSinks) add_biased_experts(spec);
  if (arch == TinyArch::kByLayer) {
    add_normed_experts(spec);
    attention_of(spec.layers.front())->window = 24;
    attention_of(spec.layers.back())->own_kv = false;
    attention_of(spec.layers.back())->kv_layer = 1;
    spec.layer_embedding = {.width = 24, .layers = 3, .vocab = spec.vocab};
    for (model::LayerSpec& layer : spec.layers) layer.has_scale = true;
  }
  if (arch == TinyArch::kTwoWidths) widen_all_but_the_first(spec);
  if (arch == TinyArch::kGated) {
    attention_of(spec.layers[1])->weighting =
        model::Gate{.length = 5, .relu_pre = true, .low = -0.25f, .high = 1.5f};
  }
  if (arch == TinyArch::kSandwich) {
    spec.ropes.push_back(
        {.theta = 1000000, .rotary_dim = attention.head_dim, .scaling = model::RopeLinear{4}});
    attention_of(spec.layers[0])->window = 24;
    attention_of(spec.layers[1])->window = 24;
    attention_of(spec.layers[2])->rope = 1;
  }
}

void change_residual(TinyArch arch, model::ModelSpec& spec) {
  if (arch == TinyArch::kTwoStreams) {
    spec.branch_scale = 0.25f;
    spec.residual = model::MixedStreams{.count = 2};
  }
  if (arch == TinyArch::kHyper) {
    spec.residual = model::HyperConnections{
        .rule = {.streams = 4, .iterations = 3, .eps = 0.01f, .norm_eps = 1e-5f}};
  }
  if (arch == TinyArch::kDelayed) {
    spec.residual = model::HyperConnections{
        .rule = {.streams = 3, .iterations = 4, .eps = 0.01f, .norm_eps = 1e-5f},
        .is_delayed = true};
  }
  if (arch == TinyArch::kGatedStreams) {
    spec.residual = model::GatedStreams{.count = 3, .rank = 10};
  }
  if (arch == TinyArch::kNormedSums) {
    spec.residual = model::BlockSums{.layers = 2, .blocks = 2, .normed_values = true};
  }
  if (arch == TinyArch::kGatedAdds) spec.residual = model::ScaledAdds{.temperature = 0.05f};
  if (arch == TinyArch::kDepthAdds) spec.residual = model::ScaledAdds{.by_depth = true};
  if (arch == TinyArch::kBlockSums) {
    spec.branch_scale = 0.5f;
    spec.residual = model::BlockSums{.layers = 2, .blocks = 2};  // the second has a layer
  }
}

}  // namespace

model::ModelSpec tiny_spec(TinyArch arch, int32_t num_heads) {
  model::ModelSpec spec;
  spec.architecture = tiny_arch_name(arch);
  spec.hidden = 64;
  spec.vocab = 160;
  spec.max_positions = 512;

  model::Attention attention;
  attention.num_heads = num_heads;
  attention.num_kv_heads = num_heads / 2;
  attention.head_dim = 16;
  model::GatedMlp mlp;
  mlp.width = 96;
  model::LayerNorms norms;
  switch (arch) {
    case TinyArch::kPreNorm:
      attention.qkv_bias = true;
      mlp.bias = true;
      if (num_heads != kTinyHeads) attention.num_kv_heads = num_heads;
      break;
    case TinyArch::kSandwich:
      norms.post = true;
      attention.weighting = model::Softmax{.softcap = 20, .sinks = false};
      mlp.activation = ops::Activation::kGeluTanh;
      spec.embed_scale = 8;
      spec.final_softcap = 30;
      spec.tied_head = true;
      break;
    case TinyArch::kPostNorm:
      norms = {.pre = false, .post = true};
      attention.qk_norm = model::QkNorm::kAllHeads;
      break;
    case TinyArch::kHeadNorm:
      attention.qk_norm = model::QkNorm::kPerHead;
      attention.head_dim = 32;
      attention.num_kv_heads = 1;
      break;
    case TinyArch::kGated:
      norms.post = true;
      attention.weighting = model::Gate{};
      attention.qk_norm = model::QkNorm::kPerHead;
      attention.qk_norm_kind =
          model::UClipNorm{.alpha_per_channel = true, .weight_per_channel = false};
      mlp.activation = ops::Activation::kRelu;
      spec.norm = model::UClipNorm{.alpha_per_channel = false, .weight_per_channel = true};
      spec.logit_scale = 0.75f;  // as spread as those of the others
      break;
    case TinyArch::kScaled:
      attention.v_norm = true;
      attention.weighting = model::Softmax{.softcap = 0, .sinks = true};
      attention.qk_norm = model::QkNorm::kPerHead;
      attention.norms_rotated = true;
      spec.query_growth = {.slope = 0.2, .period = 24};
      spec.embed_scale = 2;
      spec.branch_scale = 0.5f;
      spec.logit_scale = 0.75f;
      break;
    case TinyArch::kByLayer:
    case TinyArch::kTwoWidths:
      norms.post = true;
      attention.qk_norm = model::QkNorm::kPerHead;
      attention.v_norm = true;
      mlp.activation = ops::Activation::kGeluTanh;
      spec.embed_scale = 8;
      spec.final_softcap = 4;
      spec.tied_head = true;
      break;
    case TinyArch::kSinks:
      attention.weighting = model::Softmax{.softcap = 0, .sinks = true};
      attention.qkv_bias = true;
      attention.out_bias = true;
      break;
    case TinyArch::kDelta:
      attention.qk_norm = model::QkNorm::kPerHead;
      attention.out_gate = true;
      break;
    case TinyArch::kTwoStreams:
    case TinyArch::kDepthAdds:
      norms.post = true;
      break;
    case TinyArch::kGatedStreams:
      norms.pre = false;
      break;
    case TinyArch::kRecurrent:
    case TinyArch::kExperts:
    case TinyArch::kSpaces:
    case TinyArch::kLatent:
    case TinyArch::kHyper:
    case TinyArch::kDelayed:
    case TinyArch::kNormedSums:
    case TinyArch::kGatedAdds:
    case TinyArch::kBlockSums:
      break;
  }
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  spec.layers.assign(3, {attention, mlp, norms});
  spec.ropes.push_back({.theta = 10000, .rotary_dim = attention.head_dim, .scaling = {}});
  change_layers(arch, attention, spec);
  change_residual(arch, spec);
  return spec;
}

bool has_windows(TinyArch arch) {
  return std::ranges::any_of(tiny_spec(arch).layers, [](const model::LayerSpec& layer) {
    return model::kv_geometry(layer).window > 0;
  });
}

namespace {

model::Weights part_of(model::Weights weights, const model::ModelSpec& spec,
                       const model::Stage& stage) {
  const model::LayerRange layers = model::layers_of(spec, stage);
  weights.layers.resize(layers.end);
  weights.layers.erase(weights.layers.begin(),
                       weights.layers.begin() + static_cast<std::ptrdiff_t>(layers.begin));
  if (!stage.embeds()) weights.embedding = {};
  if (!stage.is_last()) weights.final_norm = {};
  if (!stage.is_last()) weights.head = {};
  return weights;
}

}  // namespace

Result<model::Weights> random_weights(const model::ModelSpec& spec, ops::Ops& ops, uint64_t seed,
                                      const model::Stage& stage) {
  WeightMaker maker(ops, seed);
  model::Weights weights;
  const ops::Rank rank = ops::rank_of(ops);
  if (!spec.tied_head) {
    RUDDER_TRY(weights.embedding, maker.table(spec.vocab, spec.hidden));
  }
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    RUDDER_TRY(model::LayerWeights made, random_layer(spec, i, rank, maker));
    weights.layers.push_back(std::move(made));
  }
  for (const model::NormTensor& norm : model::final_norm_tensors(spec, {})) {
    RUDDER_TRY(weights.final_norm, maker.norm(norm, spec.norm_eps));
  }
  const bool needs_table = spec.tied_head && !model::shares_table(spec, rank, stage);
  RUDDER_TRY(weights.head, maker.linear(model::head_module(spec, {}, rank), 2,
                                        needs_table ? &weights.embedding : nullptr));
  const model::LayerTensors beside = model::model_tensors(spec, {}, &weights);
  for (const model::TableTensor& table : beside.tables) {
    RUDDER_TRY(*table.target, maker.table(table.rows, table.width));
  }
  for (const model::NormTensor& norm : beside.norms) {
    RUDDER_TRY(*norm.target, maker.norm(norm, spec.norm_eps));
  }
  for (const model::LinearModule& linear : beside.linears) {
    RUDDER_TRY(*linear.target, maker.linear(linear, 1));
  }
  weights.bytes = maker.bytes();
  return part_of(std::move(weights), spec, stage);
}

}  // namespace rudder::testing
