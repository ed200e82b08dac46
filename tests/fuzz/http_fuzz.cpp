// A connection's bytes are the same requests however they arrive, and none passes a limit.
#include <vector>

#include "require.h"
#include "rudder/server/http/http_parser.h"

namespace rudder::fuzz {
namespace {

using server::HttpLimits;
using server::HttpParser;
using server::HttpRequest;

constexpr HttpLimits kHttpLimits = {.max_header_bytes = 2048,
                                    .max_fields = 16,
                                    .max_chunk_extension_bytes = 32,
                                    .max_body_bytes = 1024};
constexpr size_t kMaxRequests = 4;

struct HttpOutcome {
  std::vector<HttpRequest> requests;
  bool refused = false;
};

// `piece` says how long the next piece is.
template <typename Piece>
HttpOutcome read_pieces(std::string_view bytes, Piece piece) {
  HttpParser parser(kHttpLimits);
  HttpOutcome outcome;
  std::string pending;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = piece();
    pending += bytes.substr(at, length);
    at += length;
    while (!pending.empty() && outcome.requests.size() < kMaxRequests) {
      const auto used = parser.feed(pending);
      if (!used) {
        RUDDER_CHECK(used.error().status >= 400 && used.error().status < 600);
        outcome.refused = true;
        return outcome;
      }
      RUDDER_CHECK(*used <= pending.size());
      pending.erase(0, *used);
      if (parser.stage() == HttpParser::Stage::kDone) {
        outcome.requests.push_back(parser.request());
        parser.reset();
      } else if (*used == 0) {
        break;
      }
    }
  }
  return outcome;
}

void require_in_limits(const HttpRequest& request) {
  RUDDER_CHECK(request.fields.size() <= kHttpLimits.max_fields);
  RUDDER_CHECK(request.body.size() <= kHttpLimits.max_body_bytes);
  size_t head = request.method.size() + request.path.size() + request.query.size();
  for (const auto& field : request.fields) head += field.name.size() + field.value.size();
  RUDDER_CHECK(head <= kHttpLimits.max_header_bytes);
}

void require_same_requests(const HttpOutcome& a, const HttpOutcome& b) {
  RUDDER_CHECK(a.refused == b.refused && a.requests.size() == b.requests.size(),
               "{} requests, refused {}; in pieces {}, {}", a.requests.size(), a.refused,
               b.requests.size(), b.refused);
  for (size_t i = 0; i < a.requests.size(); ++i) {
    const HttpRequest& x = a.requests[i];
    const HttpRequest& y = b.requests[i];
    RUDDER_CHECK(x.method == y.method && x.path == y.path && x.query == y.query &&
                 x.body == y.body);
    RUDDER_CHECK(x.http_1_1 == y.http_1_1 && x.keep_alive == y.keep_alive &&
                 x.expect_continue == y.expect_continue);
    RUDDER_CHECK(std::ranges::equal(x.fields, y.fields, [](const auto& f, const auto& g) {
      return f.name == g.name && f.value == g.value;
    }));
  }
}

}  // namespace

void fuzz_http(std::string_view input) {
  if (input.size() > 8192) return;
  auto choices = choices_of(input);
  const HttpOutcome whole = read_pieces(input, [&] { return std::max<size_t>(input.size(), 1); });
  for (const HttpRequest& request : whole.requests) require_in_limits(request);
  require_same_requests(whole, read_pieces(input, [] { return size_t{1}; }));
  require_same_requests(whole, read_pieces(input, [&] { return size_t{1 + choices() % 40}; }));
}

}  // namespace rudder::fuzz
