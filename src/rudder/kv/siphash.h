// SipHash-2-4 with 128-bit output, a keyed hash for short messages: without the key nobody can
// compute or collide it. Source: Aumasson, Bernstein, "SipHash: a fast short-input PRF",
// INDOCRYPT 2012, and the authors' reference for the 128-bit variant. Any thread; plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rudder::kv {

// Low word first.
std::array<uint64_t, 2> siphash128(std::array<uint64_t, 2> key, std::span<const std::byte> message);

}  // namespace rudder::kv
