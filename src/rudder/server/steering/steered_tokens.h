// SteeredTokens: which tokens of a choice ran under steering. It sees the choice's tokens as they
// are sampled, because which of them are thoughts follows from them. The Generation of the request
// has one for each choice whose client asks; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/tap/taps_spec.h"

namespace rudder::server {

class SteeredTokens {
 public:
  SteeredTokens(tap::TapsSpec taps, int32_t prompt_len);

  // The next sampled token of the choice.
  void note(int32_t token);
  // Positions of the tokens that some op steers, of prompt and answer: ascending, disjoint, none
  // touching the next. The last sampled token was never an input of the model: it is in no range.
  std::vector<tap::PositionRange> ranges() const;

 private:
  tap::TapsSpec taps_;
  int32_t prompt_len_ = 0;
  int32_t num_tokens_ = 0;                // sampled
  bool is_settled_ = false;               // where thoughts lie is known
  int32_t thoughts_begin_ = tap::kNoEnd;  // their positions
  int32_t thoughts_end_ = tap::kNoEnd;
};

std::string to_json(const std::vector<tap::PositionRange>& ranges);  // [[begin, end], ...]

}  // namespace rudder::server
