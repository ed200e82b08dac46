#include "rudder/steer/program_table.h"

#include <utility>

#include "rudder/steer/row_table.h"

namespace rudder::steer {

Result<std::shared_ptr<const tap::SequenceTaps>> ProgramTable::keep(tap::SequenceTaps taps) {
  RUDDER_TRY_VOID(RowTable::could_ever_fit(limits_, taps.segments));
  for (tap::TapSegment& segment : taps.segments) {
    if (segment.program == nullptr) continue;
    segment.program = programs_.keep(segment.content, std::move(segment.program));
  }
  return std::make_shared<const tap::SequenceTaps>(std::move(taps));
}

Result<tap::SequenceTaps> ProgramTable::resolve(const tap::TapsSpec& spec) const {
  tap::SequenceTaps taps;
  taps.needs_whole_prompt = spec.needs_whole_prompt;
  taps.is_scheduled = spec.is_scheduled;
  taps.captured = spec.captured;
  taps.segments.reserve(spec.segments.size());
  for (const tap::SegmentSpec& segment : spec.segments) {
    tap::TapSegment& made =
        taps.segments.emplace_back(tap::TapSegment{segment.begin, segment.content, nullptr});
    if (segment.content.none()) continue;
    made.program = programs_.find(segment.content);
    if (made.program == nullptr) {
      return fail(ErrorCode::kUnavailable, "a program of the request's steering is not known",
                  "steering");
    }
  }
  RUDDER_TRY_VOID(RowTable::could_ever_fit(limits_, taps.segments));
  return taps;
}

}  // namespace rudder::steer
