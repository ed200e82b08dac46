// Files that a setting names: read at start, and again on SIGHUP, so that nothing may hang there.
#pragma once

#include <string>

#include "rudder/base/result.h"

namespace rudder::server {

// Whether reading the file cannot wait: a regular one, or a pipe that this process was given open
// ("<(...)" of a shell). A named pipe would wait for somebody who writes. `setting` is in `where`.
Result<void> check_plain_file(const std::string& path, const std::string& setting);

}  // namespace rudder::server
