// Where the hub is, who asks and where the cache lies: read from the environment variables that
// huggingface_hub reads, so that both tools mean the same. Read once a command, on the main thread.
#pragma once

#include <functional>
#include <string>

#include "rudder/base/result.h"

namespace rudder::hub {

struct HubSettings {
  std::string endpoint;      // HF_ENDPOINT, without a slash at its end
  std::string token;         // empty: nobody is logged in
  std::string token_source;  // "HF_TOKEN", or the file: what an error message names
  std::string cache;         // HF_HUB_CACHE: the folder with models--org--name
  bool offline = false;      // HF_HUB_OFFLINE
  bool shows_progress = true;
  std::string certificates;  // a bundle in place of the system's; empty: the system's
  std::string
      plain_proxy;     // HTTP_PROXY, of addresses without TLS: libcurl reads it in small letters
  int timeout_s = 10;  // without a byte, before a transfer counts as cut
  std::string user_agent = "rudder";
};

// The value of a variable; empty where it is not set.
using Environment = std::function<std::string(const char* name)>;

// kInvalidArgument names the variable that cannot be meant.
Result<HubSettings> read_hub_settings(const Environment& environment);

// As read_hub_settings with the process's environment.
Result<HubSettings> read_hub_settings();

}  // namespace rudder::hub
