#include "rudder/model/replace_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"
#include "rudder/model/tensors.h"

namespace rudder::model {
namespace {

void add_norm(WeightParts& parts, const NormTensor& norm) {
  parts.values.push_back({norm.weight.name, &norm.target->weight});
  parts.values.push_back({norm.alpha.name, &norm.target->alpha});
}

void add_layer(WeightParts& parts, const LayerTensors& tensors) {
  for (const NormTensor& norm : tensors.norms) add_norm(parts, norm);
  for (const VectorTensor& vector : tensors.vectors) {
    parts.values.push_back({vector.name, vector.target});
  }
  for (const FilterTensor& filter : tensors.filters) {
    parts.values.push_back({filter.names.front(), filter.target});
  }
  for (const NumberTensor& number : tensors.numbers) parts.numbers.push_back(number.target);
  for (const LinearModule& linear : tensors.linears) {
    parts.products.push_back({linear.parts.front().name, linear.target});
  }
  for (const ScaleTensor& scale : tensors.scales) {
    parts.values.push_back({scale.names.front(), scale.target});
  }
}

Error other_form(const std::string& name) {
  return {ErrorCode::kInvalidArgument,
          fmt::format("'{}' does not have the form of the one that is served", name), name};
}

}  // namespace

Result<WeightParts> parts_of(const weights::Checkpoint& checkpoint, const ModelSpec& spec,
                             ops::Rank rank, const Stage& stage, Weights& weights) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  const WeightNames names = names_in(architecture->names, checkpoint);
  WeightParts parts;
  parts.values.push_back({std::string(names.embedding), &weights.embedding});
  if (stage.is_last()) {
    parts.products.push_back({head_module(spec, names, rank).parts.front().name, &weights.head});
    for (NormTensor& norm : final_norm_tensors(spec, names)) {
      norm.target = &weights.final_norm;
      add_norm(parts, norm);
    }
  }
  const LayerRange layers = layers_of(spec, stage);
  for (size_t i = layers.begin; i < layers.end; ++i) {
    add_layer(parts, layer_tensors(spec, names, i, &weights.layers[i - layers.begin], rank));
  }
  return parts;
}

Result<void> check_same_form(const WeightParts& parts, const WeightParts& fresh) {
  if (parts.values.size() != fresh.values.size() ||
      parts.products.size() != fresh.products.size() ||
      parts.numbers.size() != fresh.numbers.size()) {
    return fail(ErrorCode::kInvalidArgument, "the weights are of another model");
  }
  for (size_t i = 0; i < parts.values.size(); ++i) {
    const ops::View& old = *parts.values[i].view;
    const ops::View& view = *fresh.values[i].view;
    if (old.dtype != view.dtype || old.shape != view.shape) {
      return tl::unexpected<Error>(other_form(parts.values[i].name));
    }
  }
  for (size_t i = 0; i < parts.products.size(); ++i) {
    const ops::LinearWeight& old = *parts.products[i].weight;
    const ops::LinearWeight& weight = *fresh.products[i].weight;
    if (old.in != weight.in || old.out != weight.out || old.bytes != weight.bytes ||
        old.format != weight.format || old.input != weight.input ||
        old.rounds_x != weight.rounds_x) {
      return tl::unexpected<Error>(other_form(parts.products[i].name));
    }
  }
  return {};
}

void take_values(const WeightParts& parts, const WeightParts& fresh) {
  for (size_t i = 0; i < parts.values.size(); ++i) {
    const ops::View& from = *fresh.values[i].view;
    if (!from.empty()) std::memcpy(parts.values[i].view->data, from.data, from.bytes());
  }
  for (size_t i = 0; i < parts.numbers.size(); ++i) *parts.numbers[i] = *fresh.numbers[i];
  for (size_t i = 0; i < parts.products.size(); ++i) {
    parts.products[i].weight->packed = std::move(fresh.products[i].weight->packed);
  }
}

}  // namespace rudder::model
