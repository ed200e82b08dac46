#include "rudder/model/archs/llama_like.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace rudder::model {
namespace {

using weights::HfConfig;

// Bounds on what a config may ask for: beyond them it is a damaged file, and below them no size in
// this room overflows 32 bits.
constexpr int64_t kMaxDim = 1 << 20;
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxVocab = 1 << 24;
constexpr int64_t kMaxPositions = 1 << 28;

Result<int32_t> dim(const HfConfig& config, std::string_view key, int64_t high = kMaxDim) {
  RUDDER_TRY(const int64_t value, config.integer(key, 1, high));
  return static_cast<int32_t>(value);
}

Result<int32_t> dim_or(const HfConfig& config, std::string_view key, int64_t fallback) {
  RUDDER_TRY(const int64_t value, config.integer_or(key, fallback, 1, kMaxDim));
  return static_cast<int32_t>(value);
}

Result<ops::Activation> read_activation(const HfConfig& config, const LlamaDefaults& defaults) {
  const char* key = defaults.activation_key;
  std::string name = defaults.activation == nullptr ? "" : defaults.activation;
  if (key == nullptr) {
    key = "hidden_act";
    config.has(key);  // without effect
  } else if (config.has(key) || name.empty()) {
    RUDDER_TRY(name, config.string(key));
  }
  if (name == "silu" || name == "swish") return ops::Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return ops::Activation::kGeluTanh;
  if (name == "gelu") return ops::Activation::kGelu;
  if (name == "relu") return ops::Activation::kRelu;
  return fail(ErrorCode::kUnsupported, fmt::format("the activation '{}' is not known", name),
              config.where(key));
}

Result<Attention> read_attention(const HfConfig& config, int32_t hidden, int32_t head_dim) {
  Attention attention;
  RUDDER_TRY(attention.num_heads, dim(config, "num_attention_heads"));
  RUDDER_TRY(attention.num_kv_heads, dim_or(config, "num_key_value_heads", attention.num_heads));
  if (attention.num_heads % attention.num_kv_heads != 0) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} heads are not a multiple of {} kv heads", attention.num_heads,
                            attention.num_kv_heads),
                config.where("num_key_value_heads"));
  }
  if (head_dim == 0 && !config.has("head_dim") && hidden % attention.num_heads != 0) {
    return fail(
        ErrorCode::kCorruptFile,
        fmt::format("hidden_size {} is not a multiple of {} heads, and there is no head_dim",
                    hidden, attention.num_heads),
        config.where("num_attention_heads"));
  }
  attention.head_dim = head_dim;
  if (head_dim == 0) {
    RUDDER_TRY(attention.head_dim,
               dim_or(config, "head_dim", std::max(hidden / attention.num_heads, 1)));
  }
  if (attention.head_dim % 2 != 0) {
    return fail(ErrorCode::kUnsupported, "an odd head_dim cannot be rotated",
                config.where("head_dim"));
  }
  if (attention.q_width() > kMaxDim) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} heads of {} are too wide", attention.num_heads, attention.head_dim),
                config.where("num_attention_heads"));
  }
  attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attention.head_dim)));
  RUDDER_TRY(attention.qkv_bias, config.boolean_or("attention_bias", false));
  attention.out_bias = attention.qkv_bias;
  return attention;
}

Result<double> positive(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const double value, config.number(key));
  if (value <= 0) {
    return fail(ErrorCode::kCorruptFile, fmt::format("'{}' is {}, not positive", key, value),
                config.where(key));
  }
  return value;
}

Result<double> positive_or(const HfConfig& config, std::string_view key, double fallback) {
  if (!config.has(key)) return fallback;
  return positive(config, key);
}

// A key of the config itself goes before the same key in the rope object, as transformers reads
// the configs that keep it outside; but ropes of kinds of layers have their own alone.
Result<int32_t> original_positions(const HfConfig& rope, const HfConfig& config, bool is_by_layer) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  if (!is_by_layer && config.has(kKey)) return dim(config, kKey, kMaxPositions);
  if (rope.has(kKey)) return dim(rope, kKey, kMaxPositions);
  return dim(config, "max_position_embeddings", kMaxPositions);
}

