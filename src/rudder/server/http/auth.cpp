#include "rudder/server/http/auth.h"

#include <fmt/format.h>

#include <algorithm>

namespace rudder::server {

bool constant_time_equal(std::string_view presented, std::string_view secret) {
  size_t difference = presented.size() ^ secret.size();
  for (size_t i = 0; i < presented.size(); ++i) {
    const char other = secret.empty() ? '\0' : secret[i % secret.size()];
    difference |= static_cast<unsigned char>(presented[i] ^ other);
  }
  return difference == 0;
}

std::optional<int> ApiKeys::tenant_of(std::string_view authorization,
                                      std::string_view api_key) const {
  if (keys_.empty()) return 0;
  constexpr std::string_view kScheme = "bearer";
  std::string_view presented = authorization;
  const std::string_view scheme = presented.substr(0, kScheme.size());
  const bool is_bearer = std::ranges::equal(scheme, kScheme, {}, [](char ch) {
    return ch >= 'A' && ch <= 'Z' ? static_cast<char>(ch - 'A' + 'a') : ch;
  });
  if (!is_bearer) return authorization.empty() ? tenant_of_key(api_key) : std::nullopt;
  presented.remove_prefix(kScheme.size());
  if (!presented.empty() && presented[0] != ' ') return std::nullopt;
  presented.remove_prefix(std::min(presented.find_first_not_of(' '), presented.size()));
  // Clients that have no key send the scheme alone.
  return tenant_of_key(presented.empty() ? api_key : presented);
}

std::optional<int> ApiKeys::tenant_of_key(std::string_view presented) const {
  std::optional<int> tenant;
  for (size_t i = 0; i < keys_.size(); ++i) {  // all of them, whichever matches
    if (constant_time_equal(presented, keys_[i])) tenant = static_cast<int>(i);
  }
  return tenant;
}

std::string ApiKeys::cache_salt(int tenant, std::string_view client_salt) const {
  if (keys_.size() <= 1) return std::string(client_salt);  // one tenant has nobody to be kept from
  return fmt::format("{}/{}", tenant, client_salt);
}

}  // namespace rudder::server
