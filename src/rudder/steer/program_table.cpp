#include "rudder/steer/program_table.h"

#include <utility>
#include <vector>

#include "rudder/steer/row_table.h"

namespace rudder::steer {

Result<std::shared_ptr<const tap::SequenceTaps>> ProgramTable::keep(tap::SequenceTaps taps) {
  RUDDER_TRY_VOID(RowTable::could_ever_fit(limits_, taps.leased()));
  const auto keep_all = [this](std::vector<tap::TapSegment>& segments) {
    for (tap::TapSegment& segment : segments) {
      if (segment.program == nullptr) continue;
      segment.program = programs_.keep(segment.content, std::move(segment.program));
    }
  };
  keep_all(taps.segments);
  if (taps.thoughts) keep_all(taps.thoughts->segments);
  return std::make_shared<const tap::SequenceTaps>(std::move(taps));
}

Result<tap::SequenceTaps> ProgramTable::resolve(const tap::TapsSpec& spec) const {
  tap::SequenceTaps taps;
  taps.needs_whole_prompt = spec.needs_whole_prompt;
  taps.is_controlled = spec.is_controlled;
  taps.is_scheduled = spec.is_scheduled;
  taps.captured = spec.captured;
  RUDDER_TRY(taps.segments, find_all(spec.segments));
  if (spec.thoughts) {
    taps.thoughts = tap::Thoughts{.begin_token = spec.thoughts->begin_token,
                                  .end_token = spec.thoughts->end_token,
                                  .open = spec.thoughts->open,
                                  .segments = {}};
    RUDDER_TRY(taps.thoughts->segments, find_all(spec.thoughts->segments));
  }
  RUDDER_TRY_VOID(RowTable::could_ever_fit(limits_, taps.leased()));
  return taps;
}

Result<std::vector<tap::TapSegment>> ProgramTable::find_all(
    const std::vector<tap::SegmentSpec>& segments) const {
  std::vector<tap::TapSegment> found;
  found.reserve(segments.size());
  for (const tap::SegmentSpec& segment : segments) {
    tap::TapSegment& made =
        found.emplace_back(tap::TapSegment{segment.begin, segment.content, nullptr});
    if (segment.content.none()) continue;
    made.program = programs_.find(segment.content);
    if (made.program == nullptr) {
      return fail(ErrorCode::kUnavailable, "a program of the request's steering is not known",
                  "steering");
    }
  }
  return found;
}

}  // namespace rudder::steer
