// The modes of `rudder bench steering`: the steering and capture fields of each of its requests, as
// a client would send them. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rudder/tap/site.h"
#include "rudder/tensor/dtype.h"

namespace rudder::apps {

// What a mode asks the consumer `response` of every token, at resid_post of one layer.
enum class BenchReadout : uint8_t {
  kNone,
  kTopFeatures,     // the largest of a large dictionary
  kListedFeatures,  // eight of it
  kProbe,           // the product with a vector
  kLens,            // the likeliest tokens
};

struct SteeringMode {
  std::string_view name;
  bool has_steering_off = false;  // runs on a server that has no steering at all
  int32_t num_configs = 0;        // different inline configs, taken in turn
  bool is_named = false;          // one config, by its name
  int32_t num_features = 0;       // delta clamps of so many features
  int32_t num_encoded = 0;        // a topk dictionary of so many features is encoded whole, to
  bool reconstructs = false;      // give the row, or to clamp one feature
  bool adds_to_heads = false;     // attn_z of every layer
  bool is_gated = false;          // an add that a feature opens
  bool watches = false;           // stop_when, of a feature that never comes
  bool is_large = false;          // only where it is asked for by its name
  int32_t num_captured = 0;       // layers whose resid_post is captured to files; -1: all
  BenchReadout readout = BenchReadout::kNone;
};

inline constexpr std::string_view kBenchModule = "bench";

// "disabled" is the first.
const std::vector<SteeringMode>& steering_modes();

// A vector for resid_post of every layer, packed; config i has vectors of its own. The fields of a
// request that steer with it.
std::string packed_steering(const tap::Geometry& geometry, int32_t config);
// The body that registers config 0 as kBenchModule.
std::string bench_module(const tap::Geometry& geometry);

// The fields of a request that adds a vector to attn_z of every layer. All layers have equal heads.
std::string heads_steering(const tap::Geometry& geometry);

// The body of request `index` of a mode without features and heads. `configs`: packed_steering of
// each.
const std::string& steering_body(const SteeringMode& mode, const std::vector<std::string>& configs,
                                 int64_t index);
// The field `capture`; empty: none. `dictionary` is that of readouts.
std::string capture_field(const SteeringMode& mode, const tap::Geometry& geometry,
                          std::string_view dictionary);

// Bytes of dictionaries that a step has to read at least for a mode whose requests all ask the
// same, from encoders and decoders of `dtype`; 0: the mode has no features.
int64_t floor_bytes(const SteeringMode& mode, const tap::Geometry& geometry, tensor::DType dtype);

}  // namespace rudder::apps
