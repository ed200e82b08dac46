#include "rudder/exec/tap_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "rudder/tap/program.h"

namespace rudder::exec {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kDefaultVectorBytes = 256 * kMib;
constexpr int64_t kDictionaryBytes = 16 * kMib;
// A row of the table packs an op's number into 23 bits; offsets of vectors are 31 bits.
constexpr int64_t kMostOps = int64_t{1} << 23;
constexpr int64_t kMostFloats =
    std::numeric_limits<int32_t>::max() / tap::kVectorAlign * tap::kVectorAlign;
constexpr int64_t kOpsPerLayer = 4;
constexpr int64_t kLeastOps = 1024;
constexpr int64_t kLeastEmbedded = 16;  // tokens a step

int64_t rounded_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Two vectors as wide as the residual a layer and row, within reason; and a small dictionary, where
// dictionaries are encoded.
int64_t likely_bytes(int64_t rows, bool encodes, const tap::Geometry& geometry) {
  const int64_t program = int64_t{2} * geometry.num_layers * geometry.residual_width();
  const int64_t floats = std::max(rows * program, int64_t{16} * geometry.widest());
  return std::min(floats * int64_t{sizeof(float)} + (encodes ? kDictionaryBytes : 0),
                  kDefaultVectorBytes);
}

}  // namespace

Result<tap::Limits> tap_limits(const TapAsk& ask, const tap::Geometry& geometry) {
  tap::Limits limits;
  if (ask.enable_steering) {
    const int64_t rows = ask.max_steering_rows;
    const int64_t bytes =
        ask.steering_bytes > 0 ? ask.steering_bytes : likely_bytes(rows, ask.encodes, geometry);
    limits.num_rows = static_cast<int32_t>(rows + 1);
    limits.num_ops = static_cast<int32_t>(
        std::clamp(rows * geometry.num_layers * kOpsPerLayer, kLeastOps, kMostOps));
    limits.num_floats =
        std::min(rounded_up(bytes / int64_t{sizeof(float)}, tap::kVectorAlign), kMostFloats);
    if (limits.num_floats < geometry.widest()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the widest vector of this model takes {} bytes",
                              geometry.widest() * int64_t{sizeof(float)}),
                  "steering-memory-mb");
    }
    // Of a dictionary, one encoder row and one decoder row of the model's width, in bf16.
    if (ask.encodes)
      limits.max_features = static_cast<int32_t>(limits.num_floats / geometry.hidden);
  }
  if (ask.capture_bytes > 0) {
    const auto width = static_cast<int64_t>(tensor::dtype_bytes(geometry.dtype));
    limits.num_capture_sets = ask.max_num_seqs;
    limits.patterns = ask.patterns;
    limits.capture_elements =
        ask.capture_bytes / ask.max_in_flight / width / tap::kCaptureAlign * tap::kCaptureAlign;
    // The buffer must hold one token's rows of one site at all layers, the most common request.
    const int64_t record = geometry.num_layers * rounded_up(geometry.widest(), tap::kCaptureAlign);
    if (limits.capture_elements < record) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("one token's rows of one site take {} bytes for each of the {} steps "
                              "in flight",
                              record * width, ask.max_in_flight),
                  "capture-memory-mb");
    }
  } else if (ask.embedding_bytes > 0) {
    const auto width = static_cast<int64_t>(tensor::dtype_bytes(geometry.dtype));
    const int64_t record = rounded_up(geometry.hidden, tap::kCaptureAlign);
    limits.captures_prompts_only = true;
    limits.num_capture_sets = 1;
    limits.capture_elements =
        std::max(ask.embedding_bytes / ask.max_in_flight / width / record, kLeastEmbedded) * record;
  }
  return limits;
}

}  // namespace rudder::exec
