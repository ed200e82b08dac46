// What keys of cached prefixes depend on where they outlive the process (docs/tiers.md), and which
// settings go together with tiers. Pure functions but for key_secret; any thread.
#pragma once

#include <string>

#include "model_session.h"
#include "rudder/base/result.h"
#include "rudder/ops/device.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::apps {

// Of the bytes that a model's weights are: files of cached prefixes outlive a model that is
// replaced under its name. Every byte of them, all that the configuration says, the device that
// computes (ops::Device::name: another rounds in another way, and lays keys and values out in
// another) and whether rounding hangs on the batch. Empty where nothing outlives it.
Result<std::string> fingerprint(const SessionSettings& settings,
                                const weights::Checkpoint& checkpoint, const ops::Device& device);

// With files of cached prefixes, keys are equal after a restart: under the secret that the settings
// give, or the folder's own. Empty: every process draws one.
Result<std::string> key_secret(const SessionSettings& settings);

// An Error names the setting: what does not go together, or more host memory than there is.
Result<void> check_tiers(const SessionSettings& settings);

}  // namespace rudder::apps
