// What the tests of begin_step and advance_step share: the state of slots as the host expects it.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {

// What the device's SlotState should hold; the last row is of padding.
struct HostSlots {
  int32_t num_slots = 0;
  int32_t num_groups = 1;
  int64_t max_blocks = 0;
  int64_t vocab = 0;
  int64_t max_len = 44;
  int64_t most_guessed = 6;
  std::vector<int32_t> carry, carry_position, ended, block_table, output_count, history, guess;
  std::vector<uint8_t> prompt_seen;

  HostSlots(int32_t slots, int32_t groups, int64_t blocks, int64_t tokens)
      : num_slots(slots),
        num_groups(groups),
        max_blocks(blocks),
        vocab(tokens),
        carry(static_cast<size_t>(slots) + 1, -1),
        carry_position(carry.size()),
        ended(carry.size()),
        block_table(carry.size() * static_cast<size_t>(groups * blocks)),
        output_count(carry.size() * static_cast<size_t>(tokens)),
        history(carry.size() * static_cast<size_t>(max_len), -1),
        guess(carry.size() * static_cast<size_t>(most_guessed), -1),
        prompt_seen(output_count.size()) {}

  ops::SlotState put(Device& device) const {
    const int64_t rows = num_slots + 1;
    return {
        .carry = device.put(carry),
        .carry_position = device.put(carry_position),
        .ended = device.put(ended),
        .block_table = device.put_as(std::span(block_table), tensor::DType::kI32,
                                     {num_groups * rows, max_blocks}),
        .output_count = device.put_as(std::span(output_count), tensor::DType::kI32, {rows, vocab}),
        .prompt_seen = device.put_as(std::span(prompt_seen), tensor::DType::kU8, {rows, vocab}),
        .history = device.put_as(std::span(history), tensor::DType::kI32, {rows, max_len}),
        .guess = device.put_as(std::span(guess), tensor::DType::kI32, {rows, most_guessed})};
  }
};

// A list of begin_step, empty where there is nothing in it.
template <typename T>
tensor::View put_words(Device& device, const std::vector<T>& values) {
  constexpr auto kWords = static_cast<int64_t>(sizeof(T) / sizeof(int32_t));
  if (values.empty()) return {};
  return device.put_as(std::span<const T>(values), tensor::DType::kI32,
                       {static_cast<int64_t>(values.size()), kWords});
}

}  // namespace rudder::testing
