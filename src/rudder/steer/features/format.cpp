#include "rudder/steer/features/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "rudder/base/json.h"
#include "rudder/steer/invalid_field.h"
#include "rudder/steer/op_spec.h"
#include "rudder/weights/mapped_file.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;

// "layers.12.", behind "model." or "model.language_model."; nothing where the text is another.
std::optional<std::pair<int32_t, std::string_view>> split_module(std::string_view text) {
  constexpr std::string_view kLayers = "layers.";
  size_t at = text.find(kLayers);
  if (at == std::string_view::npos || (at > 0 && text[at - 1] != '.')) return std::nullopt;
  text.remove_prefix(at + kLayers.size());
  int32_t layer = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
  if (error != std::errc{} || layer < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with('.')) text.remove_prefix(1);
  return std::pair(layer, text);
}

struct ModuleSite {
  std::string_view module;
  tap::Site site;
};
// Tensors of a Hugging Face module as hooks name them. A module's plain output stands for the
// branch as it is added only in models without a norm behind it; those names are sparsify's.
constexpr ModuleSite kModules[] = {
    {"output", tap::Site::kResidPost},
    {"", tap::Site::kResidPost},
    {"input", tap::Site::kResidPre},
    {"pre_feedforward_layernorm.output", tap::Site::kMlpIn},
    {"post_feedforward_layernorm.output", tap::Site::kMlpOut},
    {"mlp", tap::Site::kMlpOut},
    {"self_attn", tap::Site::kAttnOut},
    {"self_attn.o_proj.input", tap::Site::kAttnZ},
};

std::string point_text(tap::Point point) {
  return fmt::format("{}.{}", tap::site_name(point.site), point.layer);
}

std::string text_of_read(const DictionaryPoints& points) {
  return point_text(points.read) + (points.reads_without_gain ? " without the norm's gain" : "");
}

}  // namespace

bool DictionaryFolder::has(std::string_view name) const {
  std::error_code error;
  return std::filesystem::is_regular_file(file(name), error);
}

Result<ConfigFile> ConfigFile::open(const std::string& path) {
  RUDDER_TRY(const std::string text, weights::read_text_file(path, kMaxConfigBytes));
  RUDDER_TRY(json::value value, parse_json(text, path));
  if (!value.is_object()) return corrupt_file("a JSON object is needed", path);
  ConfigFile config;
  config.path_ = path;
  config.fields_ = std::make_shared<const json::object>(std::move(value.get_object()));
  return config;
}

