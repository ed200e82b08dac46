// API keys that stand in files instead of command lines, where every user of the machine reads
// them.
#pragma once

#include <string>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::server {

// One key a line, without the spaces around it; empty lines and those that begin with # are none.
// kIo where the file cannot be read, kCorruptFile where it has no key; `setting` in `where`.
Result<std::vector<std::string>> read_key_file(const std::string& path, const std::string& setting);

}  // namespace rudder::server
