// Gated streams (ops::GateStreamsArgs) in double precision, and the faults that a port of them may
// have. Tests only; plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/ops/stream_args.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

struct ReferenceStreamGate {
  Matrix norm;
  double eps = 0;
  Matrix down;  // these two of a read
  Matrix up;
  Matrix inject;  // of a write
};
ReferenceStreamGate to_reference(const ops::StreamGate& gate);

enum class GateFault : uint8_t {
  kNone,
  kNormOfAll,    // one norm of all streams in place of one each
  kRawValues,    // what is summed is not normed
  kUnshared,     // products are not divided by the number of streams
  kSum,          // the sum of the streams in place of their mean
  kHalfWritten,  // the branch is written by a sigmoid in place of two
};

// What a branch reads of streams [T, hidden] each, and the streams behind one.
Matrix reference_gated_read(const ReferenceStreamGate& gate, const std::vector<Matrix>& streams,
                            GateFault fault = GateFault::kNone);
std::vector<Matrix> reference_gated_write(const ReferenceStreamGate& gate,
                                          const std::vector<Matrix>& streams, const Matrix& branch,
                                          GateFault fault = GateFault::kNone);

}  // namespace rudder::testing
