// The functions of libzmq that Rudder calls, looked up in its shared library when events are asked
// for: the binary is not linked against it, and runs where it is not installed
// (docs/adr/0040-kv-events.md). There is one table in the process; any thread may call through it.
#pragma once

#include <zmq.h>

#include <string>

#include "rudder/base/result.h"

namespace rudder::fleet {

struct ZmqApi {
  decltype(&zmq_ctx_new) context_new = nullptr;
  decltype(&zmq_ctx_term) context_term = nullptr;
  decltype(&zmq_socket) socket = nullptr;
  decltype(&zmq_close) close = nullptr;
  decltype(&zmq_setsockopt) set_option = nullptr;
  decltype(&zmq_getsockopt) get_option = nullptr;
  decltype(&zmq_bind) bind = nullptr;
  decltype(&zmq_connect) connect = nullptr;
  decltype(&zmq_send) send = nullptr;
  decltype(&zmq_recv) receive = nullptr;
  decltype(&zmq_poll) poll = nullptr;
  decltype(&zmq_errno) last_errno = nullptr;
  decltype(&zmq_strerror) error_text = nullptr;
};

// Never unloaded. kUnavailable names the library, the package that has it and what is wrong.
Result<const ZmqApi*> load_zmq();

}  // namespace rudder::fleet
