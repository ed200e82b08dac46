// The reader of features that encodes on the thread of its caller, in fp32: where rows are the
// host's anyway (the CPU backend), and the reference of the device's. It reads dictionaries where
// they lie.
#pragma once

#include <memory>

#include "rudder/features/feature_reader.h"

namespace rudder::steer::capture {

std::shared_ptr<features::FeatureReader> make_host_feature_reader();

}  // namespace rudder::steer::capture
