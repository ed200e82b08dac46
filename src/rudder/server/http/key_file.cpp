#include "rudder/server/http/key_file.h"

#include <fmt/format.h>

#include <fstream>

#include "rudder/server/http/plain_file.h"

namespace rudder::server {

Result<std::vector<std::string>> read_key_file(const std::string& path,
                                               const std::string& setting) {
  RUDDER_TRY_VOID(check_plain_file(path, setting));
  std::ifstream file(path);
  if (!file) return fail(ErrorCode::kIo, fmt::format("cannot read {}", path), setting);
  std::vector<std::string> keys;
  constexpr std::string_view kSpace = " \t\r";
  for (std::string line; std::getline(file, line);) {
    const size_t begin = line.find_first_not_of(kSpace);
    if (begin == std::string::npos || line[begin] == '#') continue;
    keys.push_back(line.substr(begin, line.find_last_not_of(kSpace) + 1 - begin));
  }
  if (file.bad()) return fail(ErrorCode::kIo, fmt::format("cannot read {}", path), setting);
  if (keys.empty()) {
    return fail(ErrorCode::kCorruptFile, fmt::format("there is no key in {}", path), setting);
  }
  return keys;
}

}  // namespace rudder::server
