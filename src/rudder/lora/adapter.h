// Adapter: low-rank changes of a model's products, as a request has them: y = W x + scale * B (A x)
// in each product that it changes. Source: Hu et al., "LoRA: Low-Rank Adaptation of Large Language
// Models", arXiv 2106.09685, and the files of Hugging Face peft. Read once (peft_adapter.h), then
// shared and immutable: requests hold it, plans bring it to the executor. Plain data; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/tensor/view.h"

namespace rudder::lora {

// A product that adapters may change, as the checkpoint has it: q_proj and k_proj are two, also
// where they are multiplied together.
struct Target {
  std::string name;  // "model.layers.0.self_attn.q_proj"
  int64_t in = 0;
  int64_t out = 0;
};
// All of a model, layer by layer; a Delta names its target by the index among them.
using Targets = std::vector<Target>;

// Of one target. Matrices on the host, of f32, f16 or bf16, in the adapter's memory.
struct Delta {
  int32_t target = 0;
  float scale = 1;  // of B (A x)
  tensor::View a;   // [rank, in]
  tensor::View b;   // [out, rank]
  // Of DoRA (dora.h), [out] each; empty: none. The product becomes gains * (what it is without
  // them) + offsets; no offsets are zeros.
  std::vector<float> gains = {};
  std::vector<float> offsets = {};

  int64_t rank() const { return a.shape[0]; }
};

// A hash of all that an adapter does to activations: equal keys, equal activations.
using AdapterKey = std::array<uint64_t, 2>;

struct Adapter {
  AdapterKey key = {};
  int32_t max_rank = 0;       // of its deltas
  std::vector<Delta> deltas;  // ascending by target, one a target
  std::vector<std::byte> memory;

  bool has_gains() const {
    return std::ranges::any_of(deltas, [](const Delta& delta) { return !delta.gains.empty(); });
  }
};

// What an executor has room for; no rows: it takes no adapters.
struct TableSize {
  int32_t num_rows = 0;  // adapters at once
  int32_t max_rank = 0;

  bool empty() const { return num_rows == 0; }
};
inline constexpr int32_t kNoRow = -1;

}  // namespace rudder::lora
