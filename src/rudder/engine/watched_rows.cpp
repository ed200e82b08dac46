#include "rudder/engine/watched_rows.h"

#include "rudder/steer/capture/consumer.h"

namespace rudder::engine {
namespace {

void read_row(const tap::CapturedRows& rows, const tap::CapturedToken& token,
              const steer::capture::CaptureSpec& spec, OpenChoice& choice,
              std::vector<float>& row) {
  if (rows.data == nullptr) {
    choice.lost_row = true;
    return;
  }
  row.resize(static_cast<size_t>(spec.stop_width));
  steer::capture::decode_row(rows, token.begin + spec.stop_offset, spec.stop_dtype, row);
  choice.stop_count.read(*spec.stop_when, token.position, row);
}

}  // namespace

void read_watched_rows(const step::StepResult& result,
                       const std::vector<sched::CapturedSequence>& captured,
                       const RequestTable& requests, std::vector<float>& row) {
  for (const sched::CapturedSequence& one : captured) {
    const RequestTable::Target* const target = requests.target(one.id);
    if (target == nullptr) continue;
    OpenRequest& request = *target->request;
    const steer::capture::CaptureSpec* const spec = request.taps.capture.get();
    if (spec == nullptr || !spec->stop_when) continue;
    OpenChoice& choice = request.choices[static_cast<size_t>(target->choice)];
    for (const tap::CapturedToken& token : result.captured->tokens) {
      if (token.seq != one.seq || token.position < request.prompt_tokens) continue;
      read_row(*result.captured, token, *spec, choice, row);
    }
  }
}

}  // namespace rudder::engine
