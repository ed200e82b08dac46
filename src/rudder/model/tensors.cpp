#include "rudder/model/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "rudder/base/check.h"

namespace rudder::model {

int64_t RowOrder::stored(int64_t row) const {
  if (is_stored()) return row;
  const int64_t i = row % head_dim;
  if (i >= neighbours) return row;
  const int64_t half = neighbours / 2;
  return row - i + (i < half ? 2 * i : 2 * (i - half) + 1);
}

int64_t LinearModule::Part::stored_rows() const {
  int64_t sum = 0;
  for (const Extent& run : rows) sum += run.stored;
  return sum;
}

int64_t LinearModule::rows() const {
  int64_t sum = 0;
  for (const Part& part : parts) {
    for (const Extent& run : part.rows) sum += run.count();
  }
  return sum;
}

size_t LinearModule::first_of(size_t part) const {
  return static_cast<size_t>(std::ranges::find(parts, parts[part].name, &Part::name) -
                             parts.begin());
}

NormTensor norm_tensor(std::string_view module, Extent width, const NormKind& kind,
                       ops::NormSpec* target) {
  NormTensor out{.weight = {}, .alpha = {}, .width = width, .target = target};
  if (const UClipNorm* const uclip = std::get_if<UClipNorm>(&kind)) {
    out.weight = {fmt::format("{}.gamma", module), uclip->weight_per_channel ? width.stored : 1};
    out.alpha = {fmt::format("{}.alpha", module), uclip->alpha_per_channel ? width.stored : 1};
  } else {
    out.weight = {fmt::format("{}.weight", module), width.stored};
  }
  return out;
}

void LayerTensors::add_norm(std::string_view name, Extent width, const NormKind& kind,
                            ops::NormSpec* target) {
  norms.push_back(norm_tensor(fmt::format("{}{}", prefix, name), width, kind, target));
}

void LayerTensors::add_plain_norm(int64_t width, ops::NormSpec* target) {
  norms.push_back({.weight = {"", width}, .alpha = {}, .width = width, .target = target});
}

void LayerTensors::add_vector(std::string_view name, Extent count, ops::View* target,
                              ValueKind kind) {
  vectors.push_back({fmt::format("{}{}", prefix, name), count, target, kind});
}

void LayerTensors::add_matrix(std::string_view name, int64_t rows, int64_t columns,
                              ops::View* target) {
  add_vector(name, columns, target);
  vectors.back().rows = rows;
}

void LayerTensors::add_filters(const std::vector<std::string_view>& names, std::vector<Extent> runs,
                               int64_t length, ops::View* target) {
  FilterTensor& filter = filters.emplace_back();
  for (const std::string_view name : names)
    filter.names.push_back(fmt::format("{}{}", prefix, name));
  filter.runs = std::move(runs);
  filter.length = length;
  filter.target = target;
}

void LayerTensors::add_channels(std::string_view name, std::vector<Extent> runs,
                                ops::View* target) {
  add_filters({name}, std::move(runs), 1, target);
  filters.back().is_flat = true;
}

tensor::Shape FilterTensor::stored(size_t tensor) const {
  int64_t channels = 0;
  for (const Extent& run : runs) channels += run.stored;
  if (names.size() > 1) channels = runs[tensor].stored;
  return is_flat ? tensor::Shape{channels} : tensor::Shape{channels, 1, length};
}

int64_t FilterTensor::count() const {
  int64_t channels = 0;
  for (const Extent& run : runs) channels += run.count();
  return channels * length;
}

std::vector<float> FilterTensor::share_of(const std::vector<float>& values) const {
  std::vector<float> out;
  int64_t first = 0;
  for (const Extent& run : runs) {
    const auto begin = values.begin() + (first + run.share.begin) * length;
    out.insert(out.end(), begin, begin + run.count() * length);
    first += run.stored;
  }
  return out;
}

void LayerTensors::add_parts(std::vector<LinearModule::Part> parts, Extent in,
                             ops::LinearWeight* target) {
  LinearModule& module = linears.emplace_back();
  module.in = in;
  module.target = target;
  module.is_first_rank = rank.index == 0;
  for (LinearModule::Part& part : parts) part.name.insert(0, prefix);
  module.parts = std::move(parts);
}

void LayerTensors::add_linear(const std::vector<std::string_view>& names,
                              const std::vector<Extent>& rows, Extent in, bool bias,
                              ops::LinearWeight* target) {
  LinearModule& module = linears.emplace_back();
  module.in = in;
  module.bias = bias;
  module.target = target;
  module.is_first_rank = rank.index == 0;
  if (names.size() == 1) {
    module.parts.push_back({fmt::format("{}{}", prefix, names[0]), rows});
    return;
  }
  RUDDER_CHECK(names.size() == rows.size(), "{} names of {} parts", names.size(), rows.size());
  for (size_t i = 0; i < names.size(); ++i) {
    module.parts.push_back({fmt::format("{}{}", prefix, names[i]), {rows[i]}});
  }
}

void LayerTensors::add_experts(const std::vector<std::string_view>& names, Extent rows, Extent in,
                               int64_t experts, bool bias, ops::LinearWeight* target) {
  add_linear(names, std::vector<Extent>(names.size(), rows), in, bias, target);
  linears.back().experts = experts;
}

void LayerTensors::add_stacked_experts(std::string_view name, const InStack& stack, Extent rows,
                                       Extent in, bool bias, ops::LinearWeight* target) {
  const std::vector<std::string_view> names(static_cast<size_t>(stack.parts * stack.experts), name);
  add_linear(names, std::vector<Extent>(names.size(), rows), in, bias, target);
  LinearModule& module = linears.back();
  module.experts = stack.experts;
  for (int64_t i = 0; i < stack.experts * stack.parts; ++i) {
    InStack& one = module.parts[static_cast<size_t>(i)].stack;
    one = stack;
    one.expert = i / stack.parts;
    one.part = i % stack.parts;
  }
}

std::string layer_behind(const WeightNames& names, size_t layer) {
  return fmt::format("{}layers.{}.", names.prefix, layer);
}

LayerTensors layer_tensors(const ModelSpec& spec, const WeightNames& names, size_t layer,
                           LayerWeights* weights, ops::Rank rank) {
  return layer_tensors_behind(layer_behind(names, layer), spec, names, layer, weights, rank);
}

LayerTensors layer_tensors_behind(std::string prefix, const ModelSpec& spec,
                                  const WeightNames& names, size_t layer, LayerWeights* weights,
                                  ops::Rank rank) {
  const LayerSpec& l = spec.layers[layer];
  LayerTensors out;
  out.rank = rank;
  out.prefix = std::move(prefix);
  const auto add_norm = [&](bool exists, std::string_view name,
                            ops::NormSpec LayerWeights::*member) {
    if (exists) out.add_norm(name, spec.hidden, spec.norm, target_in(weights, member));
  };
  add_norm(l.norms.pre && l.has_mixer(), names.mixer_pre_norm, &LayerWeights::mixer_pre_norm);
  add_norm(l.norms.post && l.has_mixer(), names.mixer_post_norm, &LayerWeights::mixer_post_norm);
  add_norm(l.norms.pre && l.has_mlp(), names.mlp_pre_norm, &LayerWeights::mlp_pre_norm);
  add_norm(l.norms.post && l.has_mlp(), names.mlp_post_norm, &LayerWeights::mlp_post_norm);

  if (l.has_scale) {
    out.numbers.push_back({fmt::format("{}{}", out.prefix, names.layer_scale),
                           target_in(weights, &LayerWeights::scale)});
  }

  const auto add_branch = [&](const auto& branch, auto* variant) {
    using Branch = std::decay_t<decltype(branch)>;
    typename Branch::Weights* const target =
        variant == nullptr ? nullptr : &std::get<typename Branch::Weights>(*variant);
    list_tensors(branch, spec.hidden, names.of<Branch>(), target, out);
  };
  std::visit(
      [&](const auto& mixer) { add_branch(mixer, target_in(weights, &LayerWeights::mixer)); },
      l.mixer);
  std::visit([&](const auto& mlp) { add_branch(mlp, target_in(weights, &LayerWeights::mlp)); },
             l.mlp);
  list_tensors(spec.layer_embedding, spec.hidden, names.layer_embedding,
               target_in(weights, &LayerWeights::layer_embedding), out);
  const ResidualLayer residual_layer{spec.hidden,
                                     spec.stage.is_last() && layer + 1 == spec.layers.size(),
                                     names.prefix, names.hyper};
  const auto add_residual = [&](const auto& residual, auto* variant) {
    using Kind = std::decay_t<decltype(residual)>;
    typename Kind::Weights* const target =
        variant == nullptr ? nullptr : &std::get<typename Kind::Weights>(*variant);
    list_tensors(residual, residual_layer, target, out);
  };
  std::visit(
      [&](const auto& kind) { add_residual(kind, target_in(weights, &LayerWeights::residual)); },
      spec.residual);
  return out;
}

LayerTensors model_tensors(const ModelSpec& spec, const WeightNames& names, Weights* weights) {
  LayerTensors out;
  out.prefix = names.prefix;
  list_tensors(spec.layer_embedding, spec.hidden, names.layer_embedding,
               target_in(weights, &Weights::layer_embedding), out);
  return out;
}

std::vector<NormTensor> final_norm_tensors(const ModelSpec& spec, const WeightNames& names) {
  if (reads_normed(spec.residual)) return {};
  return {norm_tensor(names.final_norm, spec.hidden, spec.norm)};
}

LinearModule head_module(const ModelSpec& spec, const WeightNames& names, ops::Rank rank) {
  const Extent rows{spec.vocab, ops::vocab_share(spec.vocab, rank)};
  return {.parts = {{std::string(names.head), {rows}}},
          .in = spec.hidden,
          .bias = false,
          .target = nullptr,
          .use = ops::ProductUse::kHead};
}

LayerWeights empty_weights(const ModelSpec& spec, size_t layer) {
  LayerWeights out;
  const auto empty = [](const auto& kind, auto& weights) {
    weights = typename std::decay_t<decltype(kind)>::Weights{};
  };
  const LayerSpec& l = spec.layers[layer];
  std::visit([&](const auto& mixer) { empty(mixer, out.mixer); }, l.mixer);
  std::visit([&](const auto& mlp) { empty(mlp, out.mlp); }, l.mlp);
  std::visit([&](const auto& kind) { empty(kind, out.residual); }, spec.residual);
  return out;
}

}  // namespace rudder::model