const json::value* ConfigFile::find(std::string_view key) const {
  const json::value* value = fields_->if_contains(json::string_view(key.data(), key.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

tl::unexpected<Error> ConfigFile::refused(std::string_view key, std::string message) const {
  return invalid_field(std::move(message), fmt::format("{}: {}", path_, key));
}

Result<std::string> ConfigFile::text(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_string()) return refused(key, "a string is needed");
  return std::string(value->get_string());
}

Result<std::string> ConfigFile::text_or(std::string_view key, std::string_view absent) const {
  return has(key) ? text(key) : Result<std::string>(std::string(absent));
}

Result<bool> ConfigFile::flag(std::string_view key, bool absent) const {
  const json::value* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_bool()) return refused(key, "true or false is needed");
  return value->get_bool();
}

Result<int32_t> ConfigFile::count(std::string_view key) const {
  const json::value* value = find(key);
  const bool is_count = value != nullptr && value->is_int64() && value->get_int64() > 0 &&
                        value->get_int64() <= std::numeric_limits<int32_t>::max();
  if (!is_count) return refused(key, "a whole number above 0 is needed");
  return static_cast<int32_t>(value->get_int64());
}

Result<double> ConfigFile::positive(std::string_view key) const {
  const json::value* value = find(key);
  const double number = value == nullptr     ? 0
                        : value->is_double() ? value->get_double()
                        : value->is_int64()  ? static_cast<double>(value->get_int64())
                                             : 0;
  if (!(number > 0) || number > kMaxMagnitude) {
    return refused(key, fmt::format("a number above 0, at most {}, is needed", kMaxMagnitude));
  }
  return number;
}

Result<void> ConfigFile::check_count(std::string_view key, uint64_t needed) const {
  if (!has(key)) return {};
  RUDDER_TRY(const int32_t said, count(key));
  if (static_cast<uint64_t>(said) == needed) return {};
  return refused(key, fmt::format("{}, the tensors have {}", said, needed));
}

Result<void> ConfigFile::check_flag(std::string_view key, bool needed, bool absent) const {
  RUDDER_TRY(const bool said, flag(key, absent));
  if (said == needed) return {};
  return refused(key, fmt::format("{} is not supported", said));
}

Result<ConfigFile> ConfigFile::object(std::string_view key) const {
  const json::value* value = find(key);
  if (value == nullptr || !value->is_object()) return refused(key, "an object is needed");
  ConfigFile inner;
  inner.path_ = fmt::format("{}: {}", path_, key);
  inner.fields_ = std::make_shared<const json::object>(value->get_object());
  return inner;
}

Result<tap::Point> parse_hook(std::string_view hook, const std::string& where) {
  Result<tap::SiteRef> site = tap::parse_op_site(hook);
  const bool is_activation = site && site->site != tap::Site::kRouterLogits;
  if (is_activation && site->layer >= 0) return tap::Point{site->layer, site->site};
  if (const auto module = split_module(hook)) {
    const auto* found = std::ranges::find(kModules, module->second, &ModuleSite::module);
    if (found != std::end(kModules)) return tap::Point{module->first, found->site};
  }
  return invalid_field(fmt::format("hook '{}' is no site of a layer{}{}", hook, site ? "" : ": ",
                                   site ? "" : site.error().message),
                       where);
}

std::optional<std::string> hook_with_gain(std::string_view hook) {
  constexpr std::string_view kNormed = "ln2.hook_normalized";
  if (!hook.ends_with(kNormed)) return std::nullopt;
  return std::string(hook.substr(0, hook.size() - kNormed.size())) + "mlp.hook_in";
}

Result<DictionaryPoints> hooked_points(const DictionaryFolder& folder, std::string_view read,
                                       std::string_view write, const std::string& where) {
  DictionaryPoints points;
  const std::optional<std::string> with_gain = hook_with_gain(read);
  points.reads_without_gain = with_gain.has_value();
  RUDDER_TRY(points.read, parse_hook(with_gain ? *with_gain : read, where));
  RUDDER_TRY(points.write, parse_hook(write, where));
  const auto agree = [&](const std::string& said, const std::string& own) -> Result<void> {
    if (said == own) return {};
    return invalid_field(fmt::format("the file says {}, the command says {}", own, said), where);
  };
  if (folder.points) {
    RUDDER_TRY_VOID(agree(text_of_read(*folder.points), text_of_read(points)));
    RUDDER_TRY_VOID(agree(point_text(folder.points->write), point_text(points.write)));
  }
  return points;
}

Result<DictionaryPoints> named_points(const DictionaryFolder& folder) {
  if (folder.points) return *folder.points;
  return invalid_field(
      "files of this format do not say where the dictionary reads: name it behind the path, as in "
      "@resid_post.20, or @mlp_in.20,mlp_out.20 for a transcoder",
      folder.path);
}

Result<void> refuse_points(const DictionaryFolder& folder) {
  if (!folder.points) return {};
  return invalid_field("the files hold several layers and say which: no site may be named",
                       folder.path);
}

features::Dictionary make_dictionary(const DictionaryPoints& points, uint64_t num_features,
                                     uint64_t d_in, uint64_t d_out) {
  features::Dictionary dictionary;
  dictionary.read = points.read;
  if (points.reads_without_gain) dictionary.input_gain = features::InputGain::kRemoved;
  dictionary.write = points.write;
  dictionary.num_features = static_cast<int32_t>(num_features);
  dictionary.d_in = static_cast<int32_t>(d_in);
  dictionary.d_out = static_cast<int32_t>(d_out);
  return dictionary;
}

std::vector<double> decoder_norms(const features::Dictionary& dictionary) {
  std::vector<double> norms;
  for (int32_t j = 0; j < dictionary.num_features; ++j) {
    double squares = 0;
    const Row row = dictionary.decoder_row(j);
    for (const float value : row.values()) squares += double{value} * double{value};
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

void fold_decoder_norm(features::Dictionary& dictionary) {
  const std::vector<double> norms = decoder_norms(dictionary);
  const auto scaled_rows = [&](const Floats& from, int32_t width, bool divide) {
    const size_t count = norms.size() * static_cast<size_t>(width);
    auto to = std::make_shared_for_overwrite<float[]>(count);
    for (size_t i = 0; i < count; ++i) {
      const double norm = norms[i / static_cast<size_t>(width)];
      // A feature that writes nothing stays one.
      const double factor = divide ? (norm > 0 ? 1 / norm : 0) : norm;
      to.get()[i] = static_cast<float>(from.get()[i] * factor);
    }
    return Floats(std::move(to));
  };
  dictionary.encoder = scaled_rows(dictionary.encoder, dictionary.d_in, false);
  dictionary.decoder = scaled_rows(dictionary.decoder, dictionary.d_out, true);
  for (std::vector<float>* list : {&dictionary.encoder_bias, &dictionary.gate_bias}) {
    for (size_t j = 0; j < list->size(); ++j) {
      (*list)[j] = static_cast<float>((*list)[j] * norms[j]);
    }
  }
}

}  // namespace rudder::steer
