#include "rudder/hub/hub_client.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "rudder/base/log.h"

namespace rudder::hub {
namespace {

constexpr size_t kMaxAnswerBytes = size_t{64} << 20;
constexpr int kMaxPages = 2000;
constexpr int64_t kMaxPatienceUs = 120'000'000;  // a hub that asks for more is told of

}  // namespace

std::string percent_encode(std::string_view text, bool keeps_slashes) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~' || (c == '/' && keeps_slashes);
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

std::string file_url(const HubSettings& settings, const std::string& repository,
                     const std::string& commit, const std::string& path) {
  return fmt::format("{}/{}/resolve/{}/{}", settings.endpoint, repository, commit,
                     percent_encode(path, true));
}

Error describe_transfer(Error error, const HubSettings& settings) {
  if (error.code == ErrorCode::kUnauthorized) {
    error.message = fmt::format(
        "{} does not prove who it is: {}; the certificates of an own "
        "authority are named with SSL_CERT_FILE",
        settings.endpoint, error.message);
  } else if (error.code == ErrorCode::kUnavailable) {
    error.message = fmt::format("{} cannot be reached: {}", settings.endpoint, error.message);
  }
  return error;
}

HubClient::HubClient(const HubSettings& settings, std::unique_ptr<HttpClient> http)
    : settings_(settings), http_(std::move(http)) {}

Result<std::unique_ptr<HubClient>> HubClient::create(const HubSettings& settings) {
  RUDDER_TRY(std::unique_ptr<HttpClient> http, HttpClient::create(settings));
  return std::unique_ptr<HubClient>(new HubClient(settings, std::move(http)));
}

Result<HttpAnswer> HubClient::get_api(const std::string& url, const AskedFor& asked,
                                      int max_tries) {
  for (int tries = 1;; ++tries) {
    Result<HttpAnswer> answer = http_->get(url, kMaxAnswerBytes);
    if (answer && answer->head.is_success()) return answer;
    const bool passes =
        answer ? is_passing(answer->head.status) : answer.error().code == ErrorCode::kUnavailable;
    Error error = answer ? describe_refusal(*answer, asked, settings_)
                         : describe_transfer(answer.error(), settings_);
    const int64_t wait_us =
        (answer ? wait_us_of(answer->head) : std::nullopt).value_or(backoff_us(tries));
    if (!passes || tries >= max_tries || wait_us > kMaxPatienceUs) {
      return tl::unexpected<Error>(std::move(error));
    }
    log_info("{}; trying again in {:.1f} s", error.message, static_cast<double>(wait_us) * 1e-6);
    std::this_thread::sleep_for(std::chrono::microseconds(wait_us));
  }
}

Result<RepositoryState> HubClient::resolve(const AskedFor& asked, int max_tries) {
  const std::string url = fmt::format("{}/api/models/{}/revision/{}", settings_.endpoint,
                                      asked.repository, percent_encode(asked.revision, false));
  RUDDER_TRY(const HttpAnswer answer, get_api(url, asked, max_tries));
  return parse_repository(answer.body);
}

Result<std::vector<RemoteFile>> HubClient::list_files(const AskedFor& asked,
                                                      const std::string& commit) {
  std::vector<RemoteFile> files;
  std::string url = fmt::format("{}/api/models/{}/tree/{}?recursive=true", settings_.endpoint,
                                asked.repository, commit);
  for (int page = 0; page < kMaxPages; ++page) {
    RUDDER_TRY(const HttpAnswer answer, get_api(url, asked, kMaxTries));
    RUDDER_TRY_VOID(parse_tree_page(answer.body, files));
    const std::string next = next_page(answer.head.field("link"));
    if (next.empty()) return files;
    // A mirror hands on the hub's own addresses; the token stays at the endpoint (http_client.h).
    RUDDER_TRY(url, resolve_redirect(answer.head.url, next));
  }
  return fail(ErrorCode::kCorruptFile,
              fmt::format("the hub's listing has over {} pages", kMaxPages), "hub");
}

}  // namespace rudder::hub
