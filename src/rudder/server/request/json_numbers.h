// Reads numbers out of JSON values. Any thread.
#pragma once

namespace rudder::server {

// The double that is written as the float is: 0.8 of 0.8f, not 0.800000011920929.
double as_written(float value);

}  // namespace rudder::server
