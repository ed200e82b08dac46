// SAELens: cfg.json and sae_weights.safetensors, of version 6 and of those before it, which named
// fields differently and kept what is now in `metadata` beside the others. sparsity.safetensors is
// informative.
//
// Tensors: W_enc [d_in, F], W_dec [F, d_out], b_dec, and b_enc; jumprelu adds `threshold`,
// batchtopk `topk_threshold`; gated has b_gate, r_mag, b_mag and no b_enc; skip transcoders W_skip
// [d_out, d_in].
#include <fmt/format.h>

#include <algorithm>

#include "rudder/steer/features/format.h"

namespace rudder::steer {
namespace {

struct SaeLensKind {
  std::string_view name;
  features::Activation activation;
  bool is_transcoder = false;
  bool has_skip = false;
  bool is_batchtopk = false;
};
constexpr SaeLensKind kSaeLensKinds[] = {
    {"standard", features::Activation::kRelu},
    {"jumprelu", features::Activation::kJumpRelu},
    {"topk", features::Activation::kTopK},
    {"gated", features::Activation::kGated},
    {.name = "batchtopk", .activation = features::Activation::kJumpRelu, .is_batchtopk = true},
    {.name = "matryoshka_batchtopk",
     .activation = features::Activation::kJumpRelu,
     .is_batchtopk = true},
    {"transcoder", features::Activation::kRelu, true},
    {"skip_transcoder", features::Activation::kRelu, true, true},
    {"jumprelu_transcoder", features::Activation::kJumpRelu, true},
    {"jumprelu_skip_transcoder", features::Activation::kJumpRelu, true, true},
};

class SaeLensReader {
 public:
  SaeLensReader(const DictionaryFolder& folder, ConfigFile config, TensorReader tensors)
      : folder_(folder), config_(std::move(config)), tensors_(std::move(tensors)) {}

  Result<LoadedDictionaries> read() {
    RUDDER_TRY_VOID(read_kind());
    RUDDER_TRY_VOID(check_fields());
    RUDDER_TRY(const DictionaryPoints points, read_points());
    RUDDER_TRY(const Extents encoder, tensors_.shape("W_enc", 2));
    RUDDER_TRY(const Extents decoder, tensors_.shape("W_dec", 2));
    RUDDER_TRY_VOID(config_.check_count("d_in", encoder[0]));
    RUDDER_TRY_VOID(config_.check_count("d_sae", encoder[1]));
    if (kind_.is_transcoder) RUDDER_TRY_VOID(config_.check_count("d_out", decoder[1]));
    features::Dictionary dictionary = make_dictionary(points, encoder[1], encoder[0], decoder[1]);
    RUDDER_TRY_VOID(take_tensors(dictionary));
    RUDDER_TRY_VOID(apply_options(dictionary));
    LoadedDictionaries loaded = {.format = "saelens"};
    RUDDER_TRY(loaded.model, described("model_name"));
    loaded.layers.push_back(std::move(dictionary));
    return loaded;
  }

 private:
  // A field that version 6 keeps in `metadata`.
  Result<std::string> described(std::string_view key) const {
    if (config_.has("metadata")) {
      RUDDER_TRY(const ConfigFile metadata, config_.object("metadata"));
      if (metadata.has(key)) return metadata.text(key);
    }
    return config_.text_or(key, "");
  }

  Result<void> read_kind() {
    RUDDER_TRY(std::string name, config_.text_or("architecture", "standard"));
    const std::string_view field =
        config_.has("activation_fn_str") ? "activation_fn_str" : "activation_fn";
    RUDDER_TRY(const std::string function, config_.text_or(field, "relu"));
    if (function != "relu" && function != "topk") {
      return config_.refused(field, fmt::format("'{}' is not supported", function));
    }
    if (function == "topk") name = "topk";  // of versions before 6
    const auto* kind = std::ranges::find(kSaeLensKinds, name, &SaeLensKind::name);
    if (kind == std::end(kSaeLensKinds)) {
      return config_.refused("architecture", fmt::format("'{}' is not supported", name));
    }
    kind_ = *kind;
    return {};
  }

  Result<void> check_fields() const {
    RUDDER_TRY(const std::string reshaped, config_.text_or("reshape_activations", "none"));
    RUDDER_TRY(const std::string hook, described("hook_name"));
    const bool joins_heads = reshaped == "hook_z" && hook.ends_with(".hook_z");  // as attn_z does
    if (reshaped != "none" && !joins_heads) {
      return config_.refused("reshape_activations", fmt::format("'{}' is not supported", reshaped));
    }
    if (config_.has("hook_head_index") || config_.has("hook_point_head_index")) {
      return config_.refused(
          config_.has("hook_head_index") ? "hook_head_index" : "hook_point_head_index",
          "a dictionary of one head is not supported");
    }
    RUDDER_TRY(const std::string dtype, config_.text_or("dtype", ""));
    if (dtype.empty()) return {};
    return tensors_.check_dtype("W_enc", dtype);
  }

