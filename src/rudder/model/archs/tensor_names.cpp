#include "rudder/model/archs/tensor_names.h"

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
  return names;
}

}  // namespace rudder::model
