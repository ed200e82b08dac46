// Residence: what the server asks of whoever holds the model's memory: new weights in place of the
// old ones, and memory back while the model sleeps. apps/ implements it over the loaded model. One
// thread at a time calls it; what changes memory is called while the engine rests.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "rudder/base/result.h"

namespace rudder::server {

// Weights of a checkpoint beside those in use.
class NewWeights {
 public:
  virtual ~NewWeights() = default;
  virtual void put_in_place() = 0;           // once; it cannot fail
  virtual int64_t num_tensors() const = 0;   // all of which have matched
  virtual std::string identity() const = 0;  // of the model with them (engine::Engine::resume)
};

class Residence {
 public:
  virtual ~Residence() = default;

  // An Error: kUnsupported, what of the server keeps its memory as it is; or kNotFound, the flag
  // that it was not started with.
  virtual Result<void> can_sleep() const = 0;
  virtual Result<void> can_update() const = 0;
  // Reads and checks all of it; of what is in use nothing changes. kInvalidArgument: what does not
  // fit, the tensor in `where`; kNotFound: there is no such checkpoint. `version` is what the
  // client calls it.
  virtual Result<std::unique_ptr<NewWeights>> read_weights(const std::string& path,
                                                           const std::string& version) = 0;
  virtual void give_back_sequences() = 0;
  virtual void give_back_weights() = 0;
};

}  // namespace rudder::server
