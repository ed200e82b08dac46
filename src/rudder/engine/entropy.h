// Entropy: what must not be guessed from outside: the key of the prefix hashes, and of the seeds
// drawn for requests that bring none. Plain values; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace rudder::engine {

struct Entropy {
  std::array<uint64_t, 2> hash_key = {};
  uint64_t seed_key = 0;
  int32_t hash_bits = 128;  // kept of a prefix key; tests force collisions with few

  static Entropy from_system();
  // The key of the prefix hashes that every process with this secret has.
  static std::array<uint64_t, 2> shared_hash_key(std::string_view secret);
  // That, or one that is drawn where the secret is empty.
  static std::array<uint64_t, 2> hash_key_of(std::string_view secret) {
    return secret.empty() ? from_system().hash_key : shared_hash_key(secret);
  }
};

}  // namespace rudder::engine
