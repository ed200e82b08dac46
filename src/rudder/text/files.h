// Reading the small text files of a model folder. Used by the loaders in this room, at load only.
#pragma once

#include <filesystem>
#include <string>

#include "rudder/base/result.h"

namespace rudder::text {

// The whole file; kNotFound if there is none, kTooLarge above 256 MiB, kIo otherwise.
Result<std::string> read_text_file(const std::filesystem::path& path);
// As above, with an empty string for a file that does not exist.
Result<std::string> read_optional_text_file(const std::filesystem::path& path);

}  // namespace rudder::text