Result<RopeScaling> read_llama3(const HfConfig& rope, int32_t original) {
  RopeLlama3 out;
  RUDDER_TRY(out.factor, positive(rope, "factor"));
  RUDDER_TRY(out.low_freq_factor, positive(rope, "low_freq_factor"));
  RUDDER_TRY(out.high_freq_factor, positive(rope, "high_freq_factor"));
  if (out.high_freq_factor <= out.low_freq_factor) {
    return fail(ErrorCode::kCorruptFile, "high_freq_factor is not above low_freq_factor",
                rope.where("high_freq_factor"));
  }
  out.original_max_positions = original;
  return out;
}

Result<double> factor_or_ratio(const HfConfig& rope, const HfConfig& config, int32_t original) {
  if (rope.has("factor")) return positive(rope, "factor");
  RUDDER_TRY(const int32_t longest, dim(config, "max_position_embeddings", kMaxPositions));
  return static_cast<double>(longest) / original;
}

// The attention factor that YaRN recommends (https://arxiv.org/abs/2309.00071, section 3.4).
double yarn_mscale(double factor, double mscale = 1) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// Of a kind of layers "truncate" has no effect: transformers looks for it beside the kinds.
Result<RopeScaling> read_yarn(const HfConfig& rope, const HfConfig& config, int32_t original,
                              bool is_by_layer) {
  RopeYarn out;
  out.original_max_positions = original;
  RUDDER_TRY(out.factor, factor_or_ratio(rope, config, out.original_max_positions));
  RUDDER_TRY(out.beta_fast, positive_or(rope, "beta_fast", out.beta_fast));
  RUDDER_TRY(out.beta_slow, positive_or(rope, "beta_slow", out.beta_slow));
  RUDDER_TRY(const bool truncate, rope.boolean_or("truncate", true));
  out.truncate = truncate || is_by_layer;
  RUDDER_TRY(const double mscale, rope.number_or("mscale", 0));
  RUDDER_TRY(const double mscale_all_dim, rope.number_or("mscale_all_dim", 0));
  const bool both = mscale != 0 && mscale_all_dim != 0;
  const double usual =
      both ? yarn_mscale(out.factor, mscale) / yarn_mscale(out.factor, mscale_all_dim)
           : yarn_mscale(out.factor);
  RUDDER_TRY(out.attention_factor, positive_or(rope, "attention_factor", usual));
  return out;
}

Result<RopeScaling> read_longrope(const HfConfig& rope, const HfConfig& config, int32_t original,
                                  int32_t rotary_dim) {
  RopeLong out;
  out.original_max_positions = original;
  RUDDER_TRY(out.factor, factor_or_ratio(rope, config, out.original_max_positions));
  const double usual =
      out.factor <= 1 ? 1.0
                      : std::sqrt(1 + std::log(out.factor) / std::log(out.original_max_positions));
  RUDDER_TRY(out.attention_factor, positive_or(rope, "attention_factor", usual));
  for (const auto& [key, factors] :
       {std::pair("short_factor", &out.short_factor), std::pair("long_factor", &out.long_factor)}) {
    RUDDER_TRY(*factors, rope.numbers(key));
    const bool positive_all =
        std::all_of(factors->begin(), factors->end(), [](double f) { return f > 0; });
    if (factors->size() != static_cast<size_t>(rotary_dim / 2) || !positive_all) {
      return fail(ErrorCode::kCorruptFile,
                  fmt::format("'{}' does not hold {} positive numbers", key, rotary_dim / 2),
                  rope.where(key));
    }
  }
  return out;
}

