// Listener: binds the address of the settings and hands accepted connections to the I/O threads in
// turn. Its coroutine runs on the first of them.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/server/context.h"
#include "rudder/server/http/io_thread.h"

namespace rudder::server {

class Listener {
 public:
  // kIo with the setting's name in `where` when the address cannot be resolved or bound.
  static Result<std::unique_ptr<Listener>> open(ServerContext& context,
                                                std::vector<std::shared_ptr<IoThread>> threads);
  ~Listener();

  uint16_t port() const;
  std::string address() const;
  bool is_loopback() const;

  void start();
  void close();  // on the first I/O thread, or when it has stopped

 private:
  struct Impl;
  explicit Listener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rudder::server
