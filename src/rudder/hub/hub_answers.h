// What an answer of the hub that is no success means, in plain words and with what to do; and how
// long to wait before the next try. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include "rudder/base/result.h"
#include "rudder/hub/http_client.h"
#include "rudder/hub/hub_settings.h"

namespace rudder::hub {

// What was asked for, as errors name it.
struct AskedFor {
  std::string repository;
  std::string revision;
  std::string path;  // of a file; empty: the repository itself
};

// Whether the same request may do better a moment later.
bool is_passing(int status);

Error describe_refusal(const HttpAnswer& answer, const AskedFor& asked,
                       const HubSettings& settings);

// How long the hub asks to wait (Retry-After in seconds or as a date, or a rate limit's reset), a
// day at most; nullopt: it does not say. `now_s`: seconds since 1970.
std::optional<int64_t> wait_us_of(const HttpHead& head, int64_t now_s = std::time(nullptr));

// Before the try after `failures` in a row (from 1 on), where nobody says how long.
int64_t backoff_us(int failures);

}  // namespace rudder::hub
