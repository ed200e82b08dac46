#include "rudder/server/http/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
// GCC 12 with sanitizers takes an empty boost::optional for an uninitialised value.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <boost/beast/http/basic_parser.hpp>
#pragma GCC diagnostic pop
#include <boost/beast/http/error.hpp>
#include <cstring>
#include <optional>

namespace rudder::server {
namespace {

namespace http = boost::beast::http;
using boost::beast::string_view;
using boost::system::error_code;

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& ch : out) {
    if (ch >= 'A' && ch <= 'Z') ch = static_cast<char>(ch - 'A' + 'a');
  }
  return out;
}

ApiError from_beast(const error_code& ec) {
  if (ec == http::error::body_limit) return http_error(413, "the request body is too large");
  if (ec == http::error::header_limit) return http_error(431, "the request header is too large");
  if (ec == http::error::bad_version)
    return http_error(505, "only HTTP/1.0 and HTTP/1.1 are served");
  return http_error(400, fmt::format("malformed HTTP request: {}", ec.message()));
}

// Whether `bytes`, which begin behind a chunk, have the whole line of the next one's header, and a
// quoted string that begins there does not end there. Beast waits for its end behind the line, and
// counts the chunk's bytes once more whenever bytes come.
bool has_open_quote(std::string_view bytes) {
  constexpr std::string_view kLineEnd = "\r\n";
  if (bytes.starts_with(kLineEnd)) bytes.remove_prefix(kLineEnd.size());
  const size_t end = bytes.find(kLineEnd);
  if (end == std::string_view::npos) return false;
  bool is_open = false;
  for (size_t i = 0; i < end; ++i) {
    if (is_open && bytes[i] == '\\') {
      ++i;
    } else if (bytes[i] == '"') {
      is_open = !is_open;
    }
  }
  return is_open;
}

// Fills an HttpRequest. A refusal of ours is kept in `refusal` and stops Beast with an error code.
class RequestParser final : public http::basic_parser<true> {
 public:
  RequestParser(const HttpLimits& limits, HttpRequest& request)
      : limits_(limits), request_(request) {
    header_limit(static_cast<uint32_t>(limits.max_header_bytes));
    body_limit(limits.max_body_bytes);
  }

  std::optional<ApiError> refusal;
  std::string_view input;  // what it is given

 private:
  // Whether a line that goes on follows the one of the field's name, which lies in the input.
  bool is_folded(std::string_view name) const {
    const size_t end = input.find("\r\n", static_cast<size_t>(name.data() - input.data()));
    const std::string_view next = end == std::string_view::npos ? "" : input.substr(end + 2);
    return next.starts_with(' ') || next.starts_with('\t');
  }

