// HttpSession: one connection, from accept to close: speaks TLS where there is a certificate, reads
// requests, lets handlers answer them, writes the answers, watches for the client going away. One
// coroutine on one I/O thread; it owns the socket and keeps itself alive. Deadlines are checked by
// the thread's sweep, so that waiting costs no timer.
#pragma once

#include <memory>

#include "rudder/server/context.h"
#include "rudder/server/http/client_socket.h"
#include "rudder/server/http/connection_table.h"
#include "rudder/server/http/io_thread.h"

namespace rudder::server {

// Called on `io`, on whose context the socket is. Where its place is a refusal, the client is told
// that there are too many connections, and nothing of it is served.
void start_http_session(ServerContext& context, std::shared_ptr<IoThread> io, SessionSocket socket,
                        std::unique_ptr<ConnectionTable::Place> place);

}  // namespace rudder::server
