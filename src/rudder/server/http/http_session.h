// HttpSession: one connection, from accept to close: reads requests, lets handlers answer them,
// writes the answers, watches for the client going away. One coroutine on one I/O thread; it owns
// the socket and keeps itself alive. Deadlines are checked by the thread's sweep, so that waiting
// costs no timer.
#pragma once

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>

#include "rudder/server/context.h"
#include "rudder/server/http/io_thread.h"

namespace rudder::server {

using SessionExecutor = boost::asio::io_context::executor_type;
using SessionSocket =
    boost::asio::basic_stream_socket<boost::asio::generic::stream_protocol, SessionExecutor>;

// Called on `io`, on whose context the socket is.
void start_http_session(ServerContext& context, std::shared_ptr<IoThread> io, SessionSocket socket);

}  // namespace rudder::server
