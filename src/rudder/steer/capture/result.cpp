#include "rudder/steer/capture/result.h"

#include "rudder/base/json.h"

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

std::string results_json(const CaptureResults& results) {
  std::string out = "{";
  for (const ConsumerResult& result : results) {
    if (out.size() > 1) out += ',';
    append_json_string(out, result.consumer);
    out += ":{\"status\":\"";
    out += status_name(result.status);
    out += "\",\"error\":";
    if (result.error.empty()) {
      out += "null";
    } else {
      append_json_string(out, result.error);
    }
    out += ",\"payload\":";
    out += result.payload.empty() ? "null" : result.payload;
    out += '}';
  }
  out += '}';
  return out;
}

}  // namespace rudder::steer::capture