Result<RopeScaling> read_scaling(const HfConfig& rope, const HfConfig& config, int32_t rotary_dim,
                                 const RopeDefaults& defaults) {
  const char* key = rope.has("rope_type") ? "rope_type" : "type";
  RUDDER_TRY(const std::string type, rope.string_or(key, "default"));
  if (type == "default" || (type == "mrope" && defaults.is_sectioned)) return RopeDefault{};
  if (type == "linear") {
    RUDDER_TRY(const double factor, positive(rope, "factor"));
    return RopeLinear{factor};
  }
  if (type == "dynamic" && defaults.is_widened && rope.has("alpha")) return RopeDefault{};
  if (type == "dynamic") {
    RopeDynamic out;
    RUDDER_TRY(out.factor, positive(rope, "factor"));
    RUDDER_TRY(out.original_max_positions, dim(config, "max_position_embeddings", kMaxPositions));
    return out;
  }
  if (type == "proportional") {
    RopeProportional out;
    RUDDER_TRY(out.factor, positive_or(rope, "factor", 1));
    return out;
  }
  const bool is_old_name = defaults.is_long && (type == "su" || type == "yarn");
  const bool is_longrope = type == "longrope" || is_old_name;
  if (is_longrope || type == "llama3" || type == "yarn") {
    RUDDER_TRY(const int32_t original, original_positions(rope, config, defaults.is_by_layer));
    if (is_longrope) return read_longrope(rope, config, original, rotary_dim);
    if (type == "yarn") return read_yarn(rope, config, original, defaults.is_by_layer);
    return read_llama3(rope, original);
  }
  return fail(ErrorCode::kUnsupported, fmt::format("the rope type '{}' is not known", type),
              rope.where(key));
}

}  // namespace

Result<RopeSpec> read_rope_object(const HfConfig& rope, const HfConfig& config, int32_t head_dim,
                                  const RopeDefaults& defaults) {
  RopeSpec out;
  RUDDER_TRY(out.theta, positive_or(rope, "rope_theta", defaults.theta));
  if (out.theta <= 1) {
    return fail(ErrorCode::kCorruptFile, fmt::format("a base of {} rotates nothing", out.theta),
                rope.where("rope_theta"));
  }
  const HfConfig& holder = rope.has("partial_rotary_factor") ? rope : config;
  RUDDER_TRY(const double part, positive_or(holder, "partial_rotary_factor", 1));
  out.rotary_dim = static_cast<int32_t>(head_dim * std::min(part, 1.0));
  if (part > 1 || out.rotary_dim < 2 || out.rotary_dim % 2 != 0) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} of {} dimensions cannot be rotated", head_dim * part, head_dim),
                holder.where("partial_rotary_factor"));
  }
  RUDDER_TRY(out.scaling, read_scaling(rope, config, out.rotary_dim, defaults));
  if (defaults.is_widened && std::holds_alternative<RopeDefault>(out.scaling)) {
    RUDDER_TRY(const double alpha, positive_or(rope, "alpha", 1));
    out.theta *= std::pow(alpha, head_dim / (head_dim - 2.0));
  }
  if (auto* const proportional = std::get_if<RopeProportional>(&out.scaling)) {
    proportional->part = part;  // pairs are of the whole head
    out.rotary_dim = head_dim;
  } else if (part < 1 && !defaults.is_partial) {
    return fail(ErrorCode::kUnsupported, "this architecture rotates whole heads",
                holder.where("partial_rotary_factor"));
  }
  return out;
}

Result<HfConfig> rope_object(const HfConfig& config) {
  constexpr std::string_view kOld = "rope_scaling";
  constexpr std::string_view kNew = "rope_parameters";
  const bool has_new = config.has(kNew);  // beside the other one it is not read
  if (config.has(kOld)) {
    RUDDER_TRY(HfConfig rope, config.object(kOld));
    if (!rope.keys().empty()) return rope;
  }
  if (has_new) return config.object(kNew);
  return HfConfig::parse("{}", config.where(kNew));
}

Result<RopeSpec> read_rope(const HfConfig& config, int32_t head_dim, const RopeDefaults& defaults) {
  RopeDefaults beside = defaults;
  RUDDER_TRY(beside.theta, positive_or(config, "rope_theta", defaults.theta));
  RUDDER_TRY(const HfConfig rope, rope_object(config));
  RUDDER_TRY(RopeSpec out, read_rope_object(rope, config, head_dim, beside));
  for (const std::string& key : rope.unread_keys()) {
    if (!rope.is_object(key)) continue;
    return fail(ErrorCode::kUnsupported, "all layers have one rope, this is one of some of them",
                rope.where(key));
  }
  return out;
}

