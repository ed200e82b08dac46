#include "rudder/tap/capture.h"

namespace rudder::tap {

int64_t record_elements(const CaptureSet& set, const Geometry& geometry,
                        std::vector<int64_t>* offsets) {
  if (offsets != nullptr) offsets->clear();
  int64_t elements = 0;
  for (const CapturePoint& captured : set.points) {
    if (offsets != nullptr) offsets->push_back(elements);
    const int64_t width = geometry.width(captured.point);
    elements += (width + kCaptureAlign - 1) / kCaptureAlign * kCaptureAlign;
  }
  return elements;
}

}  // namespace rudder::tap
