// ServeOptions: what `rudder serve` is told, as the front reads it and as each engine process reads
// it again. Made at start; not moved, since the table refers to the fields.
#pragma once

#include <cstdint>
#include <string>

#include "command_line.h"
#include "model_session.h"
#include "residence.h"
#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/server/settings.h"

namespace rudder::apps {

struct ServeSettings {
  bool dry_run = false;
  bool engine_process = false;
  ResidenceSettings residence;
  std::string model;
  int64_t seed = -1;
  int64_t embedding_memory_mb = 4;
  int32_t data_parallel_size = 1;
  // What people have in their command lines and what changes nothing here.
  bool enable_auto_tool_choice = true;
  bool trust_remote_code = false;
  bool enable_chunked_prefill = true;

  void declare(SettingsTable& table);
};

struct ServeOptions {
  ServeOptions();
  ServeOptions(const ServeOptions&) = delete;
  ServeOptions& operator=(const ServeOptions&) = delete;

  // Reads the command line, and puts what it says of sessions into `session`.
  Result<ParsedArguments> read(int argc, char** argv);

  ServeSettings serve;
  SessionSettings session;
  server::ServerSettings server;
  SettingsTable table;
  std::string model;  // that is served
};

}  // namespace rudder::apps
