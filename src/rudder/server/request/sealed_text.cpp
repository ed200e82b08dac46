#include "rudder/server/request/sealed_text.h"

#include <cstddef>
#include <span>

#include "rudder/base/utf8.h"
#include "rudder/steer/base64.h"
#include "rudder/steer/capture/base64.h"

namespace rudder::server {

std::string seal_text(std::string_view mark, std::string_view text) {
  if (text.empty()) return "";
  std::string sealed(mark);
  steer::capture::append_base64(sealed, std::as_bytes(std::span(text)));
  return sealed;
}

std::optional<std::string> open_sealed(std::string_view mark, std::string_view sealed) {
  if (!sealed.starts_with(mark)) return std::nullopt;
  sealed.remove_prefix(mark.size());
  const std::optional<size_t> bytes = steer::base64_bytes(sealed);
  if (!bytes) return std::nullopt;
  std::string text(*bytes, '\0');
  if (!steer::decode_base64(sealed, std::as_writable_bytes(std::span(text)))) return std::nullopt;
  return to_valid_utf8(text);
}

}  // namespace rudder::server
