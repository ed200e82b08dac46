// GET /, /docs and /face/{id}: the pages for browsers, embedded in the binary (face/). They are
// public, for they hold nothing: what they show they ask for with the key that their user gives
// them, and /openapi.json is public too.
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "rudder/server/handlers.h"
#include "rudder/server/http/api_error.h"
#include "rudder/server/http/exchange.h"

#define RUDDER_EMBEDDED_FILE(name, symbol) \
  extern "C" const char symbol[];          \
  extern "C" const char symbol##_end[];
#include "face_files.inc"
#undef RUDDER_EMBEDDED_FILE

namespace rudder::server {
namespace {

constexpr std::string_view kPage = "index.html";
constexpr std::string_view kDocs = "docs.html";

struct FaceFile {
  std::string_view name;
  const char* begin;
  const char* end;
};

constexpr FaceFile kFiles[] = {
#define RUDDER_EMBEDDED_FILE(name, symbol) {name, symbol, symbol##_end},
#include "face_files.inc"
#undef RUDDER_EMBEDDED_FILE
};

std::string_view content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

void answer_file(Exchange& exchange, std::string_view name) {
  for (const FaceFile& file : kFiles) {
    if (file.name != name) continue;
    HttpResponse response;
    response.content_type = std::string(content_type(name));
    response.body.assign(file.begin, file.end);
    // Nothing but this server's own files runs, styles or is called, and no other page may frame
    // it. A binary of another version has other files under the same names.
    response.fields = {{"content-security-policy",
                        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
                        "'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                        "frame-ancestors 'none'"},
                       {"referrer-policy", "no-referrer"},
                       {"cache-control", "no-cache"}};
    return exchange.respond(std::move(response));
  }
  exchange.respond(error_response(http_error(404, "there is nothing under this path")));
}

}  // namespace

void handle_page(ServerContext&, const std::shared_ptr<Exchange>& exchange) {
  answer_file(*exchange, kPage);
}

void handle_docs(ServerContext&, const std::shared_ptr<Exchange>& exchange) {
  answer_file(*exchange, kDocs);
}

void handle_page_file(ServerContext&, const std::shared_ptr<Exchange>& exchange) {
  answer_file(*exchange, exchange->path_tail);
}

}  // namespace rudder::server