Result<ModelSpec> llama_like(const HfConfig& config, const LlamaDefaults& defaults) {
  ModelSpec spec;
  RUDDER_TRY(spec.hidden, dim(config, "hidden_size"));
  RUDDER_TRY(spec.vocab, dim(config, "vocab_size", kMaxVocab));
  RUDDER_TRY(spec.max_positions, dim(config, "max_position_embeddings", kMaxPositions));
  RUDDER_TRY(const double eps, positive(config, defaults.eps_key));
  spec.norm_eps = static_cast<float>(eps);
  RUDDER_TRY(spec.tied_head, config.boolean_or("tie_word_embeddings", defaults.tied_head));

  RUDDER_TRY(const Attention attention, read_attention(config, spec.hidden, defaults.head_dim));
  GatedMlp mlp;
  RUDDER_TRY(mlp.width, dim(config, "intermediate_size"));
  RUDDER_TRY(mlp.activation, read_activation(config, defaults));
  RUDDER_TRY(mlp.bias, config.boolean_or("mlp_bias", false));
  RUDDER_TRY(const int32_t num_layers, dim(config, "num_hidden_layers", kMaxLayers));
  spec.layers.assign(static_cast<size_t>(num_layers), {attention, mlp, LayerNorms{}});

  if (defaults.one_rope) {
    RUDDER_TRY(RopeSpec rope, read_rope(config, attention.head_dim, defaults.rope));
    spec.ropes.push_back(std::move(rope));
  }
  return spec;
}

Result<std::vector<bool>> sliding_layers(const HfConfig& config, size_t num_layers,
                                         bool (*fallback)(size_t layer, int64_t argument),
                                         int64_t argument) {
  std::vector<bool> out;
  if (!config.has("layer_types")) {
    for (size_t i = 0; i < num_layers; ++i) out.push_back(fallback(i, argument));
    return out;
  }
  RUDDER_TRY(const std::vector<std::string> types, config.strings("layer_types"));
  if (types.size() != num_layers) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} layer types for {} layers", types.size(), num_layers),
                config.where("layer_types"));
  }
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention") {
      return fail(ErrorCode::kUnsupported, fmt::format("the layer type '{}' is not known", type),
                  config.where("layer_types"));
    }
    out.push_back(type == "sliding_attention");
  }
  return out;
}

Result<void> set_windows(const HfConfig& config, const std::vector<bool>& sliding,
                         ModelSpec& spec) {
  if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return {};
  RUDDER_TRY(const int32_t window, dim(config, "sliding_window", kMaxPositions));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    if (sliding[i]) attention_of(spec.layers[i])->window = window;
  }
  return {};
}

Result<void> set_windows_above(const HfConfig& config, ModelSpec& spec) {
  RUDDER_TRY(const bool wanted, config.boolean_or("use_sliding_window", false));
  if (!wanted) return {};
  int64_t first = 0;
  if (!config.has("layer_types")) {
    if (!config.has("sliding_window")) return {};
    RUDDER_TRY(first, config.integer("max_window_layers", 0));
  }
  const auto from = [](size_t layer, int64_t begin) {
    return static_cast<int64_t>(layer) >= begin;
  };
  RUDDER_TRY(const auto sliding, sliding_layers(config, spec.layers.size(), from, first));
  return set_windows(config, sliding, spec);
}

Result<float> multiplier(const HfConfig& config, std::string_view key) {
  RUDDER_TRY(const double value, config.number_or(key, 1));
  if (value <= 0) {
    return fail(ErrorCode::kCorruptFile, fmt::format("it is {}, not positive", value),
                config.where(key));
  }
  return static_cast<float>(value);
}

Result<void> set_multipliers(const HfConfig& config, ModelSpec& spec) {
  RUDDER_TRY(spec.embed_scale, multiplier(config, "embedding_multiplier"));
  RUDDER_TRY(spec.branch_scale, multiplier(config, "residual_multiplier"));
  RUDDER_TRY(const float logits, multiplier(config, "logits_scaling"));
  spec.logit_scale = 1 / logits;
  RUDDER_TRY(const float scores, multiplier(config, "attention_multiplier"));
  for (LayerSpec& layer : spec.layers) attention_of(layer)->scale = scores;
  return {};
}

