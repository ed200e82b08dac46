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
  const auto element = static_cast<int64_t>(tensor::dtype_bytes(geometry.dtype));
  for (const CapturePoint& captured : set.points) {
    append((geometry.row_bytes(captured.point) + element - 1) / element);
  }
  for (const CapturePattern& pattern : set.patterns) append(pattern.elements());
  return elements;
}

}  // namespace rudder::tap
