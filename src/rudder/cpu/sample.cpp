#include "rudder/cpu/sample.h"

#include <algorithm>
#include <cmath>

#include "rudder/base/check.h"

namespace rudder::cpu {

void sample_rows(const ops::SampleArgs& args) {
  const int64_t vocab = args.logits.shape[1];
  for (size_t r = 0; r < args.rows.size(); ++r) {
    RUDDER_CHECK(args.rows[r].temperature == 0.0f, "only greedy rows");
    const float* row = args.logits.as<float>() + static_cast<int64_t>(r) * vocab;
    args.tokens[r] = static_cast<int32_t>(std::max_element(row, row + vocab) - row);
  }
}

}  // namespace rudder::cpu
