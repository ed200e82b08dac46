#include "rudder/steer/library.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <mutex>
#include <utility>

#include "rudder/steer/features/fold_gain.h"
#include "rudder/steer/features/load_dictionary.h"
#include "rudder/steer/loaders.h"
#include "rudder/steer/parse.h"
#include "rudder/steer/parse_common.h"
#include "rudder/steer/parse_watch.h"
#include "rudder/steer/recent_configs.h"
#include "rudder/steer/segments.h"

namespace rudder::steer {
namespace {

namespace json = boost::json;

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kMaxScaled = 16;  // configs of a module under another scale that are kept

template <typename Value>
using ByName = std::map<std::string, Value, std::less<>>;

Result<void> check_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  if (name.empty() || name.size() > kMaxNameBytes || !std::ranges::all_of(name, plain)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a name is 1 to {} letters, digits, '.', '_' or '-'", kMaxNameBytes),
                "name");
  }
  return {};
}

// An optional boolean field of an admin body.
Result<bool> read_flag(const json::object& body, std::string_view key) {
  const json::value* value = body.if_contains(json::string_view(key.data(), key.size()));
  if (value == nullptr || value->is_null()) return false;
  if (!value->is_bool()) {
    return fail(ErrorCode::kInvalidArgument, "true or false is needed", std::string(key));
  }
  return value->get_bool();
}

// `path`, which a client wrote, below the operator's folder `root`, which is without links.
Result<std::string> path_below(const std::string& root, std::string_view path) {
  if (root.empty()) {
    return fail(ErrorCode::kUnsupported,
                "dictionaries are registered by a server that was started with --dictionary-root",
                "path");
  }
  const std::filesystem::path relative(path);
  std::error_code error;
  if (!path.empty() && relative.is_relative() && path.find('\0') == std::string_view::npos) {
    const auto real =
        std::filesystem::weakly_canonical(std::filesystem::path(root) / relative, error);
    const auto inside = real.lexically_relative(root);
    const bool leaves = inside.empty() || *inside.begin() == "..";
    if (!error && !leaves) return real.string();
  }
  return fail(ErrorCode::kInvalidArgument, "a path below the folder of --dictionary-root is needed",
              "path");
}

// What the library holds at a time. Immutable but for configs of requests, which are only kept.
struct State final : Names {
  ByName<std::shared_ptr<const Module>> modules;
  ByName<std::shared_ptr<const features::DictionarySet>> dictionaries;
  std::shared_ptr<const Config> global;
  ByName<std::shared_ptr<const Config>> effective;  // of a request that names the module alone

  mutable std::mutex mutex;
  mutable std::map<std::pair<std::string, double>, std::shared_ptr<const Config>> scaled;
  mutable RecentConfigs recent;

  std::shared_ptr<const Config> find(std::string_view name) const override {
    const auto found = modules.find(name);
    return found == modules.end() ? nullptr : found->second->config;
  }

  std::shared_ptr<const features::DictionarySet> find_dictionary(
      std::string_view name) const override {
    const auto found = dictionaries.find(name);
    return found == dictionaries.end() ? nullptr : found->second;
  }

  std::shared_ptr<State> copy() const {
    auto next = std::make_shared<State>();
    next->modules = modules;
    next->dictionaries = dictionaries;
    next->global = global;
    next->effective = effective;
    return next;
  }

  std::vector<OpSpec> global_specs() const {
    return global == nullptr ? std::vector<OpSpec>() : global->specs();
  }

  // Of a request that names one module under a scale and nothing else.
  Result<std::shared_ptr<const Config>> of_module(const NamedRef& ref) const {
    if (ref.scale == 1) return effective.find(ref.name)->second;
    const std::lock_guard lock(mutex);
    auto key = std::pair(ref.name, ref.scale);
    if (const auto found = scaled.find(key); found != scaled.end()) return found->second;
    std::vector<OpSpec> specs = global_specs();
    RUDDER_TRY_VOID(append_scaled(ref, specs));
    RUDDER_TRY(auto config, Config::build(ref.config->shared_model(), std::move(specs)));
    if (scaled.size() == kMaxScaled) scaled.clear();
    scaled.emplace(std::move(key), config);
    return config;
  }
};

