// Settings of capture, as flags of the server. Filled at start, then only read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/settings.h"

namespace rudder::steer::capture {

struct CaptureSettings {
  std::vector<std::string> consumers;  // "filesystem:root=DIR,fsync=false", "logging"
  std::vector<std::string> plugins;    // "NAME:file=PATH[,key=value...]"
  std::string global;                  // JSON of a capture field: of every request
  std::string overload_policy = "spill";
  int64_t queue_bytes = int64_t{256} << 20;
  std::string spill_dir = "/tmp";
  int64_t spill_bytes = int64_t{4} << 30;
  double block_timeout_seconds = 2;
  double result_timeout_seconds = 30;
  int64_t max_response_bytes = int64_t{256} << 20;

  void declare(SettingsTable& table);
};

}  // namespace rudder::steer::capture
