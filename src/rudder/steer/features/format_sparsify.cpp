// EleutherAI's sparsify: cfg.json and sae.safetensors in a folder with the name of the module whose
// output it reads ("layers.5"), or whose input and output a transcoder reads and writes
// ("layers.5.mlp"). Tensors: encoder.weight [F, d_in], encoder.bias, W_dec [F, d_out], b_dec,
// W_skip [d_out, d_in]. An autoencoder subtracts b_dec from its input.
#include <fmt/format.h>

#include <filesystem>

#include "rudder/steer/features/format.h"

namespace rudder::steer {
namespace {

Result<DictionaryPoints> sparsify_points(const DictionaryFolder& folder, bool is_transcoder) {
  const std::string name =
      std::filesystem::path(folder.path + "/").lexically_normal().parent_path().filename();
  const Result<tap::Point> module = parse_hook(name, folder.path);
  if (!module) return named_points(folder);
  DictionaryPoints points = {*module, *module};
  if (is_transcoder) {
    if (module->site != tap::Site::kMlpOut) return named_points(folder);
    points.read.site = tap::Site::kMlpIn;
  }
  if (!folder.points) return points;
  const auto text = [](tap::Point point) {
    return fmt::format("{}.{}", tap::site_name(point.site), point.layer);
  };
  // The same check as of a file that names its hooks.
  return hooked_points(folder, text(points.read), text(points.write), folder.path);
}

}  // namespace

Result<LoadedDictionaries> load_sparsify(const DictionaryFolder& folder) {
  RUDDER_TRY(const ConfigFile config, ConfigFile::open(folder.file("cfg.json")));
  RUDDER_TRY(TensorReader tensors, TensorReader::open(folder.file("sae.safetensors")));
  RUDDER_TRY(const std::string activation, config.text_or("activation", "topk"));
  if (activation != "topk") {
    return config.refused("activation", fmt::format("'{}' is not supported", activation));
  }
  RUDDER_TRY_VOID(config.check_flag("signed", false, false));
  RUDDER_TRY(const bool is_transcoder, config.flag("transcode", false));
  RUDDER_TRY(const bool has_skip, config.flag("skip_connection", false));
  RUDDER_TRY(const DictionaryPoints points, sparsify_points(folder, is_transcoder));
  RUDDER_TRY(const Extents encoder, tensors.shape("encoder.weight", 2));
  RUDDER_TRY(const Extents decoder, tensors.shape("W_dec", 2));
  RUDDER_TRY_VOID(config.check_count("d_in", encoder[1]));
  features::Dictionary dictionary = make_dictionary(points, encoder[0], encoder[1], decoder[1]);
  dictionary.activation = features::Activation::kTopK;
  RUDDER_TRY(dictionary.k, config.count("k"));
  RUDDER_TRY(dictionary.encoder, tensors.take("encoder.weight", encoder));
  RUDDER_TRY(dictionary.encoder_bias, tensors.take_list("encoder.bias", encoder[0]));
  RUDDER_TRY(dictionary.decoder, tensors.take("W_dec", {encoder[0], decoder[1]}));
  RUDDER_TRY(dictionary.output_bias, tensors.take_list("b_dec", decoder[1]));
  if (!is_transcoder) dictionary.input_bias = dictionary.output_bias;
  if (has_skip) {
    RUDDER_TRY(const Floats skip, tensors.take("W_skip", {decoder[1], encoder[1]}));
    dictionary.skip.assign(skip.get(), skip.get() + decoder[1] * encoder[1]);
  }
  RUDDER_TRY_VOID(tensors.finish());
  LoadedDictionaries loaded = {.format = "sparsify"};
  loaded.layers.push_back(std::move(dictionary));
  return loaded;
}

}  // namespace rudder::steer
