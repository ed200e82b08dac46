#include "rudder/steer/capture/watch.h"

#include "rudder/features/dictionary.h"
#include "rudder/steer/dot.h"

namespace rudder::steer::capture {

double watch_score(const Watch& watch, std::span<const float> row) {
  if (watch.dictionary == nullptr) return dot(row, watch.vector.values());
  const features::NormedRow normed = features::normed_row(watch.dictionary->norm, row);
  const std::span<const float> encoder = watch.dictionary->encoder_row(watch.feature).values();
  double y = 0;
  for (size_t i = 0; i < encoder.size(); ++i) y += double{encoder[i]} * normed.values[i];
  return watch.dictionary->form(watch.feature).value(y);
}

void StopCount::read(const StopWhen& stop, int32_t position, std::span<const float> row) {
  if (position < next_position_) return;
  next_position_ = position + 1;
  const bool is_above = watch_score(stop.watch, row) > stop.above;
  in_row_ = is_above ? in_row_ + 1 : 0;
}

}  // namespace rudder::steer::capture
