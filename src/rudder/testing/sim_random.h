// The simulator's only source of chance: one 64-bit seed (SplitMix64; Steele, Lea, Flood, "Fast
// splittable pseudorandom number generators", OOPSLA 2014).
#pragma once

#include <cstddef>
#include <cstdint>

namespace rudder::testing {

constexpr uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(seed) {}

  uint64_t next() { return mix64(state_ += 0x9E3779B97F4A7C15u); }
  // Uniform in [low, high]; the bias of the modulus is of no account here.
  int32_t in(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int32_t n) { return in(1, n) == 1; }
  template <typename T, size_t N>
  T pick(const T (&values)[N]) {
    return values[next() % N];
  }

 private:
  uint64_t state_;
};

}  // namespace rudder::testing
