// Gemma Scope 1 (params.npz, without a configuration) and 2 (config.json and params.safetensors;
// cross-layer transcoders have params_layer_0.safetensors and so on). All are jumprelu and subtract
// no bias from their input.
#include <fmt/format.h>

#include <algorithm>

#include "rudder/steer/features/format.h"
#include "rudder/steer/invalid_field.h"

namespace rudder::steer {
namespace {

// Names of the two versions.
struct ScopeNames {
  std::string_view encoder;
  std::string_view decoder;
};

// Everything but the decoder.
Result<void> take_scope_encoder(TensorReader& tensors, std::string_view encoder,
                                features::Dictionary& dictionary) {
  const auto features = static_cast<uint64_t>(dictionary.num_features);
  dictionary.activation = features::Activation::kJumpRelu;
  RUDDER_TRY(dictionary.encoder,
             tensors.take_transposed(encoder, static_cast<uint64_t>(dictionary.d_in), features));
  RUDDER_TRY(dictionary.encoder_bias, tensors.take_list("b_enc", features));
  RUDDER_TRY(dictionary.threshold, tensors.take_list("threshold", features));
  RUDDER_TRY(dictionary.output_bias,
             tensors.take_list("b_dec", static_cast<uint64_t>(dictionary.d_out)));
  return {};
}

Result<features::Dictionary> read_scope(TensorReader& tensors, const ScopeNames& names,
                                        const DictionaryPoints& points) {
  RUDDER_TRY(const Extents encoder, tensors.shape(names.encoder, 2));
  RUDDER_TRY(const Extents decoder, tensors.shape(names.decoder, 2));
  features::Dictionary dictionary = make_dictionary(points, encoder[1], encoder[0], decoder[1]);
  RUDDER_TRY_VOID(take_scope_encoder(tensors, names.encoder, dictionary));
  RUDDER_TRY(dictionary.decoder, tensors.take(names.decoder, {encoder[1], decoder[1]}));
  return dictionary;
}

// y += x A, so that the skip is A transposed.
Result<void> take_affine(TensorReader& tensors, features::Dictionary& dictionary) {
  const auto d_in = static_cast<uint64_t>(dictionary.d_in);
  const auto d_out = static_cast<uint64_t>(dictionary.d_out);
  RUDDER_TRY(const Floats skip, tensors.take_transposed("affine_skip_connection", d_in, d_out));
  dictionary.skip.assign(skip.get(), skip.get() + d_in * d_out);
  return {};
}

// The decoder is [F, layers, d_out] with the layers of the model, those in front of its own zero.
Result<features::Dictionary> read_cross_layer(TensorReader& tensors, int32_t layer,
                                              uint64_t num_layers) {
  RUDDER_TRY(const Extents encoder, tensors.shape("w_enc", 2));
  RUDDER_TRY(const Extents decoder, tensors.shape("w_dec", 3));
  if (decoder[1] != num_layers) {
    return invalid_field(
        fmt::format("decoders to {} layers; there are files of {}", decoder[1], num_layers),
        tensors.where("w_dec"));
  }
  features::Dictionary dictionary =
      make_dictionary({{layer, tap::Site::kMlpIn}, {layer, tap::Site::kMlpOut}}, encoder[1],
                      encoder[0], decoder[2]);
  RUDDER_TRY_VOID(take_scope_encoder(tensors, "w_enc", dictionary));
  RUDDER_TRY(const Floats all, tensors.take_swapped("w_dec", {encoder[1], num_layers, decoder[2]}));
  const uint64_t per_layer = encoder[1] * decoder[2];
  const uint64_t before = per_layer * static_cast<uint64_t>(layer);
  if (std::any_of(all.get(), all.get() + before, [](float value) { return value != 0; })) {
    return invalid_field(fmt::format("layer {} writes to layers in front of it", layer),
                         tensors.where("w_dec"));
  }
  dictionary.num_writes = static_cast<int32_t>(num_layers) - layer;
  dictionary.decoder = Floats(all, all.get() + before);
  // A write's bias is that of its own layer's file, added once.
  dictionary.output_bias.resize(static_cast<size_t>(dictionary.num_writes) * decoder[2]);
  if (tensors.has("affine_skip_connection")) RUDDER_TRY_VOID(take_affine(tensors, dictionary));
  RUDDER_TRY_VOID(tensors.finish());
  return dictionary;
}

Result<void> check_scope_kind(const ConfigFile& config) {
  RUDDER_TRY(const std::string architecture, config.text_or("architecture", "jump_relu"));
  if (architecture == "jump_relu") return {};
  return config.refused("architecture", fmt::format("'{}' is not supported", architecture));
}

}  // namespace

Result<LoadedDictionaries> load_gemma_scope(const DictionaryFolder& folder) {
  RUDDER_TRY(const DictionaryPoints points, named_points(folder));
  // Its published transcoders all read the row in front of the gain, and no file says so.
  if (points.read.site == tap::Site::kMlpIn && !points.reads_without_gain) {
    return invalid_field(
        fmt::format("Gemma Scope's transcoders read the row without the norm's gain: say "
                    "@blocks.{}.ln2.hook_normalized,mlp_out.{}",
                    points.read.layer, points.write.layer),
        folder.path);
  }
  RUDDER_TRY(TensorReader tensors, TensorReader::open(folder.file("params.npz")));
  LoadedDictionaries loaded = {.format = "gemma-scope"};
  RUDDER_TRY(features::Dictionary dictionary, read_scope(tensors, {"W_enc", "W_dec"}, points));
  RUDDER_TRY_VOID(tensors.finish());
  loaded.layers.push_back(std::move(dictionary));
  return loaded;
}

Result<LoadedDictionaries> load_gemma_scope_2(const DictionaryFolder& folder) {
  RUDDER_TRY(const ConfigFile config, ConfigFile::open(folder.file("config.json")));
  RUDDER_TRY_VOID(check_scope_kind(config));
  RUDDER_TRY(const std::string hook, config.text("hf_hook_point_in"));
  RUDDER_TRY(const std::string out, config.text_or("hf_hook_point_out", hook));
  RUDDER_TRY(const DictionaryPoints points,
             hooked_points(folder, hook, out, config.path() + ": hf_hook_point_in"));
  RUDDER_TRY(TensorReader tensors, TensorReader::open(folder.file("params.safetensors")));
  LoadedDictionaries loaded = {.format = "gemma-scope-2"};
  RUDDER_TRY(features::Dictionary dictionary, read_scope(tensors, {"w_enc", "w_dec"}, points));
  RUDDER_TRY_VOID(config.check_count("width", static_cast<uint64_t>(dictionary.num_features)));
  RUDDER_TRY(const bool has_affine, config.flag("affine_connection", false));
  if (has_affine) RUDDER_TRY_VOID(take_affine(tensors, dictionary));
  RUDDER_TRY_VOID(tensors.finish());
  RUDDER_TRY(loaded.model, config.text_or("model_name", ""));
  loaded.layers.push_back(std::move(dictionary));
  return loaded;
}

Result<LoadedDictionaries> load_gemma_scope_2_clt(const DictionaryFolder& folder) {
  RUDDER_TRY_VOID(refuse_points(folder));
  RUDDER_TRY(const ConfigFile config, ConfigFile::open(folder.file("config.json")));
  RUDDER_TRY_VOID(check_scope_kind(config));
  const auto name = [](int32_t layer) { return fmt::format("params_layer_{}.safetensors", layer); };
  int32_t num_layers = 0;
  while (folder.has(name(num_layers))) ++num_layers;
  LoadedDictionaries loaded = {.format = "gemma-scope-2-clt"};
  RUDDER_TRY(loaded.model, config.text_or("model_name", ""));
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    RUDDER_TRY(TensorReader tensors, TensorReader::open(folder.file(name(layer))));
    RUDDER_TRY(features::Dictionary dictionary,
               read_cross_layer(tensors, layer, static_cast<uint64_t>(num_layers)));
    RUDDER_TRY_VOID(config.check_count("width", static_cast<uint64_t>(dictionary.num_features)));
    loaded.layers.push_back(std::move(dictionary));
  }
  return loaded;
}

}  // namespace rudder::steer
