// A capture plugin for tests: it does what the request's option "do" says.
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "rudder_capture_plugin.h"

namespace {

struct Session {
  std::string deed;
};

bool does(const std::string& deed, const char* what) {
  return deed.find(what) != std::string::npos;
}

int create(const rudder_capture_model*, const char* options, void** plugin,
           rudder_capture_out* out) {
  if (std::strstr(options, "throw_create") != nullptr) throw std::runtime_error("create");
  if (std::strstr(options, "refuse") != nullptr) {
    out->set(out, "not today", 9);
    return 1;
  }
  static int state = 0;
  *plugin = &state;
  return 0;
}

int validate(void*, const rudder_capture_request* request, rudder_capture_out* out) {
  if (does(request->options_json, "throw_validate")) throw std::runtime_error("validate");
  if (does(request->options_json, "invalid")) {
    out->set(out, "no such deed", 12);
    return 1;
  }
  return 0;
}

int open_session(void*, const rudder_capture_request* request, void** session,
                 rudder_capture_out*) {
  if (does(request->options_json, "throw_open")) throw std::runtime_error("open");
  *session = new Session{request->options_json};
  return 0;
}

int on_rows(void* session, const rudder_capture_rows*, rudder_capture_out* out) {
  const std::string& deed = static_cast<Session*>(session)->deed;
  if (does(deed, "throw_rows")) throw 42;  // nothing that derives from std::exception
  if (does(deed, "stall")) std::this_thread::sleep_for(std::chrono::milliseconds(2900));
  if (!does(deed, "fail_rows")) return 0;
  out->set(out, "these rows displease me", 23);
  return 1;
}

int finalize(void* session, int cancelled, rudder_capture_out* out) {
  const std::string deed = static_cast<Session*>(session)->deed;
  delete static_cast<Session*>(session);
  if (cancelled != 0) return 0;
  if (does(deed, "throw_finalize")) throw std::runtime_error("finalize");
  const char* payload = does(deed, "bad_json") ? "{\"a\":" : "{\"fine\":true}";
  if (!does(deed, "silent")) out->set(out, payload, std::strlen(payload));
  return 0;
}

void destroy(void*) {
  throw std::runtime_error("destroy");
}

const rudder_capture_plugin kPlugin = {RUDDER_CAPTURE_ABI,
                                       sizeof(rudder_capture_plugin),
                                       create,
                                       validate,
                                       open_session,
                                       on_rows,
                                       finalize,
                                       destroy};

}  // namespace

extern "C" const rudder_capture_plugin* rudder_capture_plugin_entry(uint32_t) {
  return &kPlugin;
}
