// circuit-tracer: config.yaml, and a transcoder of each layer (layer_0.safetensors, ...) or one
// across layers (W_enc_0.safetensors and W_dec_0.safetensors, ...). Nothing is subtracted from the
// input. A file without thresholds is relu. Its jumprelu lets negative values pass above a negative
// threshold; files that have such thresholds are refused.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "rudder/steer/features/format.h"
#include "rudder/steer/invalid_field.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::steer {
namespace {

using YamlScalars = std::map<std::string, std::string, std::less<>>;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// A scalar without its quotes and the comment behind it; nothing where it is another YAML form.
std::optional<std::string> yaml_scalar(std::string_view text) {
  text = trimmed(text);
  if (text.empty()) return std::string();
  if (text[0] == '"' || text[0] == '\'') {
    const size_t end = text.find(text[0], 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view rest = trimmed(text.substr(end + 1));
    if (!rest.empty() && rest[0] != '#') return std::nullopt;
    return std::string(text.substr(1, end - 1));
  }
  if (std::string_view("&*!|>%@`{").find(text[0]) != std::string_view::npos) return std::nullopt;
  return std::string(trimmed(text.substr(0, text.find(" #"))));
}

// The scalars at the top of a YAML file: "key: value" lines. What is indented or a list belongs to
// a key without a value and is passed over; other forms are refused.
Result<YamlScalars> read_yaml_scalars(const std::string& path) {
  RUDDER_TRY(const std::string text, weights::read_text_file(path, uint64_t{1} << 20));
  YamlScalars scalars;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    ++number;
    const std::string_view content = trimmed(line);
    const bool is_nested = !line.empty() && (line[0] == ' ' || line[0] == '-');
    if (content.empty() || content[0] == '#' || is_nested) continue;
    const size_t colon = content.find(':');
    const std::optional<std::string> value =
        colon == std::string_view::npos ? std::nullopt : yaml_scalar(content.substr(colon + 1));
    const bool is_new =
        value && scalars.emplace(std::string(content.substr(0, colon)), *value).second;
    if (!is_new) {
      return invalid_field("a line \"key: value\" with a key of its own is needed",
                           fmt::format("{}: line {}", path, number));
    }
  }
  return scalars;
}

struct TracerConfig {
  std::string path;
  std::string model = {};
  std::string input_hook = {};
  std::string output_hook = {};

