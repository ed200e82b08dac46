// What a config.json says beyond the keys that its architecture reads: names that contradict the
// architecture, and keys that ask for mathematics it has not. Called by read_config; load time.
#pragma once

#include <string_view>

#include "rudder/model/archs/archs.h"

namespace rudder::model {

// model_type is the architecture's, torch_dtype (or dtype) a type that weights may have.
Result<void> check_names(const Architecture& architecture, const weights::HfConfig& config);

// Called when the architecture has read what it reads. A key that it did not ask for and that other
// architectures' mathematics hang on (experts, multipliers, a latent KV, ...) must hold the value
// that means "none"; the error names it. Other keys are named once in the log, except those that no
// forward pass depends on.
Result<void> check_unread_keys(const Architecture& architecture, const weights::HfConfig& config);

// A key that no forward pass depends on, whatever it holds.
bool is_passed_over(std::string_view key);
// Where an architecture leaves it unread: it is such a key, or one that is then refused.
bool has_verdict(std::string_view key);

}  // namespace rudder::model
