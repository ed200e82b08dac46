#include "rudder/engine/entropy.h"

#include <random>
#include <span>

#include "rudder/base/siphash.h"

namespace rudder::engine {

Entropy Entropy::from_system() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {.hash_key = {word(), word()}, .seed_key = word()};
}

std::array<uint64_t, 2> Entropy::shared_hash_key(std::string_view secret) {
  constexpr std::array<uint64_t, 2> kPurpose = {0x7275646465722070, 0x6b65792073656372};
  SipHash128 hash(kPurpose);
  hash.update(std::as_bytes(std::span(secret)));
  return hash.finish();
}

}  // namespace rudder::engine
