// The outcome of a request's captures, for each consumer. Plain values: consumers make them, the
// dispatcher passes them on, the server writes them into answers. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rudder::steer::capture {

enum class Status : uint8_t {
  kPending,       // the answer did not wait for it (`capture_wait` is false)
  kOk,            // every row that the request asked for and reached is delivered
  kPartialError,  // some are lost; `error` says why
  kError,         // nothing that can be relied on was delivered
  kNotRequested,  // the operator's own capture of every request; its outcome is not the client's
};

std::string_view status_name(Status status);  // "ok", "partial_error", ...

struct ConsumerResult {
  std::string consumer;
  Status status = Status::kOk;
  std::string error;    // for people; empty when there is none
  std::string payload;  // JSON text; empty: null
};

using CaptureResults = std::vector<ConsumerResult>;  // in the order of the request's consumers

// The value of `capture_results`: {consumer: {"status", "error", "payload"}} as JSON text.
std::string results_json(const CaptureResults& results);

// What a consumer says while the request still runs: one token's values.
struct CaptureEvent {
  std::string consumer;
  int32_t choice = 0;
  int32_t position = 0;  // of the token in its sequence
  std::string payload;   // JSON text of an object
};

}  // namespace rudder::steer::capture
