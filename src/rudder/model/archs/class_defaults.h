// Keys that a config.json leaves out are those of transformers' configuration class: an exporter
// may write only what differs from it. Each architecture has the defaults of its class as a JSON
// object (held to tests/golden/configs.json); those of AsyncT are its own. Load time, one thread.
#pragma once

#include <string_view>

#include "rudder/base/result.h"
#include "rudder/weights/hf_config.h"

namespace rudder::model {

// `config` with the keys of `defaults` that it does not have. A null that the class would not take
// is refused by its key; one that it takes stays: the mechanism is off.
Result<weights::HfConfig> with_class_defaults(const weights::HfConfig& config,
                                              std::string_view defaults);

}  // namespace rudder::model
