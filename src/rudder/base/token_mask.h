// Token masks: one bit for each token of a vocabulary. Bit t % 32 of word t / 32 is 1 where token t
// may come next; bits beyond the vocabulary are 0. Matchers of constraints clear bits on the engine
// thread and its helpers, the executor copies masks to the device, sampling reads them. Pure
// functions; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace rudder {

constexpr size_t mask_words(int32_t vocab_size) {
  return (static_cast<size_t>(vocab_size) + 31) / 32;
}

inline bool is_in_mask(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

inline void clear_in_mask(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
}

inline void set_in_mask(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

// Every token of the vocabulary; `mask` has mask_words(vocab_size).
inline void fill_mask(std::span<uint32_t> mask, int32_t vocab_size) {
  std::ranges::fill(mask, ~uint32_t{0});
  if (vocab_size % 32 != 0) mask.back() = (uint32_t{1} << (vocab_size % 32)) - 1;
}

inline bool is_mask_empty(std::span<const uint32_t> mask) {
  return std::ranges::all_of(mask, [](uint32_t word) { return word == 0; });
}

}  // namespace rudder
