// Content keys: 128-bit hashes of what a program does. Equal content gives equal keys, whether the
// vectors came as lists, packed or by name. Any thread.
//
// SipHash-2-4-128 hashes the structure (points, op forms, parameters as bytes, lengths). The
// vectors, which are nearly all of the bytes, go through eight interleaved SipHash-2-4-128 with
// keys of their own, whose digests enter the first hash: this is as strong, and several times as
// fast.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "rudder/tap/program.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/tap/site.h"

namespace rudder::tap {

using HashSecret = std::array<uint64_t, 2>;
using Digest = std::array<uint64_t, 2>;

// Never {0, 0} for a program with ops; {0, 0} for one without.
tap::ContentKey content_key(const HashSecret& secret, const tap::Program& program,
                            const tap::Geometry& geometry);

// The key of `content` together with a number that what it does depends on.
tap::ContentKey mix_key(const HashSecret& secret, const tap::ContentKey& content, uint64_t number);

// Digests of vectors by the values' bytes. Immutable.
class VectorHash {
 public:
  static constexpr size_t kLanes = 8;

  explicit VectorHash(const HashSecret& secret);
  Digest digest(std::span<const float> values) const;

 private:
  HashSecret secret_;
  std::array<uint64_t, kLanes> key0_;
  std::array<uint64_t, kLanes> key1_;
};

}  // namespace rudder::tap
