#include "rudder/testing/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/philox.h"
#include "rudder/model/tensors.h"
#include "rudder/testing/decayed_sum.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::View;

class WeightMaker {
 public:
  WeightMaker(ops::Ops& ops, uint64_t seed) : ops_(ops), seed_(seed) {}

  // Gains around 1: a forgotten norm shows.
  Result<ops::NormSpec> norm(const model::NormTensor& tensor, float eps) {
    ops::NormSpec norm{.weight = {}, .eps = eps};
    RUDDER_TRY(norm.weight, gains(tensor.width));
    if (tensor.alpha.count > 0) {
      RUDDER_TRY(norm.alpha, gains(tensor.width));
    }
    return norm;
  }

  Result<View> gains(const model::Extent& count) {
    std::vector<float> values(static_cast<size_t>(count.stored));
    for (float& value : values) value = gain();
    return upload_share(values, count);
  }

  // Around 1.
  float gain() { return static_cast<float>(0.5 + uniform()); }

  // One that is multiplied with whole rows is as long as a number elsewhere is large, so that a
  // softmax over what comes of it is of several.
  Result<View> vector(const model::Extent& count) {
    constexpr int64_t kFewNumbers = 16;
    const double deviation =
        count.stored <= kFewNumbers ? 1 : 1 / std::sqrt(static_cast<double>(count.stored));
    return upload_share(normal(count.stored, deviation), count);
  }

  // `table`, where it is given, gets the whole weight as an embedding table.
  Result<ops::LinearWeight> linear(const model::LinearModule& module, double gain,
                                   View* table = nullptr) {
    const int64_t in = module.in.stored;
    std::vector<std::vector<float>> memory;
    std::vector<std::vector<std::byte>> cuts;
    std::vector<ops::LinearPart> parts;
    for (size_t i = 0; i < module.parts.size(); ++i) {
      const int64_t out = module.parts[i].stored_rows();
      if (const size_t first = module.first_of(i); first != i) {
        RUDDER_CHECK(module.parts.size() == parts.size() + 1 && !module.bias);
        memory.push_back(memory[first]);
        const ops::LinearPart part = ops::wide_part({memory.back().data(), DType::kF32, {out, in}});
        RUDDER_TRY_VOID(model::cut_part(part, module, i, cuts, parts));
        continue;
      }
      memory.push_back(normal(out * in, gain / std::sqrt(static_cast<double>(in))));
      ops::LinearPart part = ops::wide_part({memory.back().data(), DType::kF32, {out, in}});
      if (module.bias) {
        memory.push_back(normal(out, 0.3));
        part.bias = {memory.back().data(), DType::kF32, {out}};
      }
      RUDDER_TRY_VOID(model::cut_part(part, module, i, cuts, parts));
      if (table != nullptr) {
        RUDDER_TRY(*table, upload_table(part.codes));
      }
    }
    RUDDER_TRY(ops::LinearWeight weight,
               module.experts == 0 ? ops_.make_linear(parts)
                                   : ops_.expert_ops()->make_experts(parts, module.experts));
    bytes_ += weight.bytes;
    return weight;
  }

  Result<View> table(int64_t rows, int64_t width) {
    std::vector<float> values = normal(rows * width, 1);
    return upload_table({values.data(), DType::kF32, {rows, width}});
  }

  int64_t bytes() const { return bytes_; }

 private:
  Result<View> upload_table(const View& host) {
    const bool wide = ops_.act_dtype() == DType::kF32;
    RUDDER_TRY(const View table, ops_.upload(host, wide ? DType::kF32 : DType::kBF16));
    bytes_ += static_cast<int64_t>(table.bytes());
    return table;
  }

  Result<View> upload_share(std::vector<float> values, const model::Extent& count) {
    const View whole{values.data(), DType::kF32, {count.stored}};
    RUDDER_TRY(const View device,
               ops_.upload(whole.rows(count.share.begin, count.count()), DType::kF32));
    bytes_ += static_cast<int64_t>(device.bytes());
    return device;
  }

  double uniform() { return philox_uniform(seed_, next_++); }

