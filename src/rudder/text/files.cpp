#include "rudder/text/files.h"

#include <fmt/format.h>

#include <fstream>

namespace rudder::text {
namespace {
constexpr uintmax_t kMaxFileBytes = uintmax_t{256} << 20;
}

Result<std::string> read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path, error))) {
    return fail(ErrorCode::kNotFound, "no such file", path.string());
  }
  if (!std::filesystem::is_regular_file(path, error)) {
    return fail(ErrorCode::kCorruptFile, "it is not a regular file", path.string());
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return fail(ErrorCode::kIo, error.message(), path.string());
  if (size > kMaxFileBytes) {
    return fail(ErrorCode::kTooLarge,
                fmt::format("file has {} bytes, the limit is {}", size, kMaxFileBytes),
                path.string());
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return fail(ErrorCode::kIo, "cannot be read", path.string());
  return text;
}

Result<std::string> read_optional_text_file(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (!text && text.error().code == ErrorCode::kNotFound) return std::string();
  return text;
}

}  // namespace rudder::text