  Result<DictionaryPoints> points(const DictionaryFolder& folder, int32_t layer) const {
    return hooked_points(folder, fmt::format("blocks.{}.{}", layer, input_hook),
                         fmt::format("blocks.{}.{}", layer, output_hook), path);
  }
};

Result<TracerConfig> read_tracer_config(const DictionaryFolder& folder) {
  RUDDER_TRY_VOID(refuse_points(folder));
  TracerConfig config = {.path = folder.file("config.yaml")};
  RUDDER_TRY(const YamlScalars scalars, read_yaml_scalars(config.path));
  for (const auto& [key, field] :
       {std::pair("model_name", &config.model), std::pair("feature_input_hook", &config.input_hook),
        std::pair("feature_output_hook", &config.output_hook)}) {
    const auto found = scalars.find(key);
    if (found != scalars.end()) *field = found->second;
  }
  for (const auto& [key, value] : {std::pair("feature_input_hook", config.input_hook),
                                   std::pair("feature_output_hook", config.output_hook)}) {
    if (value.empty()) {
      return invalid_field("a text is needed", fmt::format("{}: {}", config.path, key));
    }
  }
  return config;
}

Result<void> take_tracer_threshold(TensorReader& tensors, std::string_view name,
                                   features::Dictionary& dictionary) {
  if (!tensors.has(name)) return {};
  dictionary.activation = features::Activation::kJumpRelu;
  RUDDER_TRY(dictionary.threshold,
             tensors.take_spread(name, static_cast<uint64_t>(dictionary.num_features)));
  if (std::ranges::all_of(dictionary.threshold, [](float value) { return value >= 0; })) return {};
  return fail(ErrorCode::kUnsupported, "a threshold below 0", tensors.where(name));
}

Result<features::Dictionary> read_tracer_layer(TensorReader& tensors,
                                               const DictionaryPoints& points) {
  RUDDER_TRY(const Extents encoder, tensors.shape("W_enc", 2));
  RUDDER_TRY(const Extents decoder, tensors.shape("W_dec", 2));
  features::Dictionary dictionary = make_dictionary(points, encoder[0], encoder[1], decoder[1]);
  RUDDER_TRY(dictionary.encoder, tensors.take("W_enc", encoder));
  RUDDER_TRY(dictionary.decoder, tensors.take("W_dec", {encoder[0], decoder[1]}));
  RUDDER_TRY(dictionary.encoder_bias, tensors.take_list("b_enc", encoder[0]));
  RUDDER_TRY(dictionary.output_bias, tensors.take_list("b_dec", decoder[1]));
  RUDDER_TRY_VOID(take_tracer_threshold(tensors, "activation_function.threshold", dictionary));
  if (tensors.has("W_skip")) {
    RUDDER_TRY(const Floats skip, tensors.take("W_skip", {decoder[1], encoder[1]}));
    dictionary.skip.assign(skip.get(), skip.get() + decoder[1] * encoder[1]);
  }
  RUDDER_TRY_VOID(tensors.finish());
  return dictionary;
}

Result<features::Dictionary> read_tracer_cross_layer(const DictionaryFolder& folder,
                                                     const DictionaryPoints& points, int32_t layer,
                                                     int32_t num_layers) {
  const auto named = [&](std::string_view name) { return fmt::format("{}_{}", name, layer); };
  RUDDER_TRY(TensorReader encoders,
             TensorReader::open(folder.file(named("W_enc") + ".safetensors")));
  RUDDER_TRY(TensorReader decoders,
             TensorReader::open(folder.file(named("W_dec") + ".safetensors")));
  RUDDER_TRY(const Extents encoder, encoders.shape(named("W_enc"), 2));
  const auto num_writes = static_cast<uint64_t>(num_layers - layer);
  RUDDER_TRY(const Extents decoder, decoders.shape(named("W_dec"), 3));
  features::Dictionary dictionary = make_dictionary(points, encoder[0], encoder[1], decoder[2]);
  dictionary.num_writes = static_cast<int32_t>(num_writes);
  RUDDER_TRY(dictionary.encoder, encoders.take(named("W_enc"), encoder));
  RUDDER_TRY(dictionary.encoder_bias, encoders.take_list(named("b_enc"), encoder[0]));
  RUDDER_TRY(dictionary.output_bias, encoders.take_list(named("b_dec"), decoder[2]));
  // A write's bias is that of its own layer's file, added once.
  dictionary.output_bias.resize(num_writes * decoder[2]);
  RUDDER_TRY_VOID(take_tracer_threshold(encoders, named("threshold"), dictionary));
  RUDDER_TRY(dictionary.decoder,
             decoders.take_swapped(named("W_dec"), {encoder[0], num_writes, decoder[2]}));
  RUDDER_TRY_VOID(encoders.finish());
  RUDDER_TRY_VOID(decoders.finish());
  return dictionary;
}

}  // namespace

Result<LoadedDictionaries> load_circuit_tracer(const DictionaryFolder& folder) {
  RUDDER_TRY(const TracerConfig config, read_tracer_config(folder));
  LoadedDictionaries loaded = {.format = "circuit-tracer", .model = config.model};
  const auto name = [](int32_t layer) { return fmt::format("layer_{}.safetensors", layer); };
  for (int32_t layer = 0; folder.has(name(layer)); ++layer) {
    RUDDER_TRY(const DictionaryPoints points, config.points(folder, layer));
    RUDDER_TRY(TensorReader tensors, TensorReader::open(folder.file(name(layer))));
    RUDDER_TRY(features::Dictionary dictionary, read_tracer_layer(tensors, points));
    loaded.layers.push_back(std::move(dictionary));
  }
  return loaded;
}

Result<LoadedDictionaries> load_circuit_tracer_clt(const DictionaryFolder& folder) {
  RUDDER_TRY(const TracerConfig config, read_tracer_config(folder));
  LoadedDictionaries loaded = {.format = "circuit-tracer-clt", .model = config.model};
  int32_t num_layers = 0;
  while (folder.has(fmt::format("W_enc_{}.safetensors", num_layers))) ++num_layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    RUDDER_TRY(const DictionaryPoints points, config.points(folder, layer));
    RUDDER_TRY(features::Dictionary dictionary,
               read_tracer_cross_layer(folder, points, layer, num_layers));
    loaded.layers.push_back(std::move(dictionary));
  }
  return loaded;
}

}  // namespace rudder::steer