  // Box-Muller; rounded to bf16, which every backend can store.
  std::vector<float> normal(int64_t count, double deviation) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      const double radius = std::sqrt(-2 * std::log(1 - uniform()));
      const double x = deviation * radius * std::cos(2 * std::numbers::pi * uniform());
      value = tensor::to_float(tensor::to_bf16(static_cast<float>(x)));
    }
    return values;
  }

  ops::Ops& ops_;
  const uint64_t seed_;
  uint64_t next_ = 0;
  int64_t bytes_ = 0;
};

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
    RUDDER_TRY(*vector.target, vector.kind == model::ValueKind::kWeight
                                   ? maker.vector(vector.count)
                                   : maker.gains(vector.count));
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

// The first layer and the last choose among experts, each in its way.
void add_experts(model::ModelSpec& spec) {
  const model::Router router{.renormalises = true};
  model::Experts experts{.hidden = 64, .count = 8, .chosen = 3, .width = 32, .router = router};
  spec.layers.front().mlp = experts;
  experts.router = {ops::RouterKind::kSigmoid, true, 1.75f, 4, 2, true};
  spec.layers.back().mlp = experts;
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
  if (arch == TinyArch::kTwoStreams) spec.layers[0].has_scale = true;
  if (arch == TinyArch::kExperts) add_experts(spec);
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

}  // namespace

model::ModelSpec tiny_spec(TinyArch arch) {
  model::ModelSpec spec;
  spec.architecture = tiny_arch_name(arch);
  spec.hidden = 64;
  spec.vocab = 160;
  spec.max_positions = 512;

  model::Attention attention{.num_heads = 4, .num_kv_heads = 2, .head_dim = 16};
  model::GatedMlp mlp;
  mlp.width = 96;
  model::LayerNorms norms;
  switch (arch) {
    case TinyArch::kPreNorm:
      attention.qkv_bias = true;
      mlp.bias = true;
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
    case TinyArch::kTwoWidths:
      norms.post = true;
      attention.qk_norm = model::QkNorm::kPerHead;
      attention.v_norm = true;
      mlp.activation = ops::Activation::kGeluTanh;
      spec.embed_scale = 8;
      spec.final_softcap = 4;
      spec.tied_head = true;
      break;
    case TinyArch::kRecurrent:
    case TinyArch::kExperts:
      break;
    case TinyArch::kTwoStreams:
      norms.post = true;
      spec.branch_scale = 0.25f;
      spec.residual = model::MixedStreams{.count = 2};
      break;
    case TinyArch::kBlockSums:
      spec.branch_scale = 0.5f;
      spec.residual = model::BlockSums{.layers = 2, .blocks = 2};  // the second has a layer
      break;
  }
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  spec.layers.assign(3, {attention, mlp, norms});
  spec.ropes.push_back({.theta = 10000, .rotary_dim = attention.head_dim, .scaling = {}});
  change_layers(arch, attention, spec);
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
  RUDDER_TRY(weights.final_norm, maker.norm(model::final_norm_tensor(spec, {}), spec.norm_eps));
  const bool needs_table = spec.tied_head && !model::shares_table(spec, rank, stage);
  RUDDER_TRY(weights.head, maker.linear(model::head_module(spec, {}, rank), 2,
                                        needs_table ? &weights.embedding : nullptr));
  weights.bytes = maker.bytes();
  return part_of(std::move(weights), spec, stage);
}

model::DraftHeadSpec tiny_head_spec(TinyHead kind) {
  const bool shares_embedding = kind != TinyHead::kOwnEmbedding;
  const model::ModelSpec target = tiny_spec(TinyArch::kPreNorm);
  model::DraftHeadSpec spec;
  spec.layer = target;
  spec.layer.layers.resize(1);
  spec.layer.hidden = shares_embedding ? target.hidden : 48;
  model::Attention& attention = *attention_of(spec.layer.layers[0]);
  attention.qkv_bias = false;
  model::gated_mlp_of(spec.layer.layers[0])->bias = false;
  spec.target_hidden = target.hidden;
  spec.draft_vocab = (target.vocab + 2) / 3;
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
    for (int32_t i = 0; i < spec.draft_vocab; ++i) ids.push_back(3 * i);
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
    if (model::softmax_of(layer) == nullptr) continue;
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
  spec.layers.layers.clear();
  for (const bool has_window : {false, true, false}) {
    const model::LayerSpec* const like = last_layer(target, has_window);
    if (like == nullptr) continue;
    model::LayerSpec& layer = spec.layers.layers.emplace_back(*like);
    model::Attention& attention = *attention_of(layer);
    attention.own_kv = attention.v_norm = attention.v_is_k = false;
    attention.qk_norm = model::QkNorm::kPerHead;
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

}  // namespace rudder::testing
