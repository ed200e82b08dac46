// The version of the program, printed by /version and --version.
#pragma once

namespace rudder::apps {

inline constexpr const char* kVersion = RUDDER_VERSION;

}  // namespace rudder::apps
