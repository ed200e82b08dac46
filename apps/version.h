// The version of the program, as /version and --version say it.
#pragma once

namespace rudder::apps {

inline constexpr const char* kVersion = RUDDER_VERSION;

}  // namespace rudder::apps
