// Checksum: whether bytes are those that were written. Fast (as fast as memory is read, with AVX2)
// and not against an adversary: who may write the bytes may write the checksum. A pure function;
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rudder {

// Eight lanes of 64-bit words side by side, as XXH3 adds them up: each word goes into its lane as
// the product of its halves under a key of its place, and as it is into the lane beside it. So one
// changed word always changes the sum, and words that change places do but by chance. The same
// value on every processor.
uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace rudder
