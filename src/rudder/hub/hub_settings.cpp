#include "rudder/hub/hub_settings.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "rudder/base/settings.h"

namespace rudder::hub {
namespace {

constexpr const char* kDefaultEndpoint = "https://huggingface.co";
constexpr int kMaxTimeoutS = 3600;
constexpr std::streamsize kMaxTokenBytes = 4096;

bool is_true(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// The first of these that is set.
std::string first_of(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (std::string value = environment(name); !value.empty()) return value;
  }
  return {};
}

std::string home_folder(const Environment& environment) {
  if (std::string home = environment("HOME"); !home.empty()) return home;
  std::array<char, 4096> buffer = {};
  passwd entry = {};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return "/";
  }
  return found->pw_dir;
}

bool is_variable_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Of a user of this machine; empty: there is none of that name.
std::string home_of(const std::string& user) {
  std::array<char, 4096> buffer = {};
  passwd entry = {};
  passwd* found = nullptr;
  const bool is_known =
      getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found) == 0 &&
      found != nullptr;
  return is_known ? found->pw_dir : "";
}

// ~ and ~user at the beginning, $NAME and ${NAME}; an unknown name stays as it is written.
std::string expand(std::string path, const Environment& environment) {
  if (path.starts_with('~')) {
    const size_t end = std::min(path.find('/'), path.size());
    std::string home = end == 1 ? home_folder(environment) : home_of(path.substr(1, end - 1));
    if (!home.empty()) path.replace(0, end, home);
  }
  std::string out;
  for (size_t i = 0; i < path.size();) {
    const bool braced = path.compare(i, 2, "${") == 0;
    const size_t begin = i + (braced ? 2 : 1);
    size_t end = begin;
    while (path[i] == '$' && end < path.size() && is_variable_char(path[end])) ++end;
    const bool closed = !braced || (end < path.size() && path[end] == '}');
    const std::string value =
        end > begin && closed ? environment(path.substr(begin, end - begin).c_str()) : "";
    if (value.empty()) {
      out += path[i++];
      continue;
    }
    out += value;
    i = end + (braced ? 1 : 0);
  }
  return out;
}

std::string without_line_ends(std::string text) {
  std::erase_if(text, [](char c) { return c == '\r' || c == '\n'; });
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  const auto first = std::find_if_not(text.begin(), text.end(), is_space);
  const auto last = std::find_if_not(text.rbegin(), text.rend(), is_space).base();
  return first < last ? std::string(first, last) : std::string();
}

Result<std::string> read_endpoint(const Environment& environment) {
  std::string endpoint = environment("HF_ENDPOINT");
  if (endpoint.empty()) return kDefaultEndpoint;
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const auto bad = [&](std::string_view why) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("HF_ENDPOINT {}", why), "HF_ENDPOINT");
  };
  const bool is_web = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  if (!is_web) return bad("is not an address that begins with https:// or http://");
  const std::string_view rest = std::string_view(endpoint).substr(endpoint.find("://") + 3);
  const std::string_view authority = rest.substr(0, rest.find('/'));
  if (authority.empty()) return bad("names no host");
  if (authority.find('@') != std::string_view::npos) {
    return bad("has a user name in it; a token goes into HF_TOKEN");
  }
  if (rest.find_first_of("?# \t\r\n\\") != std::string_view::npos)
    return bad("is not a plain address");
  return endpoint;
}

// Empty: there is no such file.
Result<std::string> read_token_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxTokenBytes, '\0');
  file.read(text.data(), kMaxTokenBytes);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  std::error_code ignored;
  if ((!file.is_open() || file.bad()) && std::filesystem::exists(path, ignored)) {
    return fail(ErrorCode::kIo, "the token's file cannot be read", path);
  }
  return without_line_ends(text);
}

Result<void> read_token(const Environment& environment, const std::string& home,
                        HubSettings& settings) {
  if (is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings.token = without_line_ends(environment(name));
    settings.token_source = name;
    if (!settings.token.empty()) break;
  }
  if (settings.token.empty()) {
    const std::string written = environment("HF_TOKEN_PATH");
    settings.token_source = written.empty() ? home + "/token" : expand(written, environment);
    RUDDER_TRY(settings.token, read_token_file(settings.token_source));
  }
  const auto printable = [](char c) { return c > ' ' && c < 0x7f; };
  if (std::all_of(settings.token.begin(), settings.token.end(), printable)) return {};
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("the token of {} has characters that no token has", settings.token_source),
      settings.token_source);
}

Result<int> read_timeout(const Environment& environment, int otherwise) {
  const std::string text = environment("HF_HUB_DOWNLOAD_TIMEOUT");
  if (text.empty()) return otherwise;
  int seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error == std::errc() && end == text.data() + text.size() && seconds > 0 &&
      seconds <= kMaxTimeoutS) {
    return seconds;
  }
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("HF_HUB_DOWNLOAD_TIMEOUT is '{}', not seconds from 1 to {}", text, kMaxTimeoutS),
      "HF_HUB_DOWNLOAD_TIMEOUT");
}

}  // namespace

Result<HubSettings> read_hub_settings(const Environment& environment) {
  HubSettings settings;
  RUDDER_TRY(settings.endpoint, read_endpoint(environment));
  std::string home = environment("HF_HOME");
  if (home.empty()) {
    const std::string base = environment("XDG_CACHE_HOME");
    home = (base.empty() ? home_folder(environment) + "/.cache" : base) + "/huggingface";
  }
  home = expand(home, environment);
  const std::string cache = first_of(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  settings.cache = cache.empty() ? home + "/hub" : expand(cache, environment);
  settings.offline = is_true(first_of(environment, {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  settings.shows_progress = !is_true(environment("HF_HUB_DISABLE_PROGRESS_BARS"));
  settings.certificates =
      first_of(environment, {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"});
  if (environment("http_proxy").empty()) settings.plain_proxy = environment("HTTP_PROXY");
  RUDDER_TRY(settings.timeout_s, read_timeout(environment, settings.timeout_s));
  RUDDER_TRY_VOID(read_token(environment, home, settings));
  return settings;
}

Result<HubSettings> read_hub_settings() {
  return read_hub_settings([](const char* name) { return environment_value(name); });
}

}  // namespace rudder::hub
