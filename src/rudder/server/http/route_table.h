// The route table: every path of the server with its method, access level and handler. Dispatch,
// 404 and 405, metric labels and the tests of access all use this one list.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace rudder::server {

class Exchange;
struct ServerContext;

// kAdmin: the admin key, where one is set, else as kKey.
enum class Access { kPublic, kKey, kAdmin };

// Runs on the connection's I/O thread: answers the exchange, at once or later.
using Handler = void (*)(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

// What may stand for "{id}": one segment, or a name with slashes in it.
enum class Tail { kSegment, kPath };

struct Route {
  std::string_view method;
  std::string_view path;  // "/v1/models/{id}"
  Access access;
  Handler handler;
  Tail tail = Tail::kSegment;
};

std::span<const Route> routes();
inline constexpr size_t kMaxRoutes = 64;

struct RouteMatch {
  const Route* route = nullptr;  // null: no such path (allow is empty) or no such method on it
  std::string tail;              // of "{id}", percent-decoded
  std::string allow;             // methods of the path, for 405 and OPTIONS
};

// Exact match: paths are neither decoded nor normalised nor folded, so that there is one reading of
// a path and access is decided on the very route that runs. HEAD is answered by GET's route.
RouteMatch match_route(std::string_view method, std::string_view path);

}  // namespace rudder::server
