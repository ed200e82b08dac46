// Content keys: 128 bits over what a program does. Equal content gives equal keys, whether it came
// as lists, packed or by name. Pure functions; any thread.
//
// The structure (points, op forms, parameters as bytes, lengths) goes through SipHash-2-4-128.
// Vectors, which are nearly all of the bytes, go through eight interleaved SipHash-2-4-128 of their
// own keys whose digests enter it: as strong, and as fast as memory.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "rudder/tap/program.h"
#include "rudder/tap/sequence_taps.h"
#include "rudder/tap/site.h"

namespace rudder::steer {

using HashSecret = std::array<uint64_t, 2>;

// Never {0, 0} for a program with ops; {0, 0} for one without.
tap::ContentKey content_key(const HashSecret& secret, const tap::Program& program,
                            const tap::Geometry& geometry);

// The key of `content` together with a number that what it does depends on.
tap::ContentKey mix_key(const HashSecret& secret, const tap::ContentKey& content, uint64_t number);

// Of the vectors alone; shown for tests and benches.
std::array<uint64_t, 2> hash_floats(const HashSecret& secret, std::span<const float> values);

}  // namespace rudder::steer
