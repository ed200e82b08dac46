// HttpSession: one connection of a client, from accept to close. It speaks TLS where the server has
// a certificate, reads requests, lets handlers answer them, writes the answers, and notices when
// the client goes away. The listener starts it; it runs as one coroutine on one I/O thread, owns
// the socket, and keeps itself alive until the connection is closed. It sets no timers: the sweep
// of its thread (IoThread) checks its deadlines.
#pragma once

#include <memory>

#include "rudder/server/context.h"
#include "rudder/server/http/client_socket.h"
#include "rudder/server/http/connection_table.h"
#include "rudder/server/http/io_thread.h"

namespace rudder::server {

// The listener calls it on `io`, on whose context the socket is. If the table refused the
// connection
// (`entry->is_refused()`), the session answers 503 and closes.
void start_http_session(ServerContext& context, std::shared_ptr<IoThread> io, SessionSocket socket,
                        std::unique_ptr<ConnectionTable::Entry> entry);

}  // namespace rudder::server
