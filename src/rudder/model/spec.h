// ModelSpec: an architecture as data. Made from a checkpoint's config by archs/, read by the loader
// and by the one forward pass (decoder.cpp). A field names mathematics, never a vendor.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "rudder/ops/args.h"

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
};
using RopeScaling =
    std::variant<RopeDefault, RopeLinear, RopeDynamic, RopeLlama3, RopeYarn, RopeLong>;

struct RopeSpec {
  double theta = 10000;
  int32_t rotary_dim = 0;  // <= head_dim: the rest of a head is not rotated
  RopeScaling scaling;
};

enum class QkNorm : uint8_t { kNone, kPerHead, kAllHeads };

struct AttentionSpec {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float scale = 1;
  int32_t window = 0;  // 0 = all
  float softcap = 0;   // 0 = off
  QkNorm qk_norm = QkNorm::kNone;
  bool qkv_bias = false;
  bool out_bias = false;
  int32_t rope = 0;  // index into ModelSpec.ropes

  int64_t q_width() const { return int64_t{num_heads} * head_dim; }
  int64_t qkv_width() const { return int64_t{num_heads + 2 * num_kv_heads} * head_dim; }
};

struct MlpSpec {
  int32_t width = 0;
  ops::Activation activation = ops::Activation::kSilu;
  bool bias = false;
};

// Where a layer normalises: before each branch, after it, or both.
struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  bool pre_norm = true;    // of the branch's input
  bool post_norm = false;  // of the branch's output, before it is added
};

struct ModelSpec {
  std::string architecture;  // "LlamaForCausalLM"
  int32_t hidden = 0;
  int32_t vocab = 0;
  int32_t max_positions = 0;
  float norm_eps = 1e-5f;
  float embed_scale = 1;
  float final_softcap = 0;
  bool tied_head = false;
  std::vector<RopeSpec> ropes;
  std::vector<LayerSpec> layers;
};

}  // namespace rudder::model
