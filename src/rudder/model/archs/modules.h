// The tensors that a spec and an architecture's names ask for, layer by layer. Read by the loader,
// which binds them, and by make_model, which invents them; pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rudder/model/archs/archs.h"

namespace rudder::model {

struct NormModule {
  std::string name;  // of the tensor; empty: this model has none
  int64_t width = 0;
};

// One product: parts stacked along the output rows.
struct LinearModule {
  struct Part {
    std::string name;  // ".weight" and ".bias" follow
    int64_t rows = 0;
  };
  std::vector<Part> parts;
  int64_t in = 0;
  bool bias = false;
};

struct LayerModules {
  NormModule attn_pre_norm;
  NormModule attn_post_norm;
  NormModule mlp_pre_norm;
  NormModule mlp_post_norm;
  NormModule q_norm;
  NormModule k_norm;
  LinearModule qkv;
  LinearModule attn_out;
  LinearModule gate_up;
  LinearModule down;

  std::array<const NormModule*, 6> norms() const {
    return {&attn_pre_norm, &attn_post_norm, &mlp_pre_norm, &mlp_post_norm, &q_norm, &k_norm};
  }
  std::array<const LinearModule*, 4> linears() const { return {&qkv, &attn_out, &gate_up, &down}; }
};

LinearModule head_module(const ModelSpec& spec, const WeightNames& names);
LayerModules layer_modules(const ModelSpec& spec, const WeightNames& names, size_t layer);

}  // namespace rudder::model
