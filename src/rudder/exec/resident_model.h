// ResidentModel: the memory of a loaded model, for who changes it while the engine rests: weights
// that take the place of those in memory, whole or not at all, and memory that is given back while
// nobody needs it. Made by load_models over the devices of its executors; not to be used when they
// are gone. One thread at a time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/head_lens.h"
#include "rudder/model/replace_weights.h"
#include "rudder/model/spec.h"
#include "rudder/model/stage.h"
#include "rudder/model/weights.h"
#include "rudder/ops/ops.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::exec {

// What the executor of one device holds in its memory.
struct HeldMemory {
  ops::Ops* ops = nullptr;
  model::Weights* weights = nullptr;
  model::Stage stage = {};
  std::vector<ops::View> sequences = {};  // what sequences keep: KV and states
  model::WeightParts parts = {};          // of `weights`
};

// Weights of a checkpoint, loaded and checked beside those that are in use.
class ReadyWeights {
 public:
  virtual ~ReadyWeights() = default;
  // Puts them in place, once, while the engine rests. It cannot fail.
  virtual void put_in_place() = 0;
};

class ResidentModel {
 public:
  // `spec` is the whole model's; `lens` is over the first replica's weights, or null.
  ResidentModel(model::ModelSpec spec, std::vector<HeldMemory> devices,
                std::shared_ptr<HeadLens> lens)
      : spec_(std::move(spec)), devices_(std::move(devices)), lens_(std::move(lens)) {}

  // kUnsupported: the devices keep their memory as it is; `where` is the setting.
  Result<void> can_change() const;
  // Loads it for every device, beside what is there: so long both are in memory. Errors name the
  // tensor or the module; of the model nothing has changed. The checkpoint may be closed behind it.
  Result<std::unique_ptr<ReadyWeights>> read(const weights::Checkpoint& checkpoint);

  // While the engine rests. Nothing is lost that is not computed anew.
  void give_back_sequences();
  // Likewise; from then on nothing may compute until ready weights are in place.
  void give_back_weights();
  bool has_weights() const { return has_weights_; }

 private:
  class Loaded;

  void tell_lens();

  const model::ModelSpec spec_;
  const std::vector<HeldMemory> devices_;
  const std::shared_ptr<HeadLens> lens_;
  bool has_weights_ = true;
};

}  // namespace rudder::exec
