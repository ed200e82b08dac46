#include "rudder/model/adapted_products.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "rudder/base/check.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/archs/tensor_names.h"

namespace rudder::model {
namespace {

Result<WeightNames> names_of(const weights::Checkpoint& checkpoint, const ModelSpec& spec) {
  RUDDER_TRY(const Architecture* const architecture, find_architecture(spec.architecture));
  return names_in(architecture->names, checkpoint);
}

// Experts have no adapters: files with some are refused (lora/peft_adapter.cpp).
bool is_adapted(const LinearModule& module) {
  return module.experts == 0;
}

// Parts that are one tensor are one target.
int64_t num_targets(const LinearModule& module) {
  int64_t count = 0;
  for (size_t part = 0; part < module.parts.size(); ++part) {
    if (module.first_of(part) == part) ++count;
  }
  return count;
}

}  // namespace

Result<lora::Targets> adapter_targets(const weights::Checkpoint& checkpoint,
                                      const ModelSpec& spec) {
  RUDDER_TRY(const WeightNames names, names_of(checkpoint, spec));
  lora::Targets targets;
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    for (const LinearModule& module : layer_tensors(spec, names, layer).linears) {
      if (!is_adapted(module)) continue;
      for (size_t part = 0; part < module.parts.size(); ++part) {
        if (module.first_of(part) != part) continue;
        targets.push_back(
            {module.parts[part].name, module.in.stored, module.parts[part].stored_rows()});
      }
    }
  }
  return targets;
}

Result<lora::BaseTensors> base_tensors(const weights::Checkpoint& checkpoint,
                                       const lora::Target& target) {
  const auto is_wide = [](const weights::TensorInfo* tensor) {
    return tensor != nullptr && !tensor->packed &&
           (tensor->view.dtype == tensor::DType::kF32 ||
            tensor->view.dtype == tensor::DType::kF16 ||
            tensor->view.dtype == tensor::DType::kBF16);
  };
  const weights::TensorInfo* const weight = checkpoint.find(target.name + ".weight");
  if (!is_wide(weight) || weight->view.shape != tensor::Shape({target.out, target.in})) {
    return fail(ErrorCode::kUnsupported,
                "DoRA is not served over weights of few bits: the lengths of its rows are those of "
                "the weights that it was trained on",
                fmt::format("{}: module '{}'", checkpoint.name(), target.name));
  }
  lora::BaseTensors out{.weight = weight->view};
  const weights::TensorInfo* const bias = checkpoint.find(target.name + ".bias");
  if (is_wide(bias) && bias->view.shape == tensor::Shape({target.out})) out.bias = bias->view;
  return out;
}

Result<std::vector<AdaptedProduct>> adapted_products(const weights::Checkpoint& checkpoint,
                                                     const ModelSpec& spec, Weights& weights,
                                                     ops::Rank rank, const Stage& stage) {
  for (const LayerSpec& layer : spec.layers) {
    const Attention* const attention = attention_of(layer);
    const char* const what = std::holds_alternative<GatedDelta>(layer.mixer)  ? "a gated delta rule"
                             : std::holds_alternative<ShortConv>(layer.mixer) ? "short convolutions"
                             : space_of(layer) != nullptr                     ? "state spaces"
                             : latent_of(layer) != nullptr                    ? "latent attention"
                             : attention != nullptr && attention->out_gate    ? "gated attention"
                             : experts_of(layer) != nullptr                   ? "experts"
                                                                              : nullptr;
    if (what == nullptr) continue;
    return fail(ErrorCode::kUnsupported,
                std::string("adapters of models with ") + what + " are not served", "enable-lora");
  }
  RUDDER_TRY(const WeightNames names, names_of(checkpoint, spec));
  const LayerRange range = layers_of(spec, stage);
  std::vector<AdaptedProduct> products;
  int32_t first = 0;  // target of the product at hand
  for (size_t layer = 0; layer < range.end; ++layer) {
    const bool is_here = layer >= range.begin;
    LayerWeights* const here = is_here ? &weights.layers[layer - range.begin] : nullptr;
    for (LinearModule& module : layer_tensors(spec, names, layer, here, rank).linears) {
      if (!is_adapted(module)) continue;
      std::vector<int32_t> targets;
      int32_t next = first;
      for (size_t part = 0; part < module.parts.size(); ++part) {
        const size_t original = module.first_of(part);
        targets.push_back(original == part ? next++ : targets[original]);
      }
      first += static_cast<int32_t>(num_targets(module));
      if (is_here) products.push_back({std::move(module), std::move(targets)});
    }
  }
  return products;
}

int64_t adapter_row_bytes(const ModelSpec& spec, int32_t max_rank, tensor::DType act) {
  const int64_t rank = ops::padded_rank(max_rank);
  int64_t elements = 0;
  int64_t scales = 0;
  for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
    for (const LinearModule& module : layer_tensors(spec, {}, layer).linears) {
      if (!is_adapted(module)) continue;
      const int64_t parts = std::ssize(module.parts);
      elements += rank * (parts * module.in.count() + module.rows());
      scales += 2 * parts + module.rows() * (module.adds_bias() ? 2 : 1);
    }
  }
  return elements * static_cast<int64_t>(tensor::dtype_bytes(act)) +
         scales * static_cast<int64_t>(sizeof(float));
}

int64_t widest_adapter_mid(int32_t max_rank) {
  return int64_t{ops::kMaxAdapterParts} * ops::padded_rank(max_rank);
}

}  // namespace rudder::model
