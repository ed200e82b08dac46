#include "rudder/engine/watched_rows.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "rudder/steer/capture/consumer.h"
#include "rudder/tensor/dtype.h"

namespace rudder::engine {
namespace {

void read_row(const tap::CapturedRows& rows, const tap::CapturedToken& token,
              const steer::capture::CaptureSpec& spec, OpenChoice& choice,
              std::vector<float>& row) {
  if (rows.data == nullptr) {
    choice.lost_row = true;
    return;
  }
  const steer::capture::StopWhen& stop = *spec.stop_when;
  const size_t item_bytes = tensor::dtype_bytes(rows.dtype);
  const auto width = static_cast<size_t>(spec.stop_width);
  const auto begin = static_cast<size_t>(token.begin + spec.stop_offset);
  row.resize(width);
  const auto* bytes = static_cast<const std::byte*>(rows.data) + begin * item_bytes;
  steer::capture::decode_row({bytes, width * item_bytes}, rows.dtype, row);
  choice.stop_count.read(stop, token.position, row);
}

}  // namespace

void read_watched_rows(const step::StepResult& result,
                       const std::vector<sched::CapturedSequence>& captured,
                       const RequestTable& requests) {
  std::vector<float> row;
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
