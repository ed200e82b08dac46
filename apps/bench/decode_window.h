// DecodeWindow: the part of a batch's run in which every sequence decodes, from which the time per
// token is taken: a prompt that still runs beside others would count as their time. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace rudder::apps {

// From the last first token to the first last one. Empty where one ends before another begins.
struct DecodeWindow {
  double seconds = 0;
  int64_t tokens = 0;  // of all sequences

  // Seconds a token of one sequence; 0 for an empty window.
  double per_token(size_t num_sequences) const {
    return tokens > 0 ? seconds * static_cast<double>(num_sequences) / static_cast<double>(tokens)
                      : 0;
  }
};

// `token_us`: of each sequence, when each of its tokens came; one at least.
DecodeWindow decode_window(const std::vector<std::span<const int64_t>>& token_us);

}  // namespace rudder::apps