  void refuse(int status, std::string message, error_code& ec) {
    refusal = http_error(status, std::move(message));
    ec = http::error::bad_value;
  }

  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       error_code& ec) override {
    request_.method = std::string(method);
    request_.http_1_1 = version >= 11;
    std::string_view rest(target.data(), target.size());
    if (method == "CONNECT") return refuse(400, "CONNECT is not served", ec);
    if (rest.starts_with("http://")) {  // absolute-form: the authority must not matter
      const size_t slash = rest.find('/', 7);
      rest = slash == std::string_view::npos ? std::string_view("/") : rest.substr(slash);
    }
    if (rest.empty() || (rest[0] != '/' && rest != "*")) {
      return refuse(400, "the request target is neither a path nor an http URL", ec);
    }
    if (rest.find('#') != std::string_view::npos) {
      return refuse(400, "the request target has a fragment", ec);
    }
    const size_t question = rest.find('?');
    request_.path = std::string(rest.substr(0, question));
    if (question != std::string_view::npos) request_.query = std::string(rest.substr(question + 1));
  }

  void on_field_impl(http::field field, string_view name, string_view value,
                     error_code& ec) override {
    if (is_header_done()) {  // a trailer: read and dropped
      if (is_folded(name)) {
        return refuse(400, "malformed HTTP request: a folded trailer field", ec);
      }
      num_trailer_bytes_ += name.size() + value.size();
      if (++num_trailers_ > limits_.max_fields || num_trailer_bytes_ > limits_.max_header_bytes) {
        refuse(431, "the request's trailer is too large", ec);
      }
      return;
    }
    if (request_.fields.size() >= limits_.max_fields) {
      return refuse(431, fmt::format("more than {} header fields", limits_.max_fields), ec);
    }
    if (field == http::field::content_length) {
      if (num_lengths_++ > 0 || value.find(',') != string_view::npos) {
        return refuse(400, "more than one Content-Length", ec);
      }
    } else if (field == http::field::transfer_encoding) {
      if (!boost::beast::iequals(value, "chunked")) {
        return refuse(501, "no Transfer-Encoding but chunked is supported", ec);
      }
      if (!request_.http_1_1) return refuse(400, "Transfer-Encoding in an HTTP/1.0 request", ec);
    } else if (field == http::field::host) {
      if (num_hosts_++ > 0) return refuse(400, "more than one Host", ec);
    } else if (field == http::field::authorization || field == http::field::content_type) {
      // Who reads the last of them would see another key, or no JSON.
      if (!request_.field(lower_case({name.data(), name.size()})).empty()) {
        return refuse(400, fmt::format("more than one {}", std::string_view(name)), ec);
      }
    } else if (field == http::field::connection) {
      asks_to_close_ = asks_to_close_ || http::token_list(value).exists("close");
    } else if (field == http::field::expect) {
      if (!boost::beast::iequals(value, "100-continue")) {
        return refuse(417, "no Expect but 100-continue is supported", ec);
      }
      request_.expect_continue = request_.http_1_1;
    }
    request_.fields.push_back({lower_case({name.data(), name.size()}), std::string(value)});
  }

  void on_header_impl(error_code& ec) override {
    if (request_.http_1_1 && num_hosts_ == 0) return refuse(400, "Host is missing", ec);
    request_.keep_alive = keep_alive() && !asks_to_close_;
  }

  void on_body_init_impl(boost::optional<uint64_t> const&, error_code&) override {}
  size_t on_body_impl(string_view body, error_code&) override {
    request_.body.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, string_view extensions, error_code& ec) override {
    if (extensions.size() > limits_.max_chunk_extension_bytes) {
      refuse(400, "a chunk extension is too long", ec);
    }
  }
  size_t on_chunk_body_impl(uint64_t, string_view body, error_code&) override {
    request_.body.append(body.data(), body.size());
    return body.size();
  }
  void on_finish_impl(error_code&) override {}
  void on_response_impl(int, string_view, int, error_code&) override {}

  const HttpLimits& limits_;
  HttpRequest& request_;
  int num_lengths_ = 0;
  int num_hosts_ = 0;
  bool asks_to_close_ = false;
  size_t num_trailers_ = 0;
  size_t num_trailer_bytes_ = 0;
};

}  // namespace

struct HttpParser::Impl {
  explicit Impl(const HttpLimits& l) : limits(l) {}

  // How long the header is, 0 while its end has not arrived. Looks at each byte once.
  tl::expected<size_t, ApiError> find_header_end(std::string_view bytes);
  tl::expected<size_t, ApiError> put(std::string_view bytes);
  // Takes the whole parts of a body at the front of `bytes`: pieces of its text, headers of chunks,
  // and the last chunk with the trailer behind it.
  tl::expected<size_t, ApiError> put_body(std::string_view bytes);

  const HttpLimits limits;
  HttpRequest request;
  std::optional<RequestParser> parser;
  Stage stage = Stage::kHeader;
  size_t scanned = 0;  // of the header, by find_header_end
  size_t line_start = 0;
};

