// Tiny models of parts that a GPU has kernels for: heads, and rows that all heads read, that the
// tuned attention kernels take, in place of narrower ones. For tests of executors on GPUs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <variant>

#include "rudder/model/spec.h"

namespace rudder::metamorphic {

// Heads of 64, and of 512 where a layer's are wider than those of others; rows of 256 + 64.
inline void use_served_parts(model::ModelSpec& spec) {
  constexpr int32_t kNarrow = 64;
  constexpr int32_t kWide = 512;
  int32_t least = kWide;
  for (const model::LayerSpec& layer : spec.layers) {
    if (const model::Attention* const attention = model::attention_of(layer)) {
      least = std::min(least, attention->head_dim);
    }
  }
  for (model::LayerSpec& layer : spec.layers) {
    if (model::LatentAttention* const latent = model::latent_of(layer)) {
      latent->shape = {.num_heads = latent->shape.num_heads,
                       .nope_dim = kNarrow,
                       .rope_dim = kNarrow,
                       .value_dim = kNarrow,
                       .rank = 4 * kNarrow};
      latent->scale = 1.0f / std::sqrt(static_cast<float>(latent->shape.query_dim()));
      if (latent->rope != model::kNoRope) {
        spec.ropes[static_cast<size_t>(latent->rope)].rotary_dim = kNarrow;
      }
    }
    if (model::attention_of(layer) == nullptr) continue;
    model::Attention& attention = *model::attention_of(layer);
    attention.head_dim = attention.head_dim > least ? kWide : kNarrow;
    attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
    if (attention.rope == model::kNoRope) continue;
    spec.ropes[static_cast<size_t>(attention.rope)].rotary_dim = attention.head_dim;
  }
}

}  // namespace rudder::metamorphic
