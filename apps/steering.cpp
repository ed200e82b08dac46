#include "steering.h"

#include <fmt/format.h>

#include <random>
#include <string_view>
#include <utility>

#include "rudder/base/log.h"
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

}  // namespace

void SteeringSettings::declare(SettingsTable& table) {
  table.section("steering");
  table.add("steering-module", &modules,
            "A module that requests may name, NAME=FILE: safetensors, npz, gguf or json. "
            "Repeatable.");
  capture.declare(table);
}

Result<std::unique_ptr<steer::capture::Dispatcher>> make_captures(
    const step::Capacity& capacity, const SteeringSettings& settings,
    const std::shared_ptr<LateLibrary>& library) {
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
  parts.lookup = [library](std::string_view name, tap::Point point) {
    return named_vector(library->load(), name, point);
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
                                                   std::shared_ptr<LateLibrary> late) {
  const engine::RequestLimits limits = engine.limits();
  if (!limits.taps.steering()) {
    if (settings.modules.empty()) return nullptr;
    return fail(ErrorCode::kInvalidArgument, "it needs --enable-steering", "steering-module");
  }
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  steer::Model model;
  model.geometry = limits.geometry;
  model.limits = limits.taps;
  model.hash_secret = {word(), word()};
  std::unique_ptr<Steering> steering(new Steering(engine, std::move(model), std::move(late)));
  for (const std::string& module : settings.modules) {
    const size_t equals = module.find('=');
    if (equals == std::string::npos) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("'{}' is not NAME=FILE", module),
                  "steering-module");
    }
    const std::string name = module.substr(0, equals);
    RUDDER_TRY_VOID(steering->library_.add_file(name, module.substr(equals + 1)));
    log_info("steering module {} registered", name);
  }
  return steering;
}

}  // namespace rudder::apps