  Result<DictionaryPoints> read_points() const {
    RUDDER_TRY(std::string hook, described("hook_name"));
    if (hook.empty()) {
      RUDDER_TRY(hook, config_.text_or("hook_point", ""));
    }
    if (hook.empty()) return named_points(folder_);
    std::string out = hook;
    if (kind_.is_transcoder) {
      RUDDER_TRY(out, described("hook_name_out"));
      if (out.empty()) return config_.refused("hook_name_out", "a transcoder needs it");
    }
    return hooked_points(folder_, hook, out, config_.path() + ": hook_name");
  }

  Result<void> take_tensors(features::Dictionary& dictionary) {
    const auto features = static_cast<uint64_t>(dictionary.num_features);
    const auto d_in = static_cast<uint64_t>(dictionary.d_in);
    const auto d_out = static_cast<uint64_t>(dictionary.d_out);
    dictionary.activation = kind_.activation;
    RUDDER_TRY(dictionary.encoder, tensors_.take_transposed("W_enc", d_in, features));
    RUDDER_TRY(dictionary.decoder, tensors_.take("W_dec", {features, d_out}));
    RUDDER_TRY(dictionary.output_bias, tensors_.take_list("b_dec", d_out));
    if (kind_.activation == features::Activation::kGated) {
      RUDDER_TRY(dictionary.encoder_bias, tensors_.take_list("b_mag", features));
      RUDDER_TRY(dictionary.gate_bias, tensors_.take_list("b_gate", features));
      RUDDER_TRY(dictionary.gate_log_scale, tensors_.take_list("r_mag", features));
    } else {
      RUDDER_TRY(dictionary.encoder_bias, tensors_.take_list("b_enc", features));
    }
    if (kind_.activation == features::Activation::kJumpRelu) {
      const bool is_single = kind_.is_batchtopk && !tensors_.has("threshold");
      RUDDER_TRY(dictionary.threshold,
                 tensors_.take_spread(is_single ? "topk_threshold" : "threshold", features));
    }
    if (kind_.activation == features::Activation::kTopK) RUDDER_TRY_VOID(read_k(dictionary));
    if (kind_.has_skip) {
      RUDDER_TRY(const Floats skip, tensors_.take("W_skip", {d_out, d_in}));
      dictionary.skip.assign(skip.get(), skip.get() + d_out * d_in);
    }
    // A factor that some versions wrote although nothing was scaled by it.
    if (tensors_.has("scaling_factor")) {
      RUDDER_TRY(const std::vector<float> factors, tensors_.take_list("scaling_factor", features));
      if (std::ranges::any_of(factors, [](float factor) { return factor != 1; })) {
        return config_.refused("finetuning_scaling_factor",
                               "factors other than 1 (tensor scaling_factor) are not supported");
      }
    }
    return tensors_.finish();
  }

  Result<void> read_k(features::Dictionary& dictionary) const {
    if (config_.has("k")) {
      RUDDER_TRY(dictionary.k, config_.count("k"));
    } else {
      RUDDER_TRY(const ConfigFile kwargs, config_.object("activation_fn_kwargs"));
      RUDDER_TRY(dictionary.k, kwargs.count("k"));
    }
    return {};
  }

  Result<std::string> read_norm() const {
    constexpr std::string_view kField = "normalize_activations";
    // A boolean before the field had names: true is what is now expected_average_only_in.
    if (const Result<bool> flag = config_.flag(kField, false)) {
      return std::string(*flag ? "expected_average_only_in" : "none");
    }
    return config_.text(kField);
  }

  Result<void> apply_options(features::Dictionary& dictionary) const {
    RUDDER_TRY(const std::string norm, read_norm());
    if (norm == "constant_norm_rescale" && !kind_.is_transcoder) {
      dictionary.norm = tap::FeatureNorm::kConstantNorm;
    } else if (norm == "layer_norm" && !kind_.is_transcoder) {
      dictionary.norm = tap::FeatureNorm::kLayerNorm;
    } else if (norm != "none") {
      return config_.refused(
          "normalize_activations",
          norm == "expected_average_only_in"
              ? "'expected_average_only_in' needs a factor that is not in the file: save the "
                "dictionary with the factor folded in (fold_activation_norm_scaling_factor)"
              : fmt::format("'{}' is not supported", norm));
    }
    // SAELens's transcoders subtract nothing, whatever the field says.
    RUDDER_TRY(const bool subtracts, config_.flag("apply_b_dec_to_input", true));
    if (subtracts && !kind_.is_transcoder) dictionary.input_bias = dictionary.output_bias;
    const bool is_ranked = kind_.activation == features::Activation::kTopK || kind_.is_batchtopk;
    RUDDER_TRY(const bool rescales,
               config_.flag("rescale_acts_by_decoder_norm", kind_.is_batchtopk));
    if (rescales && is_ranked) fold_decoder_norm(dictionary);
    return {};
  }

  const DictionaryFolder& folder_;
  const ConfigFile config_;
  TensorReader tensors_;
  SaeLensKind kind_ = {};
};

}  // namespace

Result<LoadedDictionaries> load_saelens(const DictionaryFolder& folder) {
  RUDDER_TRY(ConfigFile config, ConfigFile::open(folder.file("cfg.json")));
  RUDDER_TRY(TensorReader tensors, TensorReader::open(folder.file("sae_weights.safetensors")));
  return SaeLensReader(folder, std::move(config), std::move(tensors)).read();
}

}  // namespace rudder::steer
