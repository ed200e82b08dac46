#include "bench/decode_window.h"

#include <algorithm>
#include <limits>

namespace rudder::apps {

DecodeWindow decode_window(const std::vector<std::span<const int64_t>>& token_us) {
  int64_t begin_us = std::numeric_limits<int64_t>::min();
  int64_t end_us = std::numeric_limits<int64_t>::max();
  for (const std::span<const int64_t> times : token_us) {
    begin_us = std::max(begin_us, times.front());
    end_us = std::min(end_us, times.back());
  }
  DecodeWindow window;
  if (begin_us >= end_us) return window;
  window.seconds = static_cast<double>(end_us - begin_us) * 1e-6;
  for (const std::span<const int64_t> times : token_us) {
    window.tokens +=
        std::ranges::count_if(times, [&](int64_t us) { return us > begin_us && us <= end_us; });
  }
  return window;
}

}  // namespace rudder::apps