tl::expected<size_t, ApiError> HttpParser::Impl::find_header_end(std::string_view bytes) {
  const size_t end = std::min(bytes.size(), limits.max_header_bytes);
  while (scanned < end) {
    const char* hit =
        static_cast<const char*>(std::memchr(bytes.data() + scanned, '\n', end - scanned));
    if (hit == nullptr) {
      scanned = end;
      break;
    }
    const size_t at = static_cast<size_t>(hit - bytes.data());
    if (at == 0 || bytes[at - 1] != '\r') {
      return tl::unexpected(http_error(400, "malformed HTTP request: a line ends without CR LF"));
    }
    const char first = bytes[line_start];
    if (line_start > 0 && (first == ' ' || first == '\t')) {
      return tl::unexpected(http_error(400, "malformed HTTP request: a folded header field"));
    }
    const bool empty_line = at == line_start + 1;
    scanned = at + 1;
    line_start = at + 1;
    if (empty_line) return scanned;
  }
  if (bytes.size() >= limits.max_header_bytes) {
    return tl::unexpected(http_error(
        431, fmt::format("the request header is larger than {} bytes", limits.max_header_bytes)));
  }
  return 0;
}

tl::expected<size_t, ApiError> HttpParser::Impl::put(std::string_view bytes) {
  error_code ec;
  parser->input = bytes;
  const size_t used = parser->put(boost::asio::const_buffer(bytes.data(), bytes.size()), ec);
  if (parser->refusal) return tl::unexpected(*parser->refusal);
  if (ec && ec != http::error::need_more) return tl::unexpected(from_beast(ec));
  return used;
}

// A part that is no text has the limit of a header, whether it came whole or is still to end: a
// request must not be refused for how its bytes were cut.
tl::expected<size_t, ApiError> HttpParser::Impl::put_body(std::string_view bytes) {
  const auto too_large = [&] {
    return tl::unexpected(http_error(
        431, fmt::format("the header of a chunk, with the trailer behind the last, is larger than "
                         "{} bytes",
                         limits.max_header_bytes)));
  };
  size_t consumed = 0;
  while (consumed < bytes.size() && !parser->is_done()) {
    const size_t text_before = request.body.size();
    auto used = put(bytes.substr(consumed));
    if (!used) return used;
    if (*used == 0) break;
    if (request.body.size() == text_before && *used > limits.max_header_bytes) {
      return too_large();
    }
    consumed += *used;
  }
  if (parser->is_done()) return consumed;
  if (has_open_quote(bytes.substr(consumed))) {
    return tl::unexpected(
        http_error(400, "malformed HTTP request: a quoted string of a chunk header has no end"));
  }
  if (bytes.size() - consumed > limits.max_header_bytes) return too_large();
  return consumed;
}

HttpParser::HttpParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
HttpParser::~HttpParser() = default;

tl::expected<size_t, ApiError> HttpParser::feed(std::string_view bytes) {
  Impl& p = *impl_;
  if (p.stage == Stage::kDone || bytes.empty()) return 0;
  if (p.stage == Stage::kHeader) {
    // An empty line before a request is passed over (RFC 9112, 2.2).
    if (p.line_start == 0 && bytes[0] == '\r') {
      if (bytes.size() == 1) return 0;
      if (bytes[1] == '\n') return 2;
    }
    auto length = p.find_header_end(bytes);
    if (!length || *length == 0) return length;
    p.parser.emplace(p.limits, p.request);
    auto used = p.put(bytes.substr(0, *length));
    if (!used) return used;
    if (*used != *length || !p.parser->is_header_done()) {
      return tl::unexpected(http_error(400, "malformed HTTP request header"));
    }
    p.stage = p.parser->is_done() ? Stage::kDone : Stage::kBody;
    return used;
  }
  auto consumed = p.put_body(bytes);
  if (consumed && p.parser->is_done()) p.stage = Stage::kDone;
  return consumed;
}

HttpParser::Stage HttpParser::stage() const {
  return impl_->stage;
}

HttpRequest& HttpParser::request() {
  return impl_->request;
}

void HttpParser::reset() {
  impl_->parser.reset();
  impl_->request = HttpRequest();
  impl_->stage = Stage::kHeader;
  impl_->scanned = 0;
  impl_->line_start = 0;
}

}  // namespace rudder::server
