// The outcome of a request's captures, for each consumer. Plain values: consumers make them, the
// dispatcher passes them on, the server writes them into answers. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Rows of numbers of one site, as values: whoever writes an answer packs them.
struct ResultRows {
  std::string key;              // "resid_post"; "mlp_act.3" where layers differ in width
  std::vector<int32_t> layers;  // of each row
  int32_t width = 0;
  std::vector<float> values;  // [layers.size(), width]
};

struct ConsumerResult {
  std::string consumer;
  Status status = Status::kOk;
  std::string error;    // for people; empty when there is none
  std::string payload;  // JSON text, an object where there are means; empty: null
  // Over the captured positions; "means" of the payload that the client gets.
  std::vector<ResultRows> means = {};
};

using CaptureResults = std::vector<ConsumerResult>;  // in the order of the request's consumers

// The value of `capture_results`: {consumer: {"status", "error", "payload"}} as JSON text.
std::string results_json(const CaptureResults& results);

// One site's rows in the packed form of steering vectors, as a member of a JSON object that is open
// in `out`: `"resid_post":{"dtype":...,"shape":[num_rows,width],"layer_indices":[...],"data":...}`.
void append_packed_rows(std::string& out, std::string_view key, std::string_view dtype,
                        int32_t width, std::span<const int32_t> layers,
                        std::span<const std::byte> data);

// What a consumer says while the request still runs: one token's values.
struct CaptureEvent {
  std::string consumer;
  int32_t choice = 0;
  int32_t position = 0;  // of the token in its sequence
  std::string payload;   // JSON text of an object
};

}  // namespace rudder::steer::capture
