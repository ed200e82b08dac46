#include "rudder/steer/capture/result.h"

#include "rudder/steer/capture/consumer.h"

namespace rudder::steer::capture {

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kPending:
      return "pending";
    case Status::kOk:
      return "ok";
    case Status::kPartialError:
      return "partial_error";
    case Status::kError:
      return "error";
    case Status::kNotRequested:
      return "not_requested";
  }
  return "error";
}

std::vector<float> ResultRows::to_floats() const {
  std::vector<float> values(layers.size() * static_cast<size_t>(width));
  decode_row(data, dtype, values);
  return values;
}

}  // namespace rudder::steer::capture
