// What the architectures of GGUF files are here: the architecture of the same model in the Hugging
// Face layout, what its tensors are called there, and what the writers of GGUF changed in their
// numbers. Constant data and pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/base/result.h"

namespace rudder::model {

// Modules of a layer: in a GGUF file behind "blk.<i>.", and as this room calls them behind
// "model.layers.<i>."; ".weight" and ".bias" follow both.
using GgufModule = std::pair<std::string_view, std::string_view>;

// A tensor of all experts of a layer, [experts, rows, inputs], or [experts, rows] of biases: here
// each has its own, behind "model.layers.<i>.<experts>.<e>.". One of two modules has the rows of
// the first in front. Old files have a tensor for each expert: "blk.<i>.<old>.<e>.".
struct GgufExperts {
  std::string_view in_file;
  std::string_view experts;
  std::string_view module;
  std::string_view second = "";
  std::string_view old = "";
};

struct GgufArchitecture {
  std::string_view name;          // "general.architecture"
  std::string_view architecture;  // of archs/
  std::string_view model_type;
  std::span<const GgufModule> modules;
  // The rows of q and k are in the order of ropes that turn neighbours.
  bool pairs_neighbours = false;
  // Norms are stored as 1 + w.
  bool adds_one = false;
  std::span<const GgufExperts> experts = {};  // of one with mixtures of experts
};

// kUnsupported, naming those there are, for an unknown name. Files of two architectures may have
// one name: of those with experts and of those without.
Result<const GgufArchitecture*> find_gguf_architecture(std::string_view name,
                                                       bool has_experts = false);

// Of a tensor of the file: in which layer it has which experts' module; nothing for another.
struct GgufExpertsTensor {
  const GgufExperts* experts = nullptr;
  std::string_view layer;
  std::string_view suffix;  // ".weight" or ".bias"
};
std::optional<GgufExpertsTensor> experts_tensor(const GgufArchitecture& architecture,
                                                std::string_view name);
std::string expert_name(const GgufExpertsTensor& tensor, int64_t expert, std::string_view module);
// Of a tensor of a layer; -1: it is of none.
int64_t layer_in_file(std::string_view name);

// The name here of a tensor of the file; its own where the architecture has none of that name.
std::string tensor_name_of(const GgufArchitecture& architecture, std::string_view name);

// The other way round; nothing for a tensor that no such file has.
std::optional<std::string> name_in_file(const GgufArchitecture& architecture,
                                        std::string_view name);

// Whether the tensor has the rows of q or of k, or a norm's weight: by its name here.
bool is_query(std::string_view name);
bool is_key(std::string_view name);
bool is_norm(std::string_view name);

}  // namespace rudder::model
