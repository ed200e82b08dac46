// Which scales of channels a model's activations on a text suggest, for `rudder quantise`
// (model/channel_scales.h). Main thread.
#pragma once

#include <string>

#include "model_session.h"
#include "rudder/base/result.h"
#include "rudder/model/channel_scales.h"

namespace rudder::apps {

struct Calibration {
  model::ChannelScales scales;
  int num_groups = 0;  // of products that read the same rows
  int num_scaled = 0;
  double error = 0;  // squared, of these products' outputs on the text, over that without scales
};

// Runs windows of the text file through the model, captures what products read, and searches.
// kInvalidArgument: the text is too short; kUnsupported, with the field: no product of the model
// has scales.
Result<Calibration> calibrate(const std::string& model, SessionSettings settings,
                              const model::QuantiseScheme& scheme, const std::string& text_file);

}  // namespace rudder::apps
