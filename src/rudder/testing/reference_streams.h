// Hyper-connections (ops::ConnectStreamsArgs) in double precision, and the faults that public code
// has been found with. Tests only; plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "rudder/ops/stream_args.h"
#include "rudder/testing/reference_ops.h"

namespace rudder::testing {

double reference_sigmoid(double x);

// Rows of several streams [T, n * width] as [T, width] each.
std::vector<Matrix> streams_of(const Matrix& x, int64_t width);

struct ReferenceMap {
  Matrix fn;  // [rows, n * hidden]; empty: there is none
  Matrix base;
  Matrix scale;
};
ReferenceMap to_reference(const ops::StreamMap& map);

enum class StreamFault : uint8_t {
  kNone,
  kUnturned,      // x_j takes c_ji in place of c_ij
  kOtherOrder,    // the map's rows are taken for pre, mix, post
  kExponentials,  // the mix begins with exp in place of softmax + eps
  kNoEps,         // divisions are by sums alone
  kEndsOnRows,    // each time columns are divided before rows
};

// Of one token; what the map has no rows for is empty.
struct ReferenceNumbers {
  std::vector<double> pre;
  std::vector<double> post;
  std::vector<double> mix;  // [n * n]; empty: streams are not mixed
};
ReferenceNumbers reference_numbers(const ops::StreamRule& rule, const ReferenceMap& map,
                                   const std::vector<double>& row,
                                   StreamFault fault = StreamFault::kNone);

// The streams, [T, hidden] each, behind a branch; and what is read of them.
std::vector<Matrix> reference_connect(const ops::StreamRule& rule, const ReferenceMap& map,
                                      const std::vector<Matrix>& streams, const Matrix& branch,
                                      StreamFault fault = StreamFault::kNone);
Matrix reference_collapse(const ops::StreamRule& rule, const ReferenceMap& map,
                          const std::vector<Matrix>& streams);

// The pre of a map, [T, n]; without one those of the mean. And what is read by such numbers.
Matrix reference_pre(const ops::StreamRule& rule, const ReferenceMap& map,
                     const std::vector<Matrix>& streams);
Matrix reference_read(const Matrix& pre, const std::vector<Matrix>& streams);

}  // namespace rudder::testing
