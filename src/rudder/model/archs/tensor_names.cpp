#include "rudder/model/archs/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace rudder::model {
namespace {

struct Prefixed {
  std::string_view prefix;
  std::string_view embedding;
  std::string_view final_norm;
};
constexpr Prefixed kPrefixed[] = {
    {"model.", "model.embed_tokens.weight", "model.norm"},
    {"", "embed_tokens.weight", "norm"},
    {"model.language_model.", "model.language_model.embed_tokens.weight",
     "model.language_model.norm"},
    {"language_model.model.", "language_model.model.embed_tokens.weight",
     "language_model.model.norm"},
    {"language_model.", "language_model.embed_tokens.weight", "language_model.norm"},
};
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

}  // namespace

WeightNames names_in(const WeightNames& own, const weights::Checkpoint& checkpoint) {
  WeightNames names = own;
  if (checkpoint.find(own.embedding) == nullptr) {
    for (const Prefixed& one : kPrefixed) {
      if (checkpoint.find(one.embedding) == nullptr) continue;
      names.prefix = one.prefix;
      names.embedding = one.embedding;
      names.final_norm = one.final_norm;
      break;
    }
  }
  const auto has_head = [&](std::string_view name) {
    return checkpoint.find(std::string(name) + ".weight") != nullptr;
  };
  for (const std::string_view head : kHeads) {
    if (!has_head(names.head) && has_head(head)) names.head = head;
  }
  set_stacked_experts(checkpoint, names.of<Experts>());
  set_dense_mlp(checkpoint, names.of<Experts>(), names.of<GatedMlp>());
  return names;
}

}  // namespace rudder::model
