// Hashes of a file's bytes, as the hub names them. Any thread; no state is shared.
#pragma once

#include <functional>
#include <string>

#include "rudder/hub/listing.h"

namespace rudder::hub {

// The hash of the file at `path`, lower-case hexadecimal. `on_bytes` hears of each piece that was
// read, and stops the work with false (kCancelled). kIo.
Result<std::string> digest_file(const std::string& path, DigestKind kind,
                                const std::function<bool(size_t bytes)>& on_bytes = {});

}  // namespace rudder::hub
