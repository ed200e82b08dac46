// TapsSpec: the steering and capture of one sequence as a request carries them. Values alone, so
// that they could cross a process: programs are named by content key. The engine makes SequenceTaps
// of it when the request is submitted (steer::ProgramTable::resolve).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/tap/sequence_taps.h"

namespace rudder::tap {

// As TapSegment, without the program.
struct SegmentSpec {
  int32_t begin = 0;
  ContentKey content;
  bool operator==(const SegmentSpec&) const = default;
};

// As Thoughts, without programs.
struct ThoughtsSpec {
  int32_t begin_token = 0;
  int32_t end_token = 0;
  bool open = false;
  std::vector<SegmentSpec> segments;
};

struct TapsSpec {
  std::vector<SegmentSpec> segments;  // ascending; the first begins at 0; empty: not steered
  std::optional<ThoughtsSpec> thoughts = {};
  bool needs_whole_prompt = false;  // these three as in SequenceTaps
  bool is_controlled = false;
  bool is_scheduled = false;
  std::vector<PositionRange> captured;  // ascending, disjoint
};

inline std::vector<SegmentSpec> spec_of(const std::vector<TapSegment>& segments) {
  std::vector<SegmentSpec> spec;
  spec.reserve(segments.size());
  for (const TapSegment& segment : segments) spec.push_back({segment.begin, segment.content});
  return spec;
}

// What names these taps. Their capture set is not part of it: the request names it by the number
// of its capture spec.
inline TapsSpec spec_of(const SequenceTaps& taps) {
  TapsSpec spec{.segments = spec_of(taps.segments),
                .thoughts = {},
                .needs_whole_prompt = taps.needs_whole_prompt,
                .is_controlled = taps.is_controlled,
                .is_scheduled = taps.is_scheduled,
                .captured = taps.captured};
  if (taps.thoughts) {
    spec.thoughts = ThoughtsSpec{.begin_token = taps.thoughts->begin_token,
                                 .end_token = taps.thoughts->end_token,
                                 .open = taps.thoughts->open,
                                 .segments = spec_of(taps.thoughts->segments)};
  }
  return spec;
}

}  // namespace rudder::tap
