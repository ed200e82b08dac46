#include "rudder/hub/hub_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <ctime>

namespace rudder::hub {
namespace {

constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kMaxWaitS = 24 * 3600;

// A whole number; one that no number holds is the largest.
std::optional<int64_t> seconds_in_front(std::string_view text) {
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (end == text.data() || seconds < 0 || text.starts_with('-')) return std::nullopt;
  return error == std::errc::result_out_of_range ? kMaxWaitS : seconds;
}

// A date of HTTP, as of RFC 9110 5.6.7: "Sun, 06 Nov 1994 08:49:37 GMT".
std::optional<int64_t> seconds_until(std::string_view date, int64_t now_s) {
  std::tm parts = {};
  const std::string text(date);
  const char* const end = strptime(text.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::max<int64_t>(timegm(&parts) - now_s, 0);
}

std::optional<int64_t> wait_of_seconds(std::optional<int64_t> seconds) {
  if (!seconds) return std::nullopt;
  return std::min(*seconds, kMaxWaitS) * kSecondUs;
}

// What the hub itself says, as far as it may stand in a terminal.
std::string said(const HttpAnswer& answer) {
  std::string text(answer.head.field("x-error-message"));
  std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (text.size() > 300) text.resize(300);
  return text.empty() ? text : fmt::format(" (the hub says: {})", text);
}

std::string how_to_log_in(const HubSettings& settings) {
  return fmt::format(
      "set HF_TOKEN to a token of {}/settings/tokens, or log in with `hf auth login`",
      settings.endpoint);
}

std::string whose_token(const HubSettings& settings) {
  return fmt::format("the account of the token in {}", settings.token_source);
}

Error gated(const AskedFor& asked, const HubSettings& settings) {
  const std::string page = fmt::format("{}/{}", settings.endpoint, asked.repository);
  return {
      ErrorCode::kUnauthorized,
      settings.token.empty()
          ? fmt::format("{} is gated: its owners give access to accounts; ask for it on {}, then "
                        "{}",
                        asked.repository, page, how_to_log_in(settings))
          : fmt::format("{} is gated, and {} has no access to it (yet); ask for it on {}",
                        asked.repository, whose_token(settings), page),
      "model"};
}

Error missing(const AskedFor& asked, const HubSettings& settings) {
  return {ErrorCode::kNotFound,
          settings.token.empty()
              ? fmt::format("{} has no repository {} that all may see; check the name; if it is "
                            "private or gated, {}",
                            settings.endpoint, asked.repository, how_to_log_in(settings))
              : fmt::format("{} has no repository {} that {} may see; check the name",
                            settings.endpoint, asked.repository, whose_token(settings)),
          "model"};
}

}  // namespace

bool is_passing(int status) {
  return status == 408 || status == 429 || status >= 500;
}

Error describe_refusal(const HttpAnswer& answer, const AskedFor& asked,
                       const HubSettings& settings) {
  const int status = answer.head.status;
  const std::string_view code = answer.head.field("x-error-code");
  const std::string_view message = answer.head.field("x-error-message");
  if (code == "GatedRepo") return gated(asked, settings);
  if (message == "Access to this resource is disabled." || status == 451) {
    return {ErrorCode::kUnavailable,
            fmt::format("{} is disabled on the hub{}", asked.repository, said(answer)), "model"};
  }
  if (code == "RevisionNotFound") {
    return {ErrorCode::kNotFound,
            fmt::format("{} has no revision '{}'; its branches and tags are on {}/{}/tree/main",
                        asked.repository, asked.revision, settings.endpoint, asked.repository),
            "revision"};
  }
  if (code == "EntryNotFound" || (status == 404 && code.empty() && !asked.path.empty())) {
    return {ErrorCode::kNotFound,
            fmt::format("{} lists {} and does not have it", asked.repository, asked.path), "hub"};
  }
  if (status == 401 && !settings.token.empty() && code != "RepoNotFound") {
    return {ErrorCode::kUnauthorized,
            fmt::format("the hub does not take the token in {}: it is wrong, or it has expired; {}",
                        settings.token_source, how_to_log_in(settings)),
            "token"};
  }
  if (code == "RepoNotFound" || status == 401 || status == 404) return missing(asked, settings);
  if (status == 403) {
    return {
        ErrorCode::kUnauthorized,
        fmt::format("the hub forbids {}{}; a token may lack the right to read it (a fine-grained "
                    "one names its repositories)",
                    asked.path.empty() ? asked.repository : asked.path, said(answer)),
        "model"};
  }
  if (status == 407) {
    return {ErrorCode::kUnauthorized,
            "the proxy on the way to the hub answers 407: it wants a name and a password, which go "
            "into its address, as http://NAME:PASSWORD@HOST:PORT",
            "proxy"};
  }
  if (status == 429) {
    return {ErrorCode::kOverloaded,
            fmt::format("the hub has had too many requests from here{}; try again later{}",
                        said(answer),
                        settings.token.empty()
                            ? ", or log in, which allows more: " + how_to_log_in(settings)
                            : ""),
            "hub"};
  }
  return {ErrorCode::kUnavailable,
          fmt::format("the hub answers {} for {}{}", status,
                      asked.path.empty() ? asked.repository : asked.path, said(answer)),
          "hub"};
}

std::optional<int64_t> wait_us_of(const HttpHead& head, int64_t now_s) {
  if (const std::string_view text = head.field("retry-after"); !text.empty()) {
    const std::optional<int64_t> seconds = seconds_in_front(text);
    return wait_of_seconds(seconds ? seconds : seconds_until(text, now_s));
  }
  // "api";r=0;t=55: nothing is left for so many seconds.
  if (head.status != 429) return std::nullopt;
  std::string_view limit = head.field("ratelimit");
  while (!limit.empty()) {
    limit.remove_prefix(std::min(limit.find(';'), limit.size() - 1) + 1);
    while (limit.starts_with(' ')) limit.remove_prefix(1);
    if (limit.starts_with("t=")) return wait_of_seconds(seconds_in_front(limit.substr(2)));
  }
  return std::nullopt;
}

int64_t backoff_us(int failures) {
  constexpr int64_t kFirstUs = kSecondUs / 2;
  constexpr int kMaxDoublings = 4;
  return kFirstUs << std::min(std::max(failures - 1, 0), kMaxDoublings);
}

}  // namespace rudder::hub
