// Our own format: dictionary.json beside a file of weights.
//
//   {"format": "rudder-dictionary", "read": "resid_post.5", "write"?: "mlp_out.5",
//    "activation": "relu" | "jumprelu" | "topk" | "batchtopk" | "gated", "k"?: 32,
//    "norm"?: "none" | "constant_norm" | "layer_norm", "subtract_output_bias"?: false,
//    "rescale_by_decoder_norm"?: false, "weights": "weights.safetensors", "model"?: "…"}
//
// Tensors: encoder [F, d_in], encoder_bias [F], decoder [F, d_out], output_bias [d_out]; threshold
// [F] or [1] of jumprelu and batchtopk; gate_bias [F] and gate_log_scale [F] of gated, where
// encoder_bias is the magnitude's; skip [d_out, d_in] of a transcoder that has one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>

#include "rudder/steer/features/format.h"

namespace rudder::steer {
namespace {

struct ManifestActivation {
  std::string_view name;
  features::Activation activation;
};
constexpr ManifestActivation kManifestActivations[] = {
    {"relu", features::Activation::kRelu},
    {"jumprelu", features::Activation::kJumpRelu},
    {"batchtopk", features::Activation::kJumpRelu},
    {"topk", features::Activation::kTopK},
    {"gated", features::Activation::kGated}};

struct ManifestNorm {
  std::string_view name;
  tap::FeatureNorm norm;
};
constexpr ManifestNorm kManifestNorms[] = {{"none", tap::FeatureNorm::kNone},
                                           {"constant_norm", tap::FeatureNorm::kConstantNorm},
                                           {"layer_norm", tap::FeatureNorm::kLayerNorm}};

constexpr std::array<std::string_view, 10> kManifestFields = {"format",
                                                              "read",
                                                              "write",
                                                              "activation",
                                                              "k",
                                                              "norm",
                                                              "subtract_output_bias",
                                                              "rescale_by_decoder_norm",
                                                              "weights",
                                                              "model"};

Result<void> check_manifest(const ConfigFile& config) {
  for (const auto& [key, value] : config.fields()) {
    const std::string_view name(key.data(), key.size());
    if (std::ranges::find(kManifestFields, name) == kManifestFields.end()) {
      return config.refused(
          name, fmt::format("unknown; the fields are {}", fmt::join(kManifestFields, ", ")));
    }
  }
  RUDDER_TRY(const std::string format, config.text("format"));
  if (format == "rudder-dictionary") return {};
  return config.refused("format", "\"rudder-dictionary\" is needed");
}

// By name, in one of the tables above.
template <typename Entry, size_t count>
Result<const Entry*> find_entry(const ConfigFile& config, std::string_view key,
                                std::string_view name, const Entry (&entries)[count]) {
  const auto* found = std::ranges::find(entries, name, &Entry::name);
  if (found != std::end(entries)) return found;
  std::vector<std::string_view> known;
  for (const Entry& entry : entries) known.push_back(entry.name);
  return config.refused(key, fmt::format("'{}': one of {}", name, fmt::join(known, ", ")));
}

Result<std::string> weights_path(const DictionaryFolder& folder, const ConfigFile& config) {
  RUDDER_TRY(const std::string name, config.text("weights"));
  const bool is_plain = name.find('/') == std::string::npos && !name.starts_with('.') &&
                        (name.ends_with(".safetensors") || name.ends_with(".npz"));
  if (!is_plain) {
    return config.refused("weights", "a .safetensors or .npz file of the same folder is needed");
  }
  return folder.file(name);
}

Result<void> take_manifest_tensors(const ConfigFile& config, TensorReader& tensors,
                                   features::Dictionary& dictionary) {
  const auto features = static_cast<uint64_t>(dictionary.num_features);
  const auto d_in = static_cast<uint64_t>(dictionary.d_in);
  const auto d_out = static_cast<uint64_t>(dictionary.d_out);
  RUDDER_TRY(dictionary.encoder, tensors.take("encoder", {features, d_in}));
  RUDDER_TRY(dictionary.encoder_bias, tensors.take_list("encoder_bias", features));
  RUDDER_TRY(dictionary.decoder, tensors.take("decoder", {features, d_out}));
  RUDDER_TRY(dictionary.output_bias, tensors.take_list("output_bias", d_out));
  if (dictionary.activation == features::Activation::kJumpRelu) {
    RUDDER_TRY(dictionary.threshold, tensors.take_spread("threshold", features));
  }
  if (dictionary.activation == features::Activation::kGated) {
    RUDDER_TRY(dictionary.gate_bias, tensors.take_list("gate_bias", features));
    RUDDER_TRY(dictionary.gate_log_scale, tensors.take_list("gate_log_scale", features));
  }
  if (dictionary.activation == features::Activation::kTopK) {
    RUDDER_TRY(dictionary.k, config.count("k"));
  } else if (config.has("k")) {
    return config.refused("k", "only topk has it");
  }
  if (tensors.has("skip")) {
    RUDDER_TRY(const Floats skip, tensors.take("skip", {d_out, d_in}));
    dictionary.skip.assign(skip.get(), skip.get() + d_out * d_in);
  }
  return tensors.finish();
}

Result<void> apply_manifest_options(const ConfigFile& config, features::Dictionary& dictionary) {
  const bool is_transcoder = !(dictionary.read == dictionary.write);
  RUDDER_TRY(const std::string norm, config.text_or("norm", "none"));
  RUDDER_TRY(const ManifestNorm* entry, find_entry(config, "norm", norm, kManifestNorms));
  dictionary.norm = entry->norm;
  if (is_transcoder && dictionary.norm != tap::FeatureNorm::kNone) {
    return config.refused("norm", "a transcoder has none");
  }
  RUDDER_TRY(const bool subtracts, config.flag("subtract_output_bias", false));
  if (subtracts && dictionary.d_in != dictionary.d_out) {
    return config.refused("subtract_output_bias", "the output is not as wide as the input");
  }
  if (subtracts) dictionary.input_bias = dictionary.output_bias;
  RUDDER_TRY(const bool rescales, config.flag("rescale_by_decoder_norm", false));
  if (rescales) fold_decoder_norm(dictionary);
  return {};
}

}  // namespace

Result<LoadedDictionaries> load_manifest(const DictionaryFolder& folder) {
  RUDDER_TRY(const ConfigFile config, ConfigFile::open(folder.file("dictionary.json")));
  RUDDER_TRY_VOID(check_manifest(config));
  RUDDER_TRY(const std::string read, config.text("read"));
  RUDDER_TRY(const std::string write, config.text_or("write", read));
  RUDDER_TRY(const DictionaryPoints points,
             hooked_points(folder, read, write, config.path() + ": read"));
  RUDDER_TRY(const std::string name, config.text("activation"));
  RUDDER_TRY(const ManifestActivation* activation,
             find_entry(config, "activation", name, kManifestActivations));
  RUDDER_TRY(const std::string path, weights_path(folder, config));
  RUDDER_TRY(TensorReader tensors, TensorReader::open(path));
  RUDDER_TRY(const Extents encoder, tensors.shape("encoder", 2));
  RUDDER_TRY(const Extents decoder, tensors.shape("decoder", 2));
  features::Dictionary dictionary = make_dictionary(points, encoder[0], encoder[1], decoder[1]);
  dictionary.activation = activation->activation;
  RUDDER_TRY_VOID(take_manifest_tensors(config, tensors, dictionary));
  RUDDER_TRY_VOID(apply_manifest_options(config, dictionary));
  LoadedDictionaries loaded = {.format = "manifest"};
  RUDDER_TRY(loaded.model, config.text_or("model", ""));
  loaded.layers.push_back(std::move(dictionary));
  return loaded;
}

}  // namespace rudder::steer
