// The outcome of a request's captures, for each consumer. Plain values: consumers make them, the
// dispatcher passes them on, the server writes them into answers (result_json.h). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/features/top_features.h"
#include "rudder/tap/lens.h"
#include "rudder/tensor/dtype.h"

namespace rudder::steer::capture {

enum class Status : uint8_t {
  kPending,       // the answer did not wait for it (`capture_wait` is false)
  kOk,            // every row that the request asked for and reached is delivered
  kPartialError,  // some are lost; `error` says why
  kError,         // nothing that can be relied on was delivered
  kNotRequested,  // the operator's own capture of every request; its outcome is not the client's
};

std::string_view status_name(Status status);  // "ok", "partial_error", ...

// Rows of one site, as they lie in memory.
struct ResultRows {
  std::string key;  // "resid_post"; "mlp_act.3" where layers differ in width
  tensor::DType dtype = tensor::DType::kF32;
  std::vector<int32_t> layers;  // of each row; the rows of a token follow each other
  int32_t width = 0;
  std::vector<std::byte> data;  // [layers.size(), width] of dtype
  std::string residual = {};    // residual_json(), of rows that it says something of

  std::vector<float> to_floats() const;  // [layers.size(), width]
};

// Numbers of one point, one for each token.
struct PointNumbers {
  std::string point;  // "resid_post.10"
  std::vector<float> values;
};

// What the lens read of one layer.
struct LensReading {
  int32_t layer = 0;
  std::vector<std::vector<tap::LensToken>> tokens;  // by position, the likeliest first
  std::string stream = {};  // of a residual of several: as JSON, a number or "collapsed"
};

// Features of a dictionary at its layer.
struct FeatureReading {
  std::string dictionary;
  int32_t layer = 0;
  std::vector<std::vector<features::FeatureValue>> tokens;  // by position
};

// Attention patterns of one layer.
struct PatternReading {
  int32_t layer = 0;
  std::vector<int32_t> heads;
  tensor::DType dtype = tensor::DType::kF32;
  std::vector<int32_t> keys;    // by position: how many its rows have
  std::vector<std::byte> data;  // [heads, keys] of dtype, position after position
};

struct ProbeNumbers {
  std::string probe;  // as the request names it
  std::vector<PointNumbers> points;
};

// What was read of some tokens. A part that was not asked for is empty.
struct CapturedValues {
  std::vector<int32_t> positions;
  std::vector<ResultRows> rows;
  std::vector<PointNumbers> norms;
  std::vector<ProbeNumbers> probes;
  std::vector<LensReading> lens = {};
  std::optional<FeatureReading> features = {};
  std::vector<PatternReading> patterns = {};
  std::vector<ResultRows> means = {};  // over all captured positions, f32
  // Of an answer that streams: so many events told all but the means, which alone are here.
  std::optional<int64_t> num_events = {};
};

struct ConsumerResult {
  std::string consumer;
  Status status = Status::kOk;
  std::string error;    // for people; empty when there is none
  std::string payload;  // a consumer's own document as JSON text; empty: none
  std::optional<CapturedValues> values = {};
};

using CaptureResults = std::vector<ConsumerResult>;  // in the order of the request's consumers

// What a consumer says while the request still runs: one token's values.
struct CaptureEvent {
  std::string consumer;
  int32_t choice = 0;
  int32_t position = 0;  // of the token in its sequence
  CapturedValues values;
};

}  // namespace rudder::steer::capture
