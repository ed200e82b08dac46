// Utf8State: what bytes of a character may come next (Unicode 15, table 3-7), for automata and
// walks that take text byte by byte. Plain values.
#pragma once

#include <compare>
#include <cstdint>
#include <tuple>

namespace rudder::constraint {

struct Utf8State {
  uint8_t left = 0;  // bytes of the character that are missing
  uint8_t first = 0x80;
  uint8_t last = 0xBF;  // of the next of them
  bool operator==(const Utf8State&) const = default;
  auto operator<=>(const Utf8State& other) const {
    return std::tie(left, first, last) <=> std::tie(other.left, other.first, other.last);
  }
};

// False when the byte cannot come.
inline bool next_utf8(Utf8State& state, uint8_t byte) {
  if (state.left > 0) {
    if (byte < state.first || byte > state.last) return false;
    state = {.left = static_cast<uint8_t>(state.left - 1)};
    return true;
  }
  if (byte < 0x80) return true;
  if (byte < 0xC2 || byte > 0xF4) return false;
  if (byte < 0xE0) {
    state.left = 1;
  } else if (byte < 0xF0) {
    state.left = 2;
    if (byte == 0xE0) state.first = 0xA0;
    if (byte == 0xED) state.last = 0x9F;
  } else {
    state.left = 3;
    if (byte == 0xF0) state.first = 0x90;
    if (byte == 0xF4) state.last = 0x8F;
  }
  return true;
}

}  // namespace rudder::constraint
