#include "rudder/model/archs/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace rudder::model {
namespace {

constexpr std::string_view kModelPrefixes[] = {"model.", "", "model.language_model.",
                                               "language_model.model.", "language_model."};
constexpr std::string_view kHeads[] = {"lm_head", "language_model.lm_head"};

// Tensors of all experts of a layer, in place of one for each expert: as transformers has them in
// memory, and as files of Qwen3.5 were published.
void set_stacked_experts(const weights::Checkpoint& checkpoint, Experts::Names& names) {
  constexpr std::string_view kStacked = "gate_up_proj";
  if (!names.stacked_gate_up.empty()) {
    // And the other way round, as GGUF files are read.
    const std::string apart = fmt::format(".{}.0.{}.weight", names.experts, names.gate);
    const auto is_apart = [&](const weights::TensorInfo& one) { return one.name.ends_with(apart); };
    if (std::ranges::any_of(checkpoint.tensors(), is_apart)) names.stacked_gate_up = "";
    return;
  }
  const std::string end = fmt::format(".{}.{}", names.experts, kStacked);
  const auto ends_so = [&](const weights::TensorInfo& one) { return one.name.ends_with(end); };
  if (std::ranges::none_of(checkpoint.tensors(), ends_so)) return;
  names.stacked_gate_up = kStacked;
  names.down = "down_proj";
  names.stack_form = StackForm::kBehind;
}

// Files of Kimi Linear that transformers writes name the MLPs of all layers as if they were
// mixtures.
void set_dense_mlp(const weights::Checkpoint& checkpoint, const Experts::Names& experts,
                   GatedMlp::Names& names) {
  constexpr std::string_view kEnd = ".block_sparse_moe.gate_proj.weight";
  if (!experts.experts.starts_with("block_sparse_moe.")) return;
  const auto ends_so = [&](const weights::TensorInfo& one) { return one.name.ends_with(kEnd); };
  if (std::ranges::none_of(checkpoint.tensors(), ends_so)) return;
  names.gate_up = {"block_sparse_moe.gate_proj", "block_sparse_moe.up_proj"};
  names.down = "block_sparse_moe.down_proj";
}

// The names of a model behind another prefix.
WeightNames with_prefix(const WeightNames& own, std::string_view prefix) {
  WeightNames names = own;
  names.prefix = prefix;
  for (std::string* name : {&names.embedding, &names.final_norm}) {
    if (name->starts_with(own.prefix)) name->replace(0, own.prefix.size(), prefix);
  }
  return names;
}

}  // namespace

WeightNames names_in(const WeightNames& own, const weights::Checkpoint& checkpoint) {
  const auto has = [&](std::string_view name) { return checkpoint.find(name) != nullptr; };
  const auto has_module = [&](std::string_view name) { return has(std::string(name) + ".weight"); };
  WeightNames names = own;
  for (const std::string_view head : kHeads) {
    if (!has_module(names.head) && has_module(head)) names.head = head;
  }
  std::vector<WeightNames> forms = {names};
  for (const std::string_view prefix : kModelPrefixes) forms.push_back(with_prefix(names, prefix));
  auto found = std::ranges::find_if(forms, [&](const auto& form) { return has(form.embedding); });
  if (found == forms.end() && has_module(names.head)) {
    // Of a tied pair, writers that look at memory keep the name that comes first, the head's.
    found =
        std::ranges::find_if(forms, [&](const auto& form) { return has_module(form.final_norm); });
    if (found != forms.end()) found->embedding = fmt::format("{}.weight", names.head);
  }
  if (found != forms.end()) names = *found;
  set_stacked_experts(checkpoint, names.of<Experts>());
  set_dense_mlp(checkpoint, names.of<Experts>(), names.of<GatedMlp>());
  return names;
}

}  // namespace rudder::model