// A module without effect is an error at `where`.
Result<void> check_not_empty(const std::vector<OpSpec>& specs, const std::string& where) {
  if (!specs.empty()) return {};
  return fail(ErrorCode::kInvalidArgument, "the module has no vectors and no ops", where);
}

// Appends the parsed ops to `before`: named ones, then inline ones.
Result<std::vector<OpSpec>> specs_of(ParsedSteering parsed, std::vector<OpSpec> before) {
  for (const NamedRef& ref : parsed.named) RUDDER_TRY_VOID(append_scaled(ref, before));
  std::ranges::move(parsed.ops, std::back_inserter(before));
  return before;
}

}  // namespace

class Library::Impl {
 public:
  std::string dictionary_root;  // empty: clients register none

  Impl(Model model, Residency* residency)
      : model_(std::make_shared<const Model>(std::move(model))),
        residency_(residency),
        state_(std::make_shared<State>()) {}

  std::shared_ptr<const State> state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  const std::shared_ptr<const Model>& model() const { return model_; }

  Result<std::shared_ptr<const Module>> add(std::string_view name, bool replace, std::string source,
                                            std::string model_hint, std::vector<OpSpec> specs) {
    RUDDER_TRY_VOID(check_name(name));
    const std::lock_guard writer(writers_);
    auto next = state()->copy();
    if (!replace && next->modules.contains(name)) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("a module is named '{}' already: remove it, or say \"replace\"", name),
          "name");
    }
    auto module = std::make_shared<Module>();
    module->name = name;
    module->source = std::move(source);
    module->model_hint = std::move(model_hint);
    RUDDER_TRY(module->config, Config::build(model_, std::move(specs)));
    next->modules.insert_or_assign(module->name, module);
    RUDDER_TRY_VOID(publish(std::move(next), {module->name}));
    return module;
  }

  Result<std::shared_ptr<const features::DictionarySet>> add_dictionary(features::DictionarySet set,
                                                                        bool replace) {
    RUDDER_TRY_VOID(check_name(set.name));
    RUDDER_TRY_VOID(bind_to_model(set, *model_));
    const std::lock_guard writer(writers_);
    auto next = state()->copy();
    if (!replace && next->dictionaries.contains(set.name)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a dictionary is named '{}' already: remove it, or say \"replace\"",
                              set.name),
                  "name");
    }
    auto shared = std::make_shared<const features::DictionarySet>(std::move(set));
    next->dictionaries.insert_or_assign(shared->name, shared);
    show(std::move(next));
    return shared;
  }

  Result<void> remove_dictionary(std::string_view name) {
    const std::lock_guard writer(writers_);
    auto next = state()->copy();
    const auto found = next->dictionaries.find(name);
    if (found == next->dictionaries.end()) {
      return fail(ErrorCode::kNotFound, fmt::format("no dictionary is named '{}'", name), "name");
    }
    next->dictionaries.erase(found);
    show(std::move(next));
    return {};
  }

  Result<void> remove(std::string_view name) {
    const std::lock_guard writer(writers_);
    auto next = state()->copy();
    const auto found = next->modules.find(name);
    if (found == next->modules.end()) {
      return fail(ErrorCode::kNotFound, fmt::format("no steering module is named '{}'", name),
                  "name");
    }
    next->modules.erase(found);
    next->effective.erase(next->effective.find(name));
    return publish(std::move(next), {std::string(name)});
  }

  Result<void> set_global(ParsedSteering parsed, bool replace) {
    const std::lock_guard writer(writers_);
    auto next = state()->copy();
    RUDDER_TRY(std::vector<OpSpec> specs,
               specs_of(std::move(parsed), replace ? std::vector<OpSpec>() : next->global_specs()));
    RUDDER_TRY(next->global, Config::build(model_, std::move(specs)));
    if (next->global->empty()) next->global = nullptr;
    return publish_global(std::move(next));
  }

  Result<void> clear_global() {
    const std::lock_guard writer(writers_);
    auto next = state()->copy();
    next->global = nullptr;
    return publish_global(std::move(next));
  }

 private:
  static constexpr std::string_view kGlobal = "";  // its place among names: no module has it

  Result<void> publish_global(std::shared_ptr<State> next) {
    std::vector<std::string> changed = {std::string(kGlobal)};
    for (const auto& [name, module] : next->modules) changed.push_back(name);
    return publish(std::move(next), changed);
  }

  // Makes what requests of these names get, has the device hold it, and lets `next` be seen; what
  // was held for them before is let go after that. On an Error nothing has changed.
  Result<void> publish(std::shared_ptr<State> next, const std::vector<std::string>& changed) {
    ByName<std::vector<KeyedProgram>> pins;
    for (const std::string& name : changed) {
      RUDDER_TRY(const auto config, effective_config(*next, name));
      if (config != nullptr) pins.emplace(name, usual_programs(*config));
    }
    RUDDER_TRY_VOID(pin(pins));
    show(std::move(next));
    for (const std::string& name : changed) {
      const auto old = pins_.find(name);
      if (old == pins_.end()) continue;
      unpin(old->second);
      pins_.erase(old);
    }
    pins_.merge(pins);
    return {};
  }

  void show(std::shared_ptr<State> next) {
    const std::lock_guard lock(mutex_);
    state_ = std::move(next);
  }

  // Of a request that names this module alone, or of one that names none; noted in `next`.
  Result<std::shared_ptr<const Config>> effective_config(State& next, const std::string& name) {
    if (name == kGlobal) return next.global;
    const auto module = next.modules.find(name);
    if (module == next.modules.end()) return nullptr;
    std::shared_ptr<const Config> config = module->second->config;
    if (next.global != nullptr) {
      std::vector<OpSpec> specs = next.global_specs();
      std::ranges::copy(config->specs(), std::back_inserter(specs));
      RUDDER_TRY(config, Config::build(model_, std::move(specs)));
    }
    next.effective.insert_or_assign(name, config);
    return config;
  }

  // All of them or none.
  Result<void> pin(const ByName<std::vector<KeyedProgram>>& pins) {
    if (residency_ == nullptr) return {};
    for (auto at = pins.begin(); at != pins.end(); ++at) {
      Result<void> pinned = residency_->pin(at->second);
      if (pinned) continue;
      for (auto done = pins.begin(); done != at; ++done) unpin(done->second);
      return pinned;
    }
    return {};
  }

  void unpin(const std::vector<KeyedProgram>& programs) {
    if (residency_ != nullptr) residency_->unpin(programs);
  }

  const std::shared_ptr<const Model> model_;
  Residency* const residency_;
  std::mutex writers_;  // one registration at a time
  ByName<std::vector<KeyedProgram>> pins_;
  mutable std::mutex mutex_;  // of state_, held for the copy of a pointer
  std::shared_ptr<const State> state_;
};

