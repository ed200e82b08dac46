// ModelSpec: an architecture as data. Made from a checkpoint's config by archs/, read by the loader
// and by the one forward pass (decoder.cpp). A field names mathematics, never a vendor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rudder/model/attention.h"
#include "rudder/model/custom_mixer.h"
#include "rudder/model/experts.h"
#include "rudder/model/gated_delta.h"
#include "rudder/model/gated_mlp.h"
#include "rudder/model/latent_attention.h"
#include "rudder/model/layer_embedding.h"
#include "rudder/model/no_branch.h"
#include "rudder/model/parallel.h"
#include "rudder/model/residual.h"
#include "rudder/model/short_conv.h"
#include "rudder/model/state_space.h"

namespace rudder::model {

// Rotary position embedding, rotate-half pairing. Tables are computed by rope.h in fp64.
struct RopeDefault {};
struct RopeLinear {
  double factor = 1;
};
struct RopeDynamic {
  double factor = 1;
  int32_t original_max_positions = 0;
};
struct RopeLlama3 {
  double factor = 8;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int32_t original_max_positions = 8192;
};
struct RopeYarn {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double attention_factor = 1;  // on cos and sin
  int32_t original_max_positions = 0;
  bool truncate = true;  // round the correction range to whole dimensions
};
struct RopeLong {
  std::vector<double> short_factor;
  std::vector<double> long_factor;
  double attention_factor = 1;
  int32_t original_max_positions = 0;
  double factor = 1;  // by how much it stretches; the attention factor comes of it
};
// The frequencies of a whole head, of which the first `part` turn and the others stand still.
struct RopeProportional {
  double part = 1;
  double factor = 1;
};
using RopeScaling = std::variant<RopeDefault, RopeLinear, RopeDynamic, RopeLlama3, RopeYarn,
                                 RopeLong, RopeProportional>;

struct RopeSpec {
  double theta = 10000;
  int32_t rotary_dim = 0;  // <= head_dim: the rest of a head is not rotated
  RopeScaling scaling;
};

// Queries grow with their position, so that attention stays as sharp over more keys: those at
// position p are multiplied by 1 + slope * ln(1 + floor(p / period)) behind their rotation. Source:
// transformers, get_llama_4_attn_scale.
struct QueryGrowth {
  double slope = 0;  // 0: they do not
  int32_t period = 1;

  bool grows() const { return slope != 0; }
};

// The parts of a layer. A mixer lets a token read other tokens, an MLP works on each token alone.
// A further kind of branch is a further alternative, and a file like those of these.
using Mixer = std::variant<Attention, LatentAttention, GatedDelta, ShortConv, StateSpace, Parallel,
                           CustomMixer, NoMixer>;
using Mlp = std::variant<GatedMlp, Experts, NoMlp>;

// Where a layer normalises: before each branch, after it, or both.
struct LayerNorms {
  bool pre = true;    // of the branch's input
  bool post = false;  // of the branch's output, before it is added
};

struct LayerSpec {
  Mixer mixer;
  Mlp mlp;
  LayerNorms norms;
  bool has_scale = false;  // its output is multiplied by a number that the checkpoint holds

  bool has_mixer() const { return !std::holds_alternative<NoMixer>(mixer); }
  bool has_mlp() const { return !std::holds_alternative<NoMlp>(mlp); }
};

// The layer's mixer, a part of it, its weighting or MLP if it is of this kind, else null.
inline const Attention* attention_of(const LayerSpec& layer) {
  if (const auto* const both = std::get_if<Parallel>(&layer.mixer)) return &both->attention;
  return std::get_if<Attention>(&layer.mixer);
}
inline Attention* attention_of(LayerSpec& layer) {
  return const_cast<Attention*>(attention_of(std::as_const(layer)));
}
inline const LatentAttention* latent_of(const LayerSpec& layer) {
  return std::get_if<LatentAttention>(&layer.mixer);
}
inline LatentAttention* latent_of(LayerSpec& layer) {
  return std::get_if<LatentAttention>(&layer.mixer);
}
inline const StateSpace* space_of(const LayerSpec& layer) {
  if (const auto* const both = std::get_if<Parallel>(&layer.mixer)) return &both->space;
  return std::get_if<StateSpace>(&layer.mixer);
}
inline StateSpace* space_of(LayerSpec& layer) {
  return const_cast<StateSpace*>(space_of(std::as_const(layer)));
}
inline const Softmax* softmax_of(const LayerSpec& layer) {
  const Attention* const attention = attention_of(layer);
  return attention == nullptr ? nullptr : std::get_if<Softmax>(&attention->weighting);
}
inline Softmax* softmax_of(LayerSpec& layer) {
  Attention* const attention = attention_of(layer);
  return attention == nullptr ? nullptr : std::get_if<Softmax>(&attention->weighting);
}
inline const GatedMlp* gated_mlp_of(const LayerSpec& layer) {
  return std::get_if<GatedMlp>(&layer.mlp);
}
inline GatedMlp* gated_mlp_of(LayerSpec& layer) {
  return std::get_if<GatedMlp>(&layer.mlp);
}
inline const Experts* experts_of(const LayerSpec& layer) {
  return std::get_if<Experts>(&layer.mlp);
}
inline Experts* experts_of(LayerSpec& layer) {
  return std::get_if<Experts>(&layer.mlp);
}
// Of a layer without experts: of none.
inline tap::Routing routing_of(const LayerSpec& layer) {
  const Experts* const experts = experts_of(layer);
  return experts == nullptr ? tap::Routing{} : routing_of(*experts);
}

// What a layer keeps of a token in the KV cache: keys and values of so many heads of so many
// elements, or one row that both are made of (`parts` 1), read by the `window` tokens from it on
// (0: by all). Zeros: it keeps nothing.
struct KvGeometry {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t window = 0;
  int32_t parts = 2;

