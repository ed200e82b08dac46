#include "rudder/server/http/content_coding.h"

#include <fmt/format.h>

#include <boost/algorithm/string/predicate.hpp>
#include <string>
#include <string_view>

#include "rudder/server/http/api_error.h"

namespace rudder::server {
namespace {

constexpr size_t kMaxShownBytes = 32;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The first coding of a list that changes the body; empty where none does.
std::string_view coding_of(std::string_view list) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view coding = trimmed(list.substr(0, comma));
    if (!coding.empty() && !boost::algorithm::iequals(coding, "identity")) return coding;
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return {};
}

}  // namespace

std::optional<HttpResponse> refuse_coded_body(const HttpRequest& request) {
  for (const HttpField& field : request.fields) {
    if (field.name != "content-encoding") continue;
    const std::string_view coding = coding_of(field.value);
    if (coding.empty()) continue;
    HttpResponse response = error_response(http_error(
        415, fmt::format("content-encoding '{}' is not supported: send the body as it is",
                         coding.substr(0, kMaxShownBytes))));
    response.fields.push_back({"accept-encoding", "identity"});
    return response;
  }
  return std::nullopt;
}

}  // namespace rudder::server
