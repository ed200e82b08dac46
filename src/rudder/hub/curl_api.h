// The functions of libcurl that Rudder calls, looked up in its shared library when the hub is
// asked: the binary is not linked against it, and serves folders where it is not installed
// (docs/adr/0076-models-by-name.md). There is one table in the process; any thread may call through
// it.
#pragma once

#include <curl/curl.h>

#include "rudder/base/result.h"

namespace rudder::hub {

struct CurlApi {
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_reset) easy_reset = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_perform) easy_perform = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  decltype(&curl_url) url_new = nullptr;
  decltype(&curl_url_cleanup) url_free = nullptr;
  decltype(&curl_url_get) url_get = nullptr;
  decltype(&curl_url_set) url_set = nullptr;
  decltype(&curl_free) free_text = nullptr;
  decltype(&curl_version) version = nullptr;
};

// Never unloaded. kUnavailable names the library, the package that has it and what is wrong.
Result<const CurlApi*> load_curl();

}  // namespace rudder::hub