  int64_t rows() const { return int64_t{parts} * num_kv_heads; }  // of head_dim
};
// Of a layer that reads another's (Attention.kv_layer) nothing is kept either.
inline KvGeometry kv_geometry(const LayerSpec& layer) {
  if (const LatentAttention* const latent = latent_of(layer)) {
    return {.num_kv_heads = 1,
            .head_dim = static_cast<int32_t>(latent->shape.row()),
            .window = 0,
            .parts = 1};
  }
  const Attention* const a = attention_of(layer);
  if (a == nullptr || !a->own_kv) return {};
  return KvGeometry{a->num_kv_heads, a->head_dim, a->window};
}

// What a layer keeps of a sequence besides (sequence_state.h).
inline StateBytes state_bytes(const LayerSpec& layer) {
  return std::visit([](const auto& mixer) { return state_bytes(mixer); }, layer.mixer);
}
// A rank of a pipeline and the layers of the model that it runs (model/stage.h).
struct Stage {
  int32_t index = 0;  // from 0 to count - 1
  int32_t count = 1;
  int32_t first_layer = 0;  // of the whole model
  int32_t num_layers = 0;   // of one that is alone: all
  bool has_table = false;   // not the first, which has it anyway: the embedding, for a draft head
  // Of the whole model: a draft head on the last stage reads the rows that enter them, in this
  // order (DraftHeadSpec.aux_layers). Each stage passes on what it has of them.
  std::vector<int32_t> aux_layers = {};

  bool is_alone() const { return count == 1; }
  bool is_first() const { return index == 0; }
  bool is_last() const { return index == count - 1; }
  bool embeds() const { return is_first() || has_table; }
  int32_t end_layer() const { return first_layer + num_layers; }
};

struct ModelSpec {
  std::string architecture;  // "LlamaForCausalLM"
  int32_t hidden = 0;
  int32_t vocab = 0;
  int32_t max_positions = 0;      // how far its ropes reach where nothing else is asked (rope.h)
  int32_t longest_positions = 0;  // and where it is asked for: at least as many
  NormKind norm;                  // of branches and of the head's input
  float norm_eps = 1e-5f;
  float embed_scale = 1;   // exact; how it is rounded: table_scale (weight_budget.h)
  float branch_scale = 1;  // of what each branch adds to the residual
  float logit_scale = 1;   // before the soft-cap
  float final_softcap = 0;
  bool tied_head = false;
  bool has_head = true;  // false: of an embedding checkpoint, whose head says nothing
  Residual residual;
  LayerEmbedding layer_embedding;
  std::vector<RopeSpec> ropes;
  QueryGrowth query_growth;
  std::vector<LayerSpec> layers;  // of the stage
  Stage stage;                    // whose part of the model this is
};

// Elements of a token's row of the residual.
inline int64_t residual_width(const ModelSpec& spec) {
  return int64_t{spec.hidden} * form_of(spec.residual).streams;
}

// Whether drafts of a step may be trees (step::DraftTree): every layer's tokens see all tokens
// before them, weighted by a softmax, and one stage has all layers.
inline bool runs_trees(const ModelSpec& spec) {
  return spec.stage.is_alone() && std::ranges::all_of(spec.layers, [](const LayerSpec& layer) {
           if (latent_of(layer) != nullptr) return true;
           return softmax_of(layer) != nullptr && attention_of(layer)->window == 0;
         });
}

// The layer whose KV a layer reads: itself, or Attention.kv_layer.
inline size_t kv_layer_of(const ModelSpec& spec, size_t layer) {
  const Attention* const attention = attention_of(spec.layers[layer]);
  const bool is_shared = attention != nullptr && attention->kv_layer >= 0;
  return is_shared ? static_cast<size_t>(attention->kv_layer) : layer;
}

// Whether some layer reads the KV of another one of the model.
inline bool shares_kv(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers, [](const LayerSpec& layer) {
    return attention_of(layer) != nullptr && attention_of(layer)->kv_layer >= 0;
  });
}

// Whether some layer keeps something of a sequence besides KV.
inline bool keeps_states(const ModelSpec& spec) {
  return std::ranges::any_of(spec.layers,
                             [](const LayerSpec& layer) { return state_bytes(layer).state > 0; });
}

}  // namespace rudder::model
