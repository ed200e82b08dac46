// The kinds of norms that a model may have, as data. Formulas: ops::NormSpec.
#pragma once

#include <variant>

namespace rudder::model {

struct RmsNorm {};

// What a checkpoint holds of alpha and of the weight (gamma): a number a channel, or one for all.
struct UClipNorm {
  bool alpha_per_channel = true;
  bool weight_per_channel = true;
};

using NormKind = std::variant<RmsNorm, UClipNorm>;

}  // namespace rudder::model
