// EngineProcess: a child process of this one's that serves an engine, and the socket to it. It
// inherits standard error and no other descriptor. Used by one thread, which outlives the child.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::remote {

// Where the child finds its end of the socket.
inline constexpr int kEngineDescriptor = 3;

struct EngineCommand {
  std::string program;                   // a path
  std::vector<std::string> arguments;    // with the program's name in front
  std::vector<std::string> environment;  // NAME=VALUE, beside and before this process's
};

class EngineProcess {
 public:
  // kIo: the system gives no process or no socket.
  static Result<EngineProcess> start(const EngineCommand& command);
  EngineProcess(EngineProcess&& other) noexcept;
  EngineProcess& operator=(EngineProcess&&) = delete;
  ~EngineProcess();  // end(0)

  pid_t id() const { return id_; }
  // This side's end of the socket; the caller's from then on.
  int take_descriptor();

  // Waits for its end so long, then kills it.
  struct End {
    std::string how;         // "killed by signal 9 (Killed)", "exit status 1"
    bool by_itself = false;  // a fault of its own; not a signal that only others send
  };
  End end(int64_t patience_ms);

 private:
  EngineProcess(pid_t id, int descriptor) : id_(id), descriptor_(descriptor) {}

  pid_t id_ = -1;  // -1: it has ended
  int descriptor_ = -1;
};

}  // namespace rudder::remote
