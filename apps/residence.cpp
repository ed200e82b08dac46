#include "residence.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "model_session.h"
#include "rudder/base/json.h"

namespace rudder::apps {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigFile = "config.json";
// Keys of a config.json that say nothing of what a model computes.
constexpr std::array<std::string_view, 6> kIdleKeys = {
    "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"};

class ReadWeights final : public server::NewWeights {
 public:
  ReadWeights(std::unique_ptr<exec::ReadyWeights> ready, int64_t num_tensors, std::string identity)
      : ready_(std::move(ready)), num_tensors_(num_tensors), identity_(std::move(identity)) {}
  void put_in_place() override { ready_->put_in_place(); }
  int64_t num_tensors() const override { return num_tensors_; }
  std::string identity() const override { return identity_; }

 private:
  const std::unique_ptr<exec::ReadyWeights> ready_;
  const int64_t num_tensors_;
  const std::string identity_;
};

bool is_wide(tensor::DType dtype) {
  return dtype == tensor::DType::kF32 || dtype == tensor::DType::kF16 ||
         dtype == tensor::DType::kBF16;
}

// The first key that `one` has and `other` has otherwise. Null is as good as absent; 1 is 1.0.
std::optional<std::string> different_key(const boost::json::object& one,
                                         const boost::json::object& other) {
  for (const auto& [key, value] : one) {
    if (std::ranges::count(kIdleKeys, std::string_view(key)) > 0 || value.is_null()) continue;
    const boost::json::value* const there = other.if_contains(key);
    if (there != nullptr && value.is_number() && there->is_number()) {
      if (value.to_number<double>() == there->to_number<double>()) continue;
    } else if (there != nullptr && value.is_object() && there->is_object()) {
      if (!different_key(value.get_object(), there->get_object()) &&
          !different_key(there->get_object(), value.get_object())) {
        continue;
      }
    } else if (there != nullptr && *there == value) {
      continue;
    }
    return std::string(key);
  }
  return std::nullopt;
}

// The names of those that do not fit, by how.
struct Misfits {
  std::vector<std::string> missing;
  std::vector<std::string> unknown;
  std::vector<std::string> other_form;
  std::string first_form;  // of other_form's first: what it is and what is served
  int64_t num_matched = 0;

  bool empty() const { return missing.empty() && unknown.empty() && other_form.empty(); }
  Error to_error() const {
    std::string text = fmt::format("nothing was replaced: {} tensors match", num_matched);
    const auto add = [&](const std::vector<std::string>& names, std::string_view how) {
      if (!names.empty()) text += fmt::format(", {} {} (first {})", names.size(), how, names[0]);
    };
    add(missing, "are missing");
    add(unknown, "are not the model's");
    add(other_form, "have another shape or type");
    if (!first_form.empty()) text += ": " + first_form;
    const std::string& first = !other_form.empty() ? other_form[0]
                               : !missing.empty()  ? missing[0]
                                                   : unknown[0];
    return {ErrorCode::kInvalidArgument, std::move(text), first};
  }
};

Misfits compare_tensors(const ServedForm& form, const weights::Checkpoint& fresh) {
  Misfits misfits;
  for (const weights::TensorInfo& info : fresh.tensors()) {
    const auto served = form.tensors.find(info.name);
    if (served == form.tensors.end()) {
      misfits.unknown.push_back(info.name);
      continue;
    }
    const ServedForm::Tensor& tensor = served->second;
    const bool fits_type =
        tensor.dtype == info.view.dtype || (is_wide(tensor.dtype) && is_wide(info.view.dtype));
    if (tensor.shape == info.view.shape && fits_type) {
      ++misfits.num_matched;
      continue;
    }
    if (misfits.other_form.empty()) {
      misfits.first_form = fmt::format(
          "{} {} in place of {} {}", tensor::dtype_name(info.view.dtype),
          info.view.shape.to_string(), tensor::dtype_name(tensor.dtype), tensor.shape.to_string());
    }
    misfits.other_form.push_back(info.name);
  }
  for (const auto& [name, tensor] : form.tensors) {
    if (fresh.find(name) == nullptr) misfits.missing.push_back(name);
  }
  return misfits;
}

// A file that is at fault is the client's choice.
Error of_client(Error error) {
  if (error.code != ErrorCode::kCorruptFile && error.code != ErrorCode::kIo &&
      error.code != ErrorCode::kUnsupported) {
    return error;
  }
  return {ErrorCode::kInvalidArgument, "nothing was replaced: " + error.to_string(),
          error.where.empty() ? "path" : error.where};
}

}  // namespace

std::unique_ptr<ModelResidence> make_residence(const ServedForm& form,
                                               std::shared_ptr<exec::ResidentModel> model,
                                               std::string identity,
                                               const SessionSettings& settings) {
  if (!settings.residence.any()) return nullptr;
  ModelResidence::Parts parts{.form = form,
                              .overrides = settings.load.config,
                              .model = std::move(model),
                              .identity = std::move(identity),
                              .no_update = std::nullopt};
  // What these know of the weights is read once, at the start.
  if (settings.exec.lora.enable) parts.no_update = "enable-lora";
  if (!settings.record.folder.empty()) parts.no_update = "record";
  if (settings.steering.names_dictionaries()) parts.no_update = "dictionary";
  return std::make_unique<ModelResidence>(std::move(parts), settings.residence);
}

