// The consumer `kept`: keeps a request's captured rows in memory, under the request's id, so that
// later requests can patch them in (docs/steering.md).
#pragma once

#include <memory>

#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/kept_rows.h"

namespace rudder::steer::capture {

std::shared_ptr<Consumer> make_kept_consumer(std::shared_ptr<KeptRows> rows);

}  // namespace rudder::steer::capture