Library::Library(Model model, Residency* residency)
    : impl_(std::make_unique<Impl>(std::move(model), residency)) {}
Library::~Library() = default;

const Model& Library::model() const {
  return *impl_->model();
}

Result<std::shared_ptr<const Module>> Library::add_file(std::string_view name,
                                                        const std::string& path, bool replace) {
  RUDDER_TRY_VOID(check_name(name));
  RUDDER_TRY(LoadedModule loaded, load_module(path, model(), *impl_->state()));
  RUDDER_TRY_VOID(check_not_empty(loaded.ops, path));
  return impl_->add(name, replace, path, std::move(loaded.model_hint), std::move(loaded.ops));
}

Result<std::shared_ptr<const Module>> Library::add_json(const json::object& body) {
  static constexpr std::array<std::string_view, 2> kOthers = {"name", "replace"};
  const auto state = impl_->state();
  RUDDER_TRY(ParsedSteering parsed, parse_admin_steering(body, kOthers, model(), *state));
  const json::value* name = body.if_contains("name");
  if (name == nullptr || !name->is_string()) {
    return fail(ErrorCode::kInvalidArgument, "a name is needed", "name");
  }
  RUDDER_TRY(const bool replace, read_flag(body, "replace"));
  RUDDER_TRY(std::vector<OpSpec> specs, specs_of(std::move(parsed), {}));
  RUDDER_TRY_VOID(check_not_empty(specs, "steering"));
  const json::string& text = name->get_string();
  return impl_->add({text.data(), text.size()}, replace, "json", "", std::move(specs));
}

