// The consumer `response`: values in the answer to the client, or as an event a token when the
// answer streams. Request options:
//   "values": any of ["rows", "means", "norms", "probes"]; default: probes when there are some,
//   else
//             rows. Means are over the captured positions, f32, and come at the end.
//   "dtype":  of rows: that of the activations (default) or "float32"
//   "probes": {name: [floats] | packed | "name of a registered vector"}
//   "measure": of probes: "dot" h.v (default), "projection" h.v/|v|, "cosine" h.v/(|h||v|)
//   "lens":   {"layers", "top"}: the likeliest tokens as the output head reads resid_post there
//   "patterns": {"layers", "heads"?, "keys"?}: attention patterns
//   "dictionary": the name of one, "layer"?, "top" or "features": its features at the row it reads
// The values go to the client in the form that docs/capture.md has.
#pragma once

#include <memory>

#include "rudder/features/feature_reader.h"
#include "rudder/steer/capture/answer_budget.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/feature_ask.h"
#include "rudder/tap/lens.h"
#include "rudder/tap/site.h"

namespace rudder::steer::capture {

// `lens` may be null: it is then refused; `features` and `budget` may not.
std::shared_ptr<Consumer> make_response_consumer(const tap::Geometry& geometry, VectorLookup lookup,
                                                 DictionaryLookup dictionaries,
                                                 std::shared_ptr<tap::Lens> lens,
                                                 std::shared_ptr<features::FeatureReader> features,
                                                 std::shared_ptr<AnswerBudget> budget);

}  // namespace rudder::steer::capture
