// A consumer in a shared object, behind the C ABI of include/rudder_capture_plugin.h. Only the
// operator names the object; it is loaded once and never unloaded.
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
