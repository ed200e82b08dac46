// Server: the HTTP/1.1 front of one engine (of all its replicas), with OpenAI's API. A few threads
// run an event loop that holds thousands of streams; a small pool parses bodies, renders templates
// and tokenises. apps/ makes, drains and stops it, and installs the signal handlers. Any thread may
// call its members, but no signal handler may.
//
//   auto server = Server::start({.engine = engine.get(), .model = ...}, settings);
//   first SIGTERM:  server->drain(grace_us), on the main thread; then server->stop()
//   second SIGTERM: server->hurry(), which ends a drain at once
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/base/settings.h"
#include "rudder/engine/engine.h"
#include "rudder/fleet/event_publisher.h"
#include "rudder/server/admin/residence.h"
#include "rudder/server/model.h"
#include "rudder/server/settings.h"
#include "rudder/steer/library.h"

namespace rudder::server {

struct ServerParts {
  engine::Engine* engine = nullptr;  // outlives the server
  ServerModel model;
  // One a replica of the engine; outlive the server. Empty: there are none.
  std::vector<const fleet::EventPublisher*> kv_events = {};
  Residence* residence = nullptr;      // outlives the server; null: the model stays as it is
  steer::Library* steering = nullptr;  // outlives the server; null: it runs without steering
  const SettingsTable* all_settings =
      nullptr;                      // for /server_info; may be null; outlives the server
  std::string version = "unknown";  // for /version
};

class Server {
 public:
  // Binds, listens and starts the threads. kIo when the address cannot be bound, kInvalidArgument
  // for settings that contradict each other (with the setting's name in `where`).
  static Result<std::unique_ptr<Server>> start(ServerParts parts, const ServerSettings& settings);
  ~Server();  // stop()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Reads the files of --ssl-certfile and --ssl-keyfile again; connections that begin from then on
  // have what they say. On an error what was read before stays. Without TLS it does nothing.
  Result<void> reload_certificate();

  uint16_t port() const;        // the bound port; 0 on a Unix socket
  std::string address() const;  // "http://127.0.0.1:8000" or "unix:/run/rudder.sock"

  // /readyz says 503 and new generation requests are refused at once; what runs may finish for
  // `grace_us`. Then every request that is left is cancelled and its client told so with a typed
  // error. True when all had finished by themselves. Health and metrics go on being answered.
  bool drain(int64_t grace_us);
  // An Error: the server will never serve again, since every engine is dead, or since a part of it
  // stands still for good (vitals.h). /livez then fails, and the process had better end: what
  // supervises it starts another. One thread calls it every Vitals::kPeriodUs; it never waits.
  Result<void> watch();
  // A drain under way, or a later one, has no grace.
  void hurry();
  // Cancels what still runs, sends what is already written, closes every connection and joins the
  // threads (bounded: 2 s). Idempotent.
  void stop();

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rudder::server
