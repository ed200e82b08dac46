// ScoredText: how likely a model held the tokens of a text, with the likeliest tokens at each
// place. What `rudder eval` measures, stores and compares. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "eval/text_windows.h"

namespace rudder::apps {

struct ScoredText {
  std::string model;
  WindowSettings windows;
  int32_t prefix = -1;          // token that texts begin with; -1: there is none
  std::vector<int32_t> tokens;  // of the text

  // Of the scored tokens, in the text's order.
  std::vector<int32_t> positions;   // [scored] in tokens
  std::vector<float> logprobs;      // [scored]
  int32_t top = 0;                  // likeliest tokens of each
  std::vector<int32_t> top_tokens;  // [scored, top], likeliest first
  std::vector<float> top_logprobs;  // [scored, top]

  size_t num_scored() const { return positions.size(); }
  int32_t token_at(size_t i) const { return tokens[static_cast<size_t>(positions[i])]; }
  std::span<const int32_t> top_tokens_at(size_t i) const {
    return std::span(top_tokens).subspan(i * static_cast<size_t>(top), static_cast<size_t>(top));
  }
  std::span<const float> top_logprobs_at(size_t i) const {
    return std::span(top_logprobs).subspan(i * static_cast<size_t>(top), static_cast<size_t>(top));
  }
};

}  // namespace rudder::apps
