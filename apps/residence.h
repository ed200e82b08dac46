// The memory of a session's model as the server changes it: new weights from folders of safetensors
// files, and memory that is given back while the model sleeps. Made when the model is loaded, on
// the main thread; afterwards the server's thread of changes calls it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/exec/resident_model.h"
#include "rudder/model/override_config.h"
#include "rudder/server/admin/residence.h"
#include "rudder/tensor/view.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

struct ResidenceSettings {
  bool enable_sleep_mode = false;
  std::string weights_root;  // empty: clients replace no weights

  void declare(SettingsTable& table);
  bool any() const { return enable_sleep_mode || !weights_root.empty(); }
};

// What checkpoints must have to take the place of the one that is served.
struct ServedForm {
  struct Tensor {
    tensor::DType dtype = tensor::DType::kF32;
    tensor::Shape shape = {};
  };
  std::map<std::string, Tensor, std::less<>> tensors;
  bool is_packed = false;  // some of them: no safetensors file has such
  std::string config;      // config.json, as it is served

  static Result<ServedForm> of(const weights::Checkpoint& checkpoint);
};

class ModelResidence final : public server::Residence {
 public:
  struct Parts {
    ServedForm form;
    model::ConfigOverrides overrides;  // what `form.config` has on top of its file
    std::shared_ptr<exec::ResidentModel> model;
    std::string identity;                  // of the model with the weights of its start
    std::optional<std::string> no_update;  // a setting beside which weights are not replaced
  };
  ModelResidence(Parts parts, const ResidenceSettings& settings)
      : parts_(std::move(parts)), settings_(settings) {}

  Result<void> can_sleep() const override;
  Result<void> can_update() const override;
  Result<std::unique_ptr<server::NewWeights>> read_weights(const std::string& path,
                                                           const std::string& version) override;
  void give_back_sequences() override { parts_.model->give_back_sequences(); }
  void give_back_weights() override { parts_.model->give_back_weights(); }

 private:
  Result<std::string> folder_below_root(const std::string& path) const;
  Result<void> check_config(const weights::Checkpoint& checkpoint) const;

  const Parts parts_;
  const ResidenceSettings settings_;
  uint64_t num_read_ = 0;
};

struct SessionSettings;

// Null where the settings ask for none.
std::unique_ptr<ModelResidence> make_residence(const ServedForm& form,
                                               std::shared_ptr<exec::ResidentModel> model,
                                               std::string identity,
                                               const SessionSettings& settings);

}  // namespace rudder::apps