Result<std::shared_ptr<const features::DictionarySet>> Library::add_dictionary(
    std::string_view name, const std::string& path, std::string_view points, bool replace) {
  RUDDER_TRY_VOID(check_name(name));
  RUDDER_TRY(features::DictionarySet set, load_dictionary(path, points));
  set.name = name;
  return impl_->add_dictionary(std::move(set), replace);
}

Result<void> Library::allow_dictionaries_below(const std::string& root) {
  std::error_code error;
  const auto real = std::filesystem::canonical(root, error);
  if (error || !std::filesystem::is_directory(real, error)) {
    return fail(ErrorCode::kNotFound, "no such folder", root);
  }
  impl_->dictionary_root = real.string();
  return {};
}

Result<std::shared_ptr<const features::DictionarySet>> Library::add_dictionary_json(
    const json::object& body) {
  static constexpr std::array<std::string_view, 4> kKeys = {"name", "path", "site", "replace"};
  RUDDER_TRY_VOID(check_keys(body, kKeys, "the body", ""));
  RUDDER_TRY(const std::string_view name, read_text(body, "name", ""));
  RUDDER_TRY(const std::string_view path, read_text(body, "path", ""));
  std::string_view points;
  if (member(body, "site") != nullptr) {
    RUDDER_TRY(points, read_text(body, "site", ""));
  }
  RUDDER_TRY(const bool replace, read_flag(body, "replace"));
  RUDDER_TRY(const std::string inside, path_below(impl_->dictionary_root, path));
  auto added = add_dictionary(name, inside, points, replace);
  if (added || added.error().where == "name" || added.error().where == "site") return added;
  // What is wrong with the files is wrong with the path that the client sent.
  Error error = std::move(added.error());
  if (error.where.starts_with(inside)) {
    error.message = fmt::format("{}{}: {}", path, error.where.substr(inside.size()), error.message);
    error.where = "path";
    if (error.code != ErrorCode::kUnsupported) error.code = ErrorCode::kInvalidArgument;
  }
  return tl::unexpected<Error>(std::move(error));
}

Result<void> Library::remove_dictionary(std::string_view name) {
  return impl_->remove_dictionary(name);
}

std::vector<std::shared_ptr<const features::DictionarySet>> Library::dictionaries() const {
  std::vector<std::shared_ptr<const features::DictionarySet>> sets;
  for (const auto& [name, set] : impl_->state()->dictionaries) sets.push_back(set);
  return sets;
}

std::shared_ptr<const features::DictionarySet> Library::find_dictionary(
    std::string_view name) const {
  return impl_->state()->find_dictionary(name);
}

Result<void> Library::remove(std::string_view name) {
  return impl_->remove(name);
}

std::vector<std::shared_ptr<const Module>> Library::modules() const {
  std::vector<std::shared_ptr<const Module>> modules;
  for (const auto& [name, module] : impl_->state()->modules) modules.push_back(module);
  return modules;
}

