#include "rudder/server/http/origin_check.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>

namespace rudder::server {
namespace {

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  for (char& ch : out) {
    if (ch >= 'A' && ch <= 'Z') ch = static_cast<char>(ch - 'A' + 'a');
  }
  return out;
}

// "name:80" and "[::1]:80" without the port, in lower case.
std::string host_name(std::string_view authority) {
  const bool is_bracketed = authority.starts_with('[');
  const size_t end = is_bracketed ? authority.find(']') : authority.find(':');
  return in_lower_case(authority.substr(is_bracketed ? 1 : 0, end - (is_bracketed ? 1 : 0)));
}

bool holds(std::span<const std::string> list, std::string_view text) {
  return std::ranges::any_of(
      list, [&](const std::string& item) { return item == "*" || in_lower_case(item) == text; });
}

bool is_right_host(const OriginRules& rules, std::string_view authority) {
  if (!rules.check_host || authority.empty()) return true;  // HTTP/1.0 need not say
  std::string name = host_name(authority);
  if (name.ends_with('.')) name.pop_back();
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  boost::system::error_code ec;
  boost::asio::ip::make_address(name, ec);
  return !ec || holds(rules.allowed_hosts, name);
}

bool is_right_origin(const OriginRules& rules, std::string_view origin, std::string_view host) {
  if (origin.empty()) return true;
  const size_t scheme_end = origin.find("://");
  if (scheme_end != std::string_view::npos && !host.empty() &&
      in_lower_case(origin.substr(scheme_end + 3)) == in_lower_case(host)) {
    return true;
  }
  return holds(rules.allowed_origins, in_lower_case(origin));
}

}  // namespace

std::optional<ApiError> check_origin(const OriginRules& rules, const HttpRequest& request) {
  const std::string_view host = request.field("host");
  if (!is_right_host(rules, host)) {
    return http_error(421, "this server does not answer to the name in Host (--allowed-hosts)");
  }
  if (!is_right_origin(rules, request.field("origin"), host)) {
    return http_error(403, "requests from pages of this origin are not served (--allowed-origins)");
  }
  return std::nullopt;
}

}  // namespace rudder::server
