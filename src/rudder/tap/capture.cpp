#include "rudder/tap/capture.h"

namespace rudder::tap {

int64_t record_elements(const CaptureSet& set, const Geometry& geometry,
                        std::vector<int64_t>* offsets) {
  if (offsets != nullptr) offsets->clear();
  int64_t elements = 0;
  const auto append = [&](int64_t width) {
    if (offsets != nullptr) offsets->push_back(elements);
    elements += (width + kCaptureAlign - 1) / kCaptureAlign * kCaptureAlign;
  };
  for (const CapturePoint& captured : set.points) append(geometry.width(captured.point));
  for (const CapturePattern& pattern : set.patterns) append(pattern.elements());
  return elements;
}

}  // namespace rudder::tap