ops::Activation activation_of(const ModelSpec& spec) {
  return gated_mlp_of(spec.layers.front())->activation;
}

void set_neighbours(ModelSpec& spec) {
  for (LayerSpec& layer : spec.layers) {
    Attention& attention = *attention_of(layer);
    attention.neighbours = spec.ropes[static_cast<size_t>(attention.rope)].rotary_dim;
  }
}

Result<void> set_layer_thetas(const HfConfig& config, ModelSpec& spec) {
  constexpr std::string_view kKey = "layer_rope_theta";
  if (!config.has(kKey)) return {};
  RUDDER_TRY(const std::vector<double> thetas, config.numbers(kKey));
  if (thetas.size() != spec.layers.size()) {
    return fail(ErrorCode::kCorruptFile,
                fmt::format("{} numbers for {} layers", thetas.size(), spec.layers.size()),
                config.where(kKey));
  }
  const RopeSpec all = spec.ropes.front();
  spec.ropes.clear();
  for (size_t i = 0; i < thetas.size(); ++i) {
    int32_t& rope = attention_of(spec.layers[i])->rope;
    rope = kNoRope;
    if (thetas[i] == 0) continue;
    if (thetas[i] <= 1) {
      return fail(ErrorCode::kCorruptFile, fmt::format("a base of {} rotates nothing", thetas[i]),
                  config.where(kKey));
    }
    const auto found = std::ranges::find(spec.ropes, thetas[i], &RopeSpec::theta);
    rope = static_cast<int32_t>(found - spec.ropes.begin());
    if (found != spec.ropes.end()) continue;
    spec.ropes.push_back(all);
    spec.ropes.back().theta = thetas[i];
  }
  return {};
}

Result<std::vector<RopeSpec>> read_kinds_of_ropes(const HfConfig& config, int32_t head_dim,
                                                  double full_theta, double sliding_theta) {
  constexpr std::string_view kBoth = "rope_parameters";
  const std::string where = config.where(kBoth);
  RUDDER_TRY(const HfConfig both,
             config.has(kBoth) ? config.object(kBoth) : HfConfig::parse("{}", where));
  const auto part = [&](std::string_view key) {
    // Its type holds beside a "rope_scaling" that says "type" for "rope_type", as in transformers.
    return both.has(key) ? both.object(key) : HfConfig::parse(R"({"rope_type": "default"})", where);
  };
  RUDDER_TRY(HfConfig full, part("full_attention"));
  RUDDER_TRY(const HfConfig sliding, part("sliding_attention"));
  for (const std::string& key : both.unread_keys()) {
    return fail(ErrorCode::kUnsupported, "it is not of a kind of layers that are there",
                both.where(key));
  }
  if (config.has("rope_scaling")) {
    RUDDER_TRY(const HfConfig scaling, config.object("rope_scaling"));
    full = scaling.with_defaults(full);
  }
  RopeDefaults of_full{.theta = full_theta, .is_by_layer = true};
  RUDDER_TRY(of_full.theta, config.number_or("rope_theta", full_theta));
  std::vector<RopeSpec> ropes(2);
  RUDDER_TRY(ropes[kFullRope], read_rope_object(full, config, head_dim, of_full));
  RUDDER_TRY(ropes[kSlidingRope], read_rope_object(sliding, config, head_dim,
                                                   {.theta = sliding_theta, .is_by_layer = true}));
  return ropes;
}

Result<QueryGrowth> read_growth(const HfConfig& config) {
  RUDDER_TRY(const HfConfig rope, rope_object(config));
  QueryGrowth growth;
  RUDDER_TRY(growth.slope, rope.number_or("llama_4_scaling_beta", 0));
  if (!growth.grows()) return growth;
  RUDDER_TRY(const int64_t period,
             rope.integer("original_max_position_embeddings", 1, int64_t{1} << 30));
  growth.period = static_cast<int32_t>(period);
  return growth;
}

void set_qk_norm(ModelSpec& spec, QkNorm qk_norm) {
  for (LayerSpec& layer : spec.layers) attention_of(layer)->qk_norm = qk_norm;
}

}  // namespace rudder::model