std::shared_ptr<const Module> Library::find(std::string_view name) const {
  const auto state = impl_->state();
  const auto found = state->modules.find(name);
  return found == state->modules.end() ? nullptr : found->second;
}

Result<void> Library::set_global(const json::object& body) {
  static constexpr std::array<std::string_view, 1> kOthers = {"replace"};
  const auto state = impl_->state();
  RUDDER_TRY(ParsedSteering parsed, parse_admin_steering(body, kOthers, model(), *state));
  RUDDER_TRY(const bool replace, read_flag(body, "replace"));
  return impl_->set_global(std::move(parsed), replace);
}

Result<void> Library::clear_global() {
  return impl_->clear_global();
}

std::shared_ptr<const Config> Library::global() const {
  return impl_->state()->global;
}

Result<std::shared_ptr<const Config>> Library::resolve(const json::object& body,
                                                       const capture::KeptView& kept) const {
  const auto state = impl_->state();
  if (!has_steering_fields(body)) return state->global;
  RUDDER_TRY(ParsedSteering parsed, parse_steering(body, model(), *state, kept));
  if (parsed.empty()) return state->global;
  if (parsed.ops.empty() && parsed.named.size() == 1) return state->of_module(parsed.named[0]);
  RUDDER_TRY(std::vector<OpSpec> specs, specs_of(std::move(parsed), state->global_specs()));
  return state->recent.config_of(impl_->model(), std::move(specs));
}

Result<capture::StopWhen> Library::stop_when(const json::value& value,
                                             const std::string& path) const {
  return parse_stop_when(value, path, model(), *impl_->state());
}

json::array describe(const Config& config) {
  static constexpr std::array<const char*, 3> kPhases = {"all", "prefill", "decode"};
  json::array ops;
  for (const OpSpec& spec : config.specs()) {
    const bool is_feature = spec.op == OpName::kFeature;
    if (is_feature && spec.vector.empty() && !spec.clamp.full) continue;  // its writes are listed
    double squares = 0;
    for (const float value : spec.vector.values()) squares += double{value} * double{value};
    json::object op = {{"site", std::string(tap::site_name(spec.point.site))},
                       {"layer", spec.point.layer},
                       {"op", std::string(op_name(spec.op))},
                       {"scale", spec.scale},
                       {"norm", std::sqrt(squares)},
                       {"phase", kPhases[static_cast<size_t>(spec.select.phase)]}};
    if (is_feature && spec.clamp.full) op["mode"] = "full";
    if (is_feature && spec.clamp.feature != FeatureClamp::kNoFeature) {
      op["feature"] = spec.clamp.feature;
      op["kind"] = std::string(feature_edit_name(spec.clamp.edit));
      op["value"] = spec.clamp.value;
    }
    ops.push_back(std::move(op));
  }
  return ops;
}

json::object describe(const features::DictionarySet& set) {
  const auto text = [](tap::Point point) {
    return fmt::format("{}.{}", tap::site_name(point.site), point.layer);
  };
  json::object described = {{"name", set.name}, {"source", set.source}, {"format", set.format}};
  if (!set.model.empty()) described["model"] = set.model;
  json::array layers;
  for (const auto& dictionary : set.layers) {
    json::object layer = {
        {"read", text(dictionary->read)},
        {"write", text(dictionary->write)},
        {"writes", dictionary->num_writes},
        {"features", dictionary->num_features},
        {"activation", std::string(features::activation_name(dictionary->activation))}};
    if (dictionary->activation == features::Activation::kTopK) layer["k"] = dictionary->k;
    if (dictionary->input_gain != features::InputGain::kKept) layer["without_gain"] = true;
    layers.push_back(std::move(layer));
  }
  described["layers"] = std::move(layers);
  return described;
}

json::object describe(const Module& module) {
  json::object described = {{"name", module.name}, {"source", module.source}};
  if (!module.model_hint.empty()) described["model_hint"] = module.model_hint;
  described["ops"] = describe(*module.config);
  return described;
}

}  // namespace rudder::steer
