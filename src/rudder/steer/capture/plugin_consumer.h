// A consumer that lives in a shared object, behind the C ABI of include/rudder_capture_plugin.h.
// The object is named by the operator alone, loaded once and never unloaded.
#pragma once

#include <memory>
#include <string>

#include "rudder/base/result.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/tap/site.h"

namespace rudder::steer::capture {

// `flag` is "NAME:file=PATH[,key=value...]". An Error names the file.
Result<std::shared_ptr<Consumer>> load_plugin(const std::string& flag,
                                              const tap::Geometry& geometry);

}  // namespace rudder::steer::capture
