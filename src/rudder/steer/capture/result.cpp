#include "rudder/steer/capture/result.h"

#include <fmt/format.h>

#include <iterator>

#include "rudder/base/json.h"
#include "rudder/steer/capture/base64.h"

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

namespace {

// Into the object that `out` ends with.
void append_means(std::string& out, const std::vector<ResultRows>& means) {
  out.pop_back();
  if (out.back() != '{') out += ',';
  out += "\"means\":{";
  for (const ResultRows& rows : means) {
    append_packed_rows(out, rows.key, "float32", rows.width, rows.layers,
                       std::as_bytes(std::span(rows.values)));
  }
  out += "}}";
}

}  // namespace

void append_packed_rows(std::string& out, std::string_view key, std::string_view dtype,
                        int32_t width, std::span<const int32_t> layers,
                        std::span<const std::byte> data) {
  if (out.back() != '{') out += ',';
  fmt::format_to(std::back_inserter(out),
                 R"("{}":{{"dtype":"{}","shape":[{},{}],"layer_indices":[{}],"data":")", key, dtype,
                 layers.size(), width, fmt::join(layers, ","));
  append_base64(out, data);
  out += "\"}";
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
    if (!result.means.empty()) append_means(out, result.means);
    out += '}';
  }
  out += '}';
  return out;
}

}  // namespace rudder::steer::capture
