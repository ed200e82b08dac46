// TapsSpec: the steering and capture of one sequence as a request carries them. Values alone, so
// that they could cross a process: programs are named by content key. The engine makes SequenceTaps
// of it when the request is submitted (steer::ProgramTable::resolve).
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/tap/sequence_taps.h"

namespace rudder::tap {

// As TapSegment, without the program.
struct SegmentSpec {
  int32_t begin = 0;
  ContentKey content;
  bool operator==(const SegmentSpec&) const = default;
};

struct TapsSpec {
  std::vector<SegmentSpec> segments;  // ascending; the first begins at 0; empty: not steered
  bool needs_whole_prompt = false;    // these two as in SequenceTaps
  bool is_scheduled = false;
  std::vector<PositionRange> captured;  // ascending, disjoint
};

// What names these taps. Their capture set is not part of it: the request names it by the number
// of its capture spec.
inline TapsSpec spec_of(const SequenceTaps& taps) {
  TapsSpec spec{.segments = {},
                .needs_whole_prompt = taps.needs_whole_prompt,
                .is_scheduled = taps.is_scheduled,
                .captured = taps.captured};
  spec.segments.reserve(taps.segments.size());
  for (const TapSegment& segment : taps.segments) {
    spec.segments.push_back({segment.begin, segment.content});
  }
  return spec;
}

}  // namespace rudder::tap
