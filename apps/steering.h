// The steering and capture objects of a session: they connect the library of modules with the
// engine that runs programs. Made on the main thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/engine/engine.h"
#include "rudder/steer/capture/dispatcher.h"
#include "rudder/steer/capture/settings.h"
#include "rudder/steer/library.h"
#include "rudder/step/executor.h"

namespace rudder::apps {

struct SteeringSettings {
  std::vector<std::string> modules;       // "name=path"
  std::vector<std::string> dictionaries;  // "name=path[@site[,site]]"
  std::string dictionary_root;            // empty: clients register no dictionary
  std::string dictionary_dtype = "auto";
  steer::capture::CaptureSettings capture;

  void declare(SettingsTable& table);
  // What the executor keeps room for depends on them.
  bool names_dictionaries() const { return !dictionaries.empty() || !dictionary_root.empty(); }
  std::optional<tensor::DType> dictionary_storage() const;  // none: as activations
};

// The dispatcher is made before the library that its probes' names lead to.
using LateLibrary = std::atomic<const steer::Library*>;

// Null when the executor captures nothing; an Error when the settings ask for capture all the same.
Result<std::unique_ptr<steer::capture::Dispatcher>> make_captures(
    const step::Capacity& capacity, const SteeringSettings& settings,
    const std::shared_ptr<LateLibrary>& library, std::shared_ptr<tap::Lens> lens,
    std::shared_ptr<features::FeatureReader> features);

class Steering {
 public:
  // Registers the dictionaries and modules of the settings. Null when the executor does not steer;
  // an Error when there are any all the same. The engine outlives it. Keys of
  // programs are hashed under `secret`, or where it is empty under one that is drawn.
  static Result<std::unique_ptr<Steering>> create(engine::Engine& engine,
                                                  const SteeringSettings& settings,
                                                  std::vector<tap::NormGain> mlp_gains,
                                                  std::shared_ptr<LateLibrary> late,
                                                  const std::string& secret);
  ~Steering();

  steer::Library& library() { return library_; }

 private:
  class EngineResidency final : public steer::Residency {
   public:
    explicit EngineResidency(engine::Engine& engine) : engine_(engine) {}
    Result<void> pin(const std::vector<steer::KeyedProgram>& programs) override;
    void unpin(const std::vector<steer::KeyedProgram>& programs) override;

   private:
    engine::Engine& engine_;
  };

  Result<void> register_all(const SteeringSettings& settings);

  Steering(engine::Engine& engine, steer::Model model, std::shared_ptr<LateLibrary> late);

  EngineResidency residency_;
  steer::Library library_;
  std::shared_ptr<LateLibrary> late_;
};

}  // namespace rudder::apps
