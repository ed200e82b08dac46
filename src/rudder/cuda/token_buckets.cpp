#include "rudder/cuda/token_buckets.h"

#include <bit>

#include "rudder/base/check.h"

namespace rudder::cuda {

namespace {

constexpr int64_t kLastWholeOctave = 128;
constexpr int64_t kParts = 4;  // of an octave above

// The power of two below which a number above kLastWholeOctave does not lie.
int64_t octave_of(int64_t tokens) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(tokens - 1)));
}

size_t log2_of(int64_t power) {
  return static_cast<size_t>(std::bit_width(static_cast<uint64_t>(power)) - 1);
}

}  // namespace

int64_t bucket_of(int64_t tokens) {
  RUDDER_CHECK(tokens > 0, "{} tokens", tokens);
  if (tokens <= kLastWholeOctave) {
    return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(tokens)));
  }
  const int64_t part = octave_of(tokens) / kParts;
  return (tokens + part - 1) / part * part;
}

int64_t least_tokens(int64_t bucket) {
  if (bucket <= kLastWholeOctave) return bucket / 2 + 1;
  return bucket - octave_of(bucket) / kParts + 1;
}

size_t bucket_index(int64_t bucket) {
  if (bucket <= kLastWholeOctave) return log2_of(bucket);
  const int64_t octave = octave_of(bucket);
  const auto part = static_cast<size_t>((bucket - octave) / (octave / kParts));
  return log2_of(kLastWholeOctave) + kParts * log2_of(octave / kLastWholeOctave) + part;
}

}  // namespace rudder::cuda