void ResidenceSettings::declare(SettingsTable& table) {
  table.add("enable-sleep-mode", &enable_sleep_mode,
            "POST /sleep gives the memory of the KV cache back (level 2: of the weights too) until "
            "POST /wake_up; on a CPU.");
  table.add("weights-root", &weights_root,
            "A folder below which POST /v1/weights/update finds checkpoints whose weights take the "
            "place of the model's, on a CPU; empty: none do.");
}

Result<ServedForm> ServedForm::of(const weights::Checkpoint& checkpoint) {
  ServedForm form;
  for (const weights::TensorInfo& info : checkpoint.tensors()) {
    form.tensors[info.name] = {info.view.dtype, info.view.shape};
    form.is_packed = form.is_packed || info.packed.has_value();
  }
  RUDDER_TRY(form.config, checkpoint.read_text(kConfigFile));
  return form;
}

Result<void> ModelResidence::can_sleep() const {
  if (!settings_.enable_sleep_mode) {
    return fail(ErrorCode::kNotFound, "sleep needs a server started with --enable-sleep-mode");
  }
  return parts_.model->can_change();
}

Result<void> ModelResidence::can_update() const {
  if (settings_.weights_root.empty()) {
    return fail(ErrorCode::kNotFound,
                "weights are replaced where --weights-root names a folder for them");
  }
  if (parts_.no_update) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("weights are not replaced on a server with --{}", *parts_.no_update),
                *parts_.no_update);
  }
  if (parts_.form.is_packed) {
    return fail(ErrorCode::kUnsupported, "the weights of a GGUF file are not replaced", "model");
  }
  return parts_.model->can_change();
}

Result<std::string> ModelResidence::folder_below_root(const std::string& path) const {
  std::error_code error;
  const fs::path root = fs::canonical(settings_.weights_root, error);
  if (error) {
    return fail(ErrorCode::kNotFound, "the folder of --weights-root is not there", "path");
  }
  const fs::path folder = fs::weakly_canonical(root / path, error);
  const auto [end, unused] = std::mismatch(root.begin(), root.end(), folder.begin(), folder.end());
  if (error || end != root.end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is not below the folder of --weights-root", path), "path");
  }
  if (!fs::is_directory(folder, error)) {
    return fail(ErrorCode::kNotFound, fmt::format("there is no folder '{}'", path), "path");
  }
  return folder.string();
}

// A folder of weights may come without a config. One that is there says the same.
Result<void> ModelResidence::check_config(const weights::Checkpoint& checkpoint) const {
  if (!checkpoint.has_file(kConfigFile)) return {};
  RUDDER_TRY(std::string text, checkpoint.read_text(kConfigFile));
  if (!parts_.overrides.empty()) {
    RUDDER_TRY(text, model::override_config(text, parts_.overrides));
  }
  RUDDER_TRY(const boost::json::value fresh, parse_json(text, kConfigFile));
  RUDDER_TRY(const boost::json::value served, parse_json(parts_.form.config, kConfigFile));
  if (!fresh.is_object() || !served.is_object()) {
    return fail(ErrorCode::kInvalidArgument, "its config.json is no object", "path");
  }
  auto key = different_key(fresh.get_object(), served.get_object());
  if (!key) key = different_key(served.get_object(), fresh.get_object());
  if (!key) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("nothing was replaced: its config.json has another '{}'", *key), *key);
}

Result<std::unique_ptr<server::NewWeights>> ModelResidence::read_weights(
    const std::string& path, const std::string& version) {
  RUDDER_TRY(const std::string folder, folder_below_root(path));
  auto opened = weights::Checkpoint::open_folder(folder);
  if (!opened) return tl::unexpected<Error>(of_client(std::move(opened.error())));
  if (auto same = check_config(**opened); !same) {
    return tl::unexpected<Error>(of_client(std::move(same.error())));
  }
  const Misfits misfits = compare_tensors(parts_.form, **opened);
  if (!misfits.empty()) return tl::unexpected<Error>(misfits.to_error());
  const auto checkpoint = weights::Checkpoint::with_text(*opened, kConfigFile, parts_.form.config);
  auto ready = parts_.model->read(*checkpoint);
  if (!ready) return tl::unexpected<Error>(of_client(std::move(ready.error())));
  const std::string name = version.empty() ? fs::path(folder).filename().string() : version;
  return std::unique_ptr<server::NewWeights>(
      std::make_unique<ReadWeights>(std::move(*ready), misfits.num_matched,
                                    fmt::format("{}@{}#{}", parts_.identity, name, ++num_read_)));
}

}  // namespace rudder::apps
