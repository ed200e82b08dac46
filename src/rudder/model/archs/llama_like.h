// What the decoder-only transformers of this room have in common: reads the keys they share from
// config.json, in the layout of transformers 4 and of 5. Each architecture calls llama_like and
// then says what is different. Load time, one thread; errors name the key.
#pragma once

#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/model/spec.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

// How an architecture reads its rope.
struct RopeDefaults {
  double theta = 10000;       // of an absent rope_theta
  bool is_partial = false;    // "partial_rotary_factor" may leave a part of a head as it is
  bool is_long = false;       // the types "su" and "yarn" are former names of "longrope"
  bool is_by_layer = false;   // of a kind of layers, not of all of the model
  bool is_widened = false;    // "alpha" beside the type "dynamic" widens the base, at any length
  bool is_sectioned = false;  // the type "mrope", whose sections are of images: of text it is plain
};

// What an absent key means, as its architecture documents it.
struct LlamaDefaults {
  bool tied_head = false;
  const char* activation_key = "hidden_act";  // null: whatever the config says, `activation`
  const char* activation = nullptr;           // null: the key must be there
  const char* eps_key = "rms_norm_eps";
  RopeDefaults rope = {};
  int32_t head_dim = 0;  // not 0: whatever "head_dim" says
  bool one_rope = true;  // false: the architecture reads its ropes
};

// Dimensions, layers (all alike, full attention), tied head, activation, the rope.
Result<ModelSpec> llama_like(const weights::HfConfig& config, const LlamaDefaults& defaults = {});

// Of a model with one rope: "rope_scaling" where it is there and not empty, else "rope_parameters",
// with the "rope_theta" beside them where they have none. `head_dim` times "partial_rotary_factor"
// is rotated.
Result<RopeSpec> read_rope(const weights::HfConfig& config, int32_t head_dim,
                           const RopeDefaults& defaults);
// The object of rope keys that holds, without any where there is none.
Result<weights::HfConfig> rope_object(const weights::HfConfig& config);
// One object of rope keys; `config` is for the keys beside it.
Result<RopeSpec> read_rope_object(const weights::HfConfig& rope, const weights::HfConfig& config,
                                  int32_t head_dim, const RopeDefaults& defaults);

// "llama_4_scaling_beta" beside the keys of the rope, whose original length is the period.
Result<QueryGrowth> read_growth(const weights::HfConfig& config);

// Whether each layer has a sliding window: "layer_types", or `fallback(layer)` without that key.
Result<std::vector<bool>> sliding_layers(const weights::HfConfig& config, size_t num_layers,
                                         bool (*fallback)(size_t layer, int64_t argument),
                                         int64_t argument);

// "sliding_window" of the layers that `sliding` marks.
Result<void> set_windows(const weights::HfConfig& config, const std::vector<bool>& sliding,
                         ModelSpec& spec);

// "use_sliding_window" from layer "max_window_layers" on, unless "layer_types" says which.
Result<void> set_windows_above(const weights::HfConfig& config, ModelSpec& spec);

// Pairs of neighbours turn in the rotated part of each head.
void set_neighbours(ModelSpec& spec);

// "layer_rope_theta", where it is there: a base of the rope for each layer, or 0 where none turns.
Result<void> set_layer_thetas(const weights::HfConfig& config, ModelSpec& spec);

// Two ropes of the keys "full_attention" and "sliding_attention" in "rope_parameters", in the
// layout of transformers 4 of "rope_theta" and "rope_scaling" for full attention; where both are
// there, the keys of "rope_scaling" go before. The thetas are those of absent ones.
Result<std::vector<RopeSpec>> read_kinds_of_ropes(const weights::HfConfig& config, int32_t head_dim,
                                                  double full_theta, double sliding_theta);
inline constexpr int32_t kFullRope = 0;  // of these
inline constexpr int32_t kSlidingRope = 1;

// A key whose absence is 1; not positive: refused.
Result<float> multiplier(const weights::HfConfig& config, std::string_view key);
// The four of Granite: of the embeddings, what branches add, the logits, the scores.
Result<void> set_multipliers(const weights::HfConfig& config, ModelSpec& spec);

// Of what llama_like has read: of every layer's MLP.
ops::Activation activation_of(const ModelSpec& spec);

void set_qk_norm(ModelSpec& spec, QkNorm qk_norm);  // of every layer

}  // namespace rudder::model
