#include "rudder/fleet/zmq_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <type_traits>

namespace rudder::fleet {
namespace {

// Its number is that of the ABI: 5 for every release since 4.0.
constexpr const char* kLibrary = "libzmq.so.5";

Result<ZmqApi> bind_functions() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("KV events need ZeroMQ, of the package libzmq5: {}", dlerror()),
                "kv-events-config");
  }
  ZmqApi api;
  std::string missing;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  };
  find(api.context_new, "zmq_ctx_new");
  find(api.context_term, "zmq_ctx_term");
  find(api.socket, "zmq_socket");
  find(api.close, "zmq_close");
  find(api.set_option, "zmq_setsockopt");
  find(api.get_option, "zmq_getsockopt");
  find(api.bind, "zmq_bind");
  find(api.connect, "zmq_connect");
  find(api.send, "zmq_send");
  find(api.receive, "zmq_recv");
  find(api.poll, "zmq_poll");
  find(api.last_errno, "zmq_errno");
  find(api.error_text, "zmq_strerror");
  if (missing.empty()) return api;
  return fail(ErrorCode::kUnavailable, fmt::format("{} has no {}", kLibrary, missing),
              "kv-events-config");
}

}  // namespace

Result<const ZmqApi*> load_zmq() {
  static const Result<ZmqApi> api = bind_functions();
  if (!api) return tl::unexpected(api.error());
  return &*api;
}

}  // namespace rudder::fleet
