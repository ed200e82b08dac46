#include "rudder/hub/http_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "rudder/base/contain.h"
#include "rudder/hub/curl_api.h"

namespace rudder::hub {
namespace {

constexpr int kMaxRedirects = 10;
constexpr size_t kMaxHeadBytes = size_t{256} << 10;
constexpr size_t kMaxErrorBody = size_t{64} << 10;  // what a refusal says
constexpr long kConnectTimeoutS = 10;               // NOLINT(google-runtime-int): libcurl's type

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The three digits of a status line; 0 where there are none.
int parse_status(std::string_view text) {
  int status = 0;
  std::from_chars(text.data(), text.data() + text.size(), status);
  return status;
}

tl::unexpected<Error> bad_address(std::string message) {
  return fail(ErrorCode::kInvalidArgument, std::move(message), "hub");
}

// An address that libcurl has taken apart.
class Address {
 public:
  static Result<Address> parse(const std::string& text) {
    RUDDER_TRY(const CurlApi* const curl, load_curl());
    Address address(curl);
    if (curl->url_set(address.url_.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
      return bad_address(fmt::format("'{}' is no address", text));
    }
    return address;
  }

  Result<void> go_to(const std::string& location) {
    if (curl_->url_set(url_.get(), CURLUPART_URL, location.c_str(), 0) == CURLUE_OK) return {};
    return bad_address(fmt::format("the hub redirects to '{}', which is no address", location));
  }

  std::string part(CURLUPart part) const {
    char* text = nullptr;
    if (curl_->url_get(url_.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
    std::string out = text;
    curl_->free_text(text);
    return out;
  }

 private:
  explicit Address(const CurlApi* curl) : curl_(curl), url_(curl->url_new(), curl->url_free) {}

  const CurlApi* curl_;
  std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> url_;
};

bool is_web(std::string_view scheme) {
  return scheme == "https" || scheme == "http";
}

}  // namespace

std::string_view HttpHead::field(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return {};
}

Result<bool> is_same_origin(const std::string& a, const std::string& b) {
  RUDDER_TRY(const Address left, Address::parse(a));
  RUDDER_TRY(const Address right, Address::parse(b));
  for (const CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
    if (lower_case(left.part(part)) != lower_case(right.part(part))) return false;
  }
  return true;
}

Result<std::string> resolve_redirect(const std::string& base, const std::string& location) {
  RUDDER_TRY(Address address, Address::parse(base));
  const std::string before = lower_case(address.part(CURLUPART_SCHEME));
  RUDDER_TRY_VOID(address.go_to(location));
  const std::string after = lower_case(address.part(CURLUPART_SCHEME));
  if (!is_web(after)) {
    return bad_address(
        fmt::format("the hub redirects to an address of '{}'; only http and https "
                    "are followed",
                    after));
  }
  if (before == "https" && after == "http") {
    return bad_address("the hub redirects from https to http, which is not followed");
  }
  return address.part(CURLUPART_URL);
}

// One transfer of one address: what libcurl's callbacks write to.
struct HttpClient::Impl {
  const CurlApi* curl;
  const HubSettings* settings;
  CURL* easy = nullptr;

  HttpHead head;
  size_t head_bytes = 0;
  std::string body;
  size_t max_body = 0;
  const BodySink* sink = nullptr;  // null: the body is gathered
  bool head_told = false;
  bool has_enough = false;
  std::optional<Error> error;

  Impl(const CurlApi* api, const HubSettings* with)
      : curl(api), settings(with), easy(api->easy_init()) {}
  ~Impl() {
    if (easy != nullptr) curl->easy_cleanup(easy);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  bool streams() const { return sink != nullptr && head.is_success(); }

  bool stop_with(Error why) {
    error = std::move(why);
    return false;
  }

  bool take_head_line(std::string_view line) {
    head_bytes += line.size();
    if (head_bytes > kMaxHeadBytes) {
      return stop_with({ErrorCode::kTooLarge, "the hub's answer has too long a head", "hub"});
    }
    if (line.starts_with("HTTP/")) {  // a further one follows 1xx and a proxy's answer
      head.fields.clear();
      const size_t space = line.find(' ');
      head.status = space == std::string_view::npos ? 0 : parse_status(line.substr(space + 1));
      return true;
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return true;
    head.fields.emplace_back(lower_case(line.substr(0, colon)),
                             std::string(trimmed(line.substr(colon + 1))));
    return true;
  }

  bool tell_head() {
    if (head_told || !streams()) return true;
    head_told = true;
    Result<void> taken = sink->on_head(head);
    return taken ? true : stop_with(std::move(taken.error()));
  }

  bool take_bytes(std::string_view bytes) {
    if (streams()) {
      if (!tell_head()) return false;
      Result<bool> more = sink->on_bytes(bytes);
      if (!more) return stop_with(std::move(more.error()));
      has_enough = !*more;
      return *more;
    }
    if (body.size() + bytes.size() <= max_body) {
      body.append(bytes);
      return true;
    }
    if (!head.is_success()) {  // its head says what is wanted
      has_enough = true;
      return false;
    }
    return stop_with(
        {ErrorCode::kTooLarge, fmt::format("the hub's answer has over {} bytes", max_body), "hub"});
  }

  // Nothing may be thrown through libcurl: it becomes the transfer's error.
  template <typename Take>
  size_t taken(size_t bytes, const Take& take) {
    const Result<bool> goes_on = contain([&] { return Result<bool>(take()); });
    if (!goes_on) stop_with(goes_on.error());
    return goes_on && *goes_on ? bytes : bytes + 1;
  }

  static size_t on_head_line(char* data, size_t size, size_t count, void* self) {
    const std::string_view line(data, size * count);
    auto* const impl = static_cast<Impl*>(self);
    return impl->taken(line.size(), [&] { return impl->take_head_line(line); });
  }

  static size_t on_body(char* data, size_t size, size_t count, void* self) {
    const std::string_view bytes(data, size * count);
    auto* const impl = static_cast<Impl*>(self);
    return impl->taken(bytes.size(), [&] { return impl->take_bytes(bytes); });
  }

  Result<HttpAnswer> run(const std::string& first_url, std::optional<ByteRange> range);
  Result<void> run_once(const std::string& url, std::optional<ByteRange> range);
};

Result<void> HttpClient::Impl::run_once(const std::string& url, std::optional<ByteRange> range) {
  head = {.url = url};
  head_bytes = 0;
  body.clear();
  head_told = false;
  has_enough = false;
  error.reset();
  curl->easy_reset(easy);
  RUDDER_TRY(const bool is_hub, is_same_origin(url, settings->endpoint));
  curl_slist* fields = curl->slist_append(nullptr, "Accept-Encoding: identity");
  if (is_hub && !settings->token.empty()) {
    fields = curl->slist_append(fields,
                                fmt::format("Authorization: Bearer {}", settings->token).c_str());
  }
  const auto set = [&](CURLoption option, auto value) { curl->easy_setopt(easy, option, value); };
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_FOLLOWLOCATION, 0L);
  set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));  // NOLINT(google-runtime-int)
  set(CURLOPT_HTTPHEADER, fields);
  set(CURLOPT_USERAGENT, settings->user_agent.c_str());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME,
      static_cast<long>(settings->timeout_s));  // NOLINT(google-runtime-int)
  set(CURLOPT_SSLVERSION,
      static_cast<long>(CURL_SSLVERSION_TLSv1_2));  // NOLINT(google-runtime-int)
  if (!settings->certificates.empty()) set(CURLOPT_CAINFO, settings->certificates.c_str());
  if (!settings->plain_proxy.empty() && url.starts_with("http://")) {
    set(CURLOPT_PROXY, settings->plain_proxy.c_str());
  }
  set(CURLOPT_HEADERFUNCTION, &Impl::on_head_line);
  set(CURLOPT_HEADERDATA, static_cast<void*>(this));
  set(CURLOPT_WRITEFUNCTION, &Impl::on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(this));
  const std::string span = range ? fmt::format("{}-{}", range->first, range->last) : "";
  if (range) set(CURLOPT_RANGE, span.c_str());
  std::array<char, CURL_ERROR_SIZE> detail = {};
  set(CURLOPT_ERRORBUFFER, detail.data());
  const CURLcode code = curl->easy_perform(easy);
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
  curl->slist_free_all(fields);
  if (error) return tl::unexpected<Error>(*error);
  if (code == CURLE_OK || has_enough) return {};
  const char* why = detail[0] != '\0' ? detail.data() : curl->easy_strerror(code);
  const bool is_certificate =
      code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
  return fail(is_certificate ? ErrorCode::kUnauthorized : ErrorCode::kUnavailable, why, "hub");
}

Result<HttpAnswer> HttpClient::Impl::run(const std::string& first_url,
                                         std::optional<ByteRange> range) {
  std::string url = first_url;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    RUDDER_TRY_VOID(run_once(url, range));
    if (!is_redirect(head.status)) {
      if (!tell_head()) return tl::unexpected<Error>(*error);  // a success without a body
      return HttpAnswer{.head = std::move(head), .body = std::move(body)};
    }
    const std::string location(head.field("location"));
    if (location.empty()) return bad_address("the hub redirects without saying where to");
    RUDDER_TRY(url, resolve_redirect(url, location));
  }
  return bad_address(fmt::format("the hub redirects over {} times", kMaxRedirects));
}

HttpClient::HttpClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpClient::~HttpClient() = default;

Result<std::unique_ptr<HttpClient>> HttpClient::create(const HubSettings& settings) {
  RUDDER_TRY(const CurlApi* const curl, load_curl());
  auto impl = std::make_unique<Impl>(curl, &settings);
  if (impl->easy == nullptr) {
    return fail(ErrorCode::kUnavailable, "libcurl makes no connection", "hub");
  }
  return std::unique_ptr<HttpClient>(new HttpClient(std::move(impl)));
}

Result<HttpAnswer> HttpClient::get(const std::string& url, size_t max_body) {
  impl_->sink = nullptr;
  impl_->max_body = max_body;
  return impl_->run(url, std::nullopt);
}

Result<HttpAnswer> HttpClient::stream(const std::string& url, std::optional<ByteRange> range,
                                      const BodySink& sink) {
  impl_->sink = &sink;
  impl_->max_body = kMaxErrorBody;
  return impl_->run(url, range);
}

}  // namespace rudder::hub
