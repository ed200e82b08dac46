#include "steering.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/engine/entropy.h"
#include "rudder/steer/op_spec.h"

namespace rudder::apps {
namespace {

// A module's vector at a point, for probes that are named by it.
Result<std::vector<float>> named_vector(const steer::Library* library, std::string_view name,
                                        tap::Point point) {
  const auto module = library == nullptr ? nullptr : library->find(name);
  if (module == nullptr) {
    return fail(ErrorCode::kNotFound, fmt::format("no steering module is called '{}'", name));
  }
  for (const steer::OpSpec& spec : module->config->specs()) {
    if (spec.point != point || spec.vector.empty()) continue;
    const auto values = spec.vector.values();
    return std::vector<float>(values.begin(), values.end());
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("the steering module '{}' has no vector at {}.{}", name,
                          tap::site_name(point.site), point.layer));
}

tensor::DType dictionary_dtype(const SteeringSettings& settings, const tap::Geometry& geometry) {
  const bool is_bf16 = geometry.dtype == tensor::DType::kBF16;
  return settings.dictionary_storage().value_or(is_bf16 ? tensor::DType::kBF16
                                                        : tensor::DType::kF32);
}

struct NamedPath {
  std::string name;
  std::string path;
};

// "NAME=…" of a setting.
Result<NamedPath> split_name(const std::string& text, std::string_view path_form,
                             std::string_view setting) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos)
    return NamedPath{text.substr(0, equals), text.substr(equals + 1)};
  return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not NAME={}", text, path_form),
              std::string(setting));
}

}  // namespace

void SteeringSettings::declare(SettingsTable& table) {
  table.section("steering");
  table.add("steering-module", &modules,
            "A module that requests may name, NAME=FILE: safetensors, npz, gguf or json. "
            "Repeatable.");
  table.add("dictionary", &dictionaries,
            "A dictionary (sparse autoencoder, transcoder) whose features requests may name, "
            "NAME=PATH or NAME=PATH@SITE where the files do not say where it reads (resid_post.20; "
            "mlp_in.20,mlp_out.20 of a transcoder). Repeatable.");
  table.add("dictionary-root", &dictionary_root,
            "A folder whose dictionaries may be registered over HTTP, by whoever may register "
            "steering modules.");
  table.add_choice("dictionary-dtype", &dictionary_dtype, {"auto", "bfloat16", "float32"},
                   "How encoder and decoder of a dictionary that is encoded whole lie on the "
                   "device; auto is that of activations: bfloat16 on a GPU, float32 on a CPU.");
  capture.declare(table);
}

std::optional<tensor::DType> SteeringSettings::dictionary_storage() const {
  if (dictionary_dtype == "auto") return std::nullopt;
  return dictionary_dtype == "bfloat16" ? tensor::DType::kBF16 : tensor::DType::kF32;
}

Result<std::unique_ptr<steer::capture::Dispatcher>> make_captures(
    const step::Capacity& capacity, const SteeringSettings& settings,
    const std::shared_ptr<LateLibrary>& library, std::shared_ptr<tap::Lens> lens,
    std::shared_ptr<features::FeatureReader> features) {
  const bool is_for_clients = capacity.taps.capture() && !capacity.taps.captures_prompts_only;
  const auto& asked = settings.capture;
  if (!is_for_clients &&
      !(asked.consumers.empty() && asked.plugins.empty() && asked.global.empty())) {
    return fail(ErrorCode::kInvalidArgument,
                "consumers are named, but nothing is captured without --capture-memory-mb",
                "capture-memory-mb");
  }
  if (!capacity.taps.capture()) return nullptr;
  steer::capture::Dispatcher::Parts parts;
  parts.geometry = capacity.geometry;
  parts.limits = capacity.taps;
  parts.lens = std::move(lens);
  parts.features = std::move(features);
  parts.lookup = [library](std::string_view name, tap::Point point) {
    return named_vector(library->load(), name, point);
  };
  parts.dictionaries =
      [library](std::string_view name) -> std::shared_ptr<const features::DictionarySet> {
    const steer::Library* const known = library->load();
    return known == nullptr ? nullptr : known->find_dictionary(name);
  };
  return steer::capture::Dispatcher::create(std::move(parts), settings.capture);
}

Result<void> Steering::EngineResidency::pin(const std::vector<steer::KeyedProgram>& programs) {
  return engine_.pin(programs);
}

void Steering::EngineResidency::unpin(const std::vector<steer::KeyedProgram>& programs) {
  std::vector<tap::ContentKey> keys;
  keys.reserve(programs.size());
  for (const steer::KeyedProgram& keyed : programs) keys.push_back(keyed.key);
  engine_.unpin(std::move(keys));
}

Steering::Steering(engine::Engine& engine, steer::Model model, std::shared_ptr<LateLibrary> late)
    : residency_(engine), library_(std::move(model), &residency_), late_(std::move(late)) {
  late_->store(&library_);
}

Steering::~Steering() {
  late_->store(nullptr);
}

Result<std::unique_ptr<Steering>> Steering::create(engine::Engine& engine,
                                                   const SteeringSettings& settings,
                                                   std::vector<tap::NormGain> mlp_gains,
                                                   std::shared_ptr<LateLibrary> late,
                                                   const std::string& secret) {
  const engine::RequestLimits limits = engine.limits();
  if (!limits.taps.steering()) {
    for (const auto& [is_asked, setting] :
         {std::pair(!settings.modules.empty(), "steering-module"),
          std::pair(!settings.dictionaries.empty(), "dictionary"),
          std::pair(!settings.dictionary_root.empty(), "dictionary-root")}) {
      if (is_asked) return fail(ErrorCode::kInvalidArgument, "it needs --enable-steering", setting);
    }
    return nullptr;
  }
  steer::Model model;
  model.geometry = limits.geometry;
  model.limits = limits.taps;
  model.hash_secret = engine::Entropy::hash_key_of(secret);
  model.dictionary_dtype = dictionary_dtype(settings, limits.geometry);
  model.mlp_gains = std::move(mlp_gains);
  std::unique_ptr<Steering> steering(new Steering(engine, std::move(model), std::move(late)));
  RUDDER_TRY_VOID(steering->register_all(settings));
  return steering;
}

// Dictionaries first: modules may name their features.
Result<void> Steering::register_all(const SteeringSettings& settings) {
  if (!settings.dictionary_root.empty()) {
    RUDDER_TRY_VOID(library_.allow_dictionaries_below(settings.dictionary_root));
  }
  for (const std::string& text : settings.dictionaries) {
    RUDDER_TRY(const NamedPath dictionary, split_name(text, "PATH[@SITE]", "dictionary"));
    // An '@' in the name of a folder is part of the path.
    const size_t slash = dictionary.path.rfind('/');
    const size_t at = dictionary.path.rfind('@');
    const bool has_site = at != std::string::npos && (slash == std::string::npos || at > slash);
    RUDDER_TRY(const auto set,
               library_.add_dictionary(dictionary.name,
                                       dictionary.path.substr(0, has_site ? at : std::string::npos),
                                       has_site ? dictionary.path.substr(at + 1) : ""));
    log_info("dictionary {} registered: {} of {} layers", set->name, set->format,
             set->layers.size());
  }
  for (const std::string& text : settings.modules) {
    RUDDER_TRY(const NamedPath module, split_name(text, "FILE", "steering-module"));
    RUDDER_TRY_VOID(library_.add_file(module.name, module.path));
    log_info("steering module {} registered", module.name);
  }
  return {};
}

}  // namespace rudder::apps
