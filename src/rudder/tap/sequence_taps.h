// SequenceTaps: the steering and capture of one sequence, by position. steer makes it from a
// request and its prompt; the engine leases table rows for it, the scheduler puts it into plans.
// Plain data, immutable once shared.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "rudder/tap/capture.h"
#include "rudder/tap/content_key.h"
#include "rudder/tap/program.h"

namespace rudder::tap {

// Tokens at positions from `begin` to the next segment run `program`; null: none.
struct TapSegment {
  int32_t begin = 0;
  ContentKey content;
  std::shared_ptr<const Program> program;
};

struct PositionRange {  // [begin, end)
  int32_t begin = 0;
  int32_t end = 0;
};
inline constexpr int32_t kNoEnd = std::numeric_limits<int32_t>::max();

// Where generated tokens are thoughts they run other programs. Thoughts are the generated tokens
// behind `begin_token`, where that is the first, or all from the first on where the prompt ends
// inside thoughts (`open`); they end before the first `end_token`. The marks are none. So a token's
// program depends on the tokens up to itself, and on nothing else.
struct Thoughts {
  int32_t begin_token = 0;
  int32_t end_token = 0;
  bool open = false;
  std::vector<TapSegment>
      segments;  // as SequenceTaps.segments, of generated tokens that are thoughts
};

struct SequenceTaps {
  std::vector<TapSegment> segments;  // ascending; the first begins at 0; empty: not steered
  std::optional<Thoughts> thoughts;  // with segments alone
  // A latch needs every token of the prompt: no prefix is reused.
  bool needs_whole_prompt = false;
  // What a generated token runs depends on what the token before it left in a latch: a controller.
  bool is_controlled = false;
  // An op has a schedule: its strength changes from token to token without a change of program.
  bool is_scheduled = false;

  std::shared_ptr<const CaptureSet> capture;  // null: nothing is captured
  std::vector<PositionRange> captured;        // ascending, disjoint

  // All that table rows are leased for: `segments`, then those of thoughts.
  std::vector<TapSegment> leased() const {
    std::vector<TapSegment> all = segments;
    if (thoughts) all.insert(all.end(), thoughts->segments.begin(), thoughts->segments.end());
    return all;
  }
};

}  // namespace rudder::tap
