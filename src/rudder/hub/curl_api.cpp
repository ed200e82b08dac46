#include "rudder/hub/curl_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <type_traits>

namespace rudder::hub {
namespace {

// The ABI's number; the distributions build the same library over OpenSSL and over GnuTLS.
constexpr const char* kLibraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};

tl::unexpected<Error> no_curl(std::string message) {
  return fail(ErrorCode::kUnavailable, std::move(message), "hub");
}

Result<CurlApi> bind_curl() {
  void* library = nullptr;
  std::string why;
  for (const char* name : kLibraries) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (library == nullptr) {
    return no_curl(fmt::format("models by name need libcurl, of the package libcurl4: {}", why));
  }
  CurlApi api;
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  decltype(&curl_global_init) global_init = nullptr;
  find(global_init, "curl_global_init");
  find(api.easy_init, "curl_easy_init");
  find(api.easy_cleanup, "curl_easy_cleanup");
  find(api.easy_reset, "curl_easy_reset");
  find(api.easy_setopt, "curl_easy_setopt");
  find(api.easy_perform, "curl_easy_perform");
  find(api.easy_strerror, "curl_easy_strerror");
  find(api.slist_append, "curl_slist_append");
  find(api.slist_free_all, "curl_slist_free_all");
  find(api.url_new, "curl_url");
  find(api.url_free, "curl_url_cleanup");
  find(api.url_get, "curl_url_get");
  find(api.url_set, "curl_url_set");
  find(api.free_text, "curl_free");
  find(api.version, "curl_version");
  if (!missing.empty()) return no_curl(fmt::format("libcurl has no {}", missing));
  if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) return no_curl("libcurl does not start");
  return api;
}

}  // namespace

Result<const CurlApi*> load_curl() {
  static const Result<CurlApi> api = bind_curl();
  if (!api) return tl::unexpected(api.error());
  return &*api;
}

}  // namespace rudder::hub
