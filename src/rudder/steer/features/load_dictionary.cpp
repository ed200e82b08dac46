#include "rudder/steer/features/load_dictionary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "rudder/steer/features/format.h"
#include "rudder/steer/invalid_field.h"

namespace rudder::steer {
namespace {

struct DictionaryFormat {
  std::array<std::string_view, 2> files;  // that a folder of it has
  Result<LoadedDictionaries> (*load)(const DictionaryFolder& folder);
};
// The first whose files are there.
constexpr DictionaryFormat kFormats[] = {
    {{"dictionary.json", ""}, load_manifest},
    {{"params.npz", ""}, load_gemma_scope},
    {{"config.json", "params.safetensors"}, load_gemma_scope_2},
    {{"config.json", "params_layer_0.safetensors"}, load_gemma_scope_2_clt},
    {{"cfg.json", "sae_weights.safetensors"}, load_saelens},
    {{"cfg.json", "sae.safetensors"}, load_sparsify},
    {{"hyperparams.json", "checkpoints/final.safetensors"}, load_llama_scope},
    {{"config.json", "sae_weights.safetensors"}, load_llama_scope},
    {{"config.yaml", "layer_0.safetensors"}, load_circuit_tracer},
    {{"config.yaml", "W_enc_0.safetensors"}, load_circuit_tracer_clt},
};

bool is_pickle(const std::filesystem::path& path) {
  static constexpr std::array<std::string_view, 5> kSuffixes = {".pt", ".pth", ".pkl", ".ckpt",
                                                                ".bin"};
  return std::ranges::find(kSuffixes, path.extension().string()) != kSuffixes.end();
}

tl::unexpected<Error> refused_pickle(const std::filesystem::path& path) {
  const std::string name = path.filename();
  return fail(
      ErrorCode::kUnsupported,
      fmt::format(
          "pickles are never opened. Where you trust the file, convert it once: python3 -c "
          "\"import "
          "torch, safetensors.torch as s; s.save_file({{k: v.contiguous() for k, v in torch.load("
          "'{}', map_location='cpu', weights_only=True).items()}}, 'weights.safetensors')\", and "
          "describe the tensors in a dictionary.json",
          name),
      path.string());
}

// The folder of `path`, which may be one of its files.
Result<std::string> folder_of(const std::string& path) {
  std::error_code error;
  const std::filesystem::path given(path);
  const auto status = std::filesystem::status(given, error);
  if (!std::filesystem::exists(status)) {
    return fail(ErrorCode::kNotFound, "no such file or folder", path);
  }
  if (std::filesystem::is_directory(status)) return path;
  if (is_pickle(given)) return refused_pickle(given);
  const std::string parent = given.parent_path().string();
  return parent.empty() ? std::string(".") : parent;
}

Result<tap::Point> parse_point(std::string_view text) {
  Result<tap::SiteRef> site = tap::parse_op_site(text);
  if (!site) return invalid_field(site.error().message, "site");
  if (site->layer < 0) {
    return invalid_field(fmt::format("'{}' names no layer, as resid_post.20 does", text), "site");
  }
  if (site->site == tap::Site::kRouterLogits) {
    return invalid_field("a dictionary is of activations, not of a router's logits", "site");
  }
  return tap::Point{site->layer, site->site};
}

Result<DictionaryPoints> parse_points(std::string_view text) {
  DictionaryPoints points;
  const size_t comma = text.find(',');
  const std::string_view read = text.substr(0, comma);
  const std::optional<std::string> with_gain = hook_with_gain(read);
  points.reads_without_gain = with_gain.has_value();
  RUDDER_TRY(points.read, parse_point(with_gain ? *with_gain : read));
  points.write = points.read;
  if (comma != std::string_view::npos) {
    RUDDER_TRY(points.write, parse_point(text.substr(comma + 1)));
  }
  return points;
}

tl::unexpected<Error> unknown_format(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_pickle(entry.path())) return refused_pickle(entry.path());
  }
  std::vector<std::string> known;
  for (const DictionaryFormat& format : kFormats) {
    known.push_back(format.files[1].empty()
                        ? std::string(format.files[0])
                        : fmt::format("{} with {}", format.files[0], format.files[1]));
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("the folder holds no dictionary in a known format: {}", fmt::join(known, "; ")),
      folder);
}

}  // namespace

Result<features::DictionarySet> load_dictionary(const std::string& path, std::string_view points) {
  DictionaryFolder folder;
  RUDDER_TRY(folder.path, folder_of(path));
  if (!points.empty()) {
    RUDDER_TRY(folder.points, parse_points(points));
  }
  const auto* format = std::ranges::find_if(kFormats, [&](const DictionaryFormat& each) {
    return std::ranges::all_of(
        each.files, [&](std::string_view name) { return name.empty() || folder.has(name); });
  });
  if (format == std::end(kFormats)) return unknown_format(folder.path);
  RUDDER_TRY(LoadedDictionaries loaded, format->load(folder));
  features::DictionarySet set;
  set.source = path;
  set.format = std::move(loaded.format);
  set.model = std::move(loaded.model);
  for (features::Dictionary& dictionary : loaded.layers) {
    set.layers.push_back(std::make_shared<const features::Dictionary>(std::move(dictionary)));
  }
  return set;
}

}  // namespace rudder::steer
