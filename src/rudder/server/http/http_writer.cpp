#include "rudder/server/http/http_writer.h"

#include <fmt/format.h>

#include <iterator>

namespace rudder::server {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return status < 500 ? "Error" : "Internal Server Error";
  }
}

}  // namespace

void append_response_head(std::string& out, const HttpResponse& response, BodyFraming framing,
                          bool keep_alive) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "HTTP/1.1 {} {}\r\nserver: rudder\r\nx-content-type-options: nosniff\r\n",
                 response.status, reason(response.status));
  if (framing != BodyFraming::kNone) {
    fmt::format_to(to, "content-type: {}\r\n", response.content_type);
  }
  for (const HttpField& field : response.fields) {
    fmt::format_to(to, "{}: {}\r\n", field.name, field.value);
  }
  if (framing == BodyFraming::kLength) {
    fmt::format_to(to, "content-length: {}\r\n", response.text().size());
  } else if (framing == BodyFraming::kChunked) {
    out += "transfer-encoding: chunked\r\n";
  }
  out += keep_alive ? "connection: keep-alive\r\n\r\n" : "connection: close\r\n\r\n";
}

void append_chunk_head(std::string& out, size_t bytes) {
  fmt::format_to(std::back_inserter(out), "{:x}\r\n", bytes);
}

}  // namespace rudder::server
