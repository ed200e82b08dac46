#include "rudder/remote/engine_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace rudder::remote {
namespace {

constexpr auto kPoll = std::chrono::milliseconds(2);

tl::unexpected<Error> refused(const char* what, int error) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", what, std::strerror(error)), "engine-process");
}

// Those given, then this process's whose names are not among them; null at the end.
std::vector<char*> joined_environment(const std::vector<std::string>& given) {
  std::vector<char*> all;
  all.reserve(given.size());
  for (const std::string& one : given) all.push_back(const_cast<char*>(one.c_str()));
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view text(*one);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    if (std::ranges::none_of(given, [&](const auto& own) { return own.starts_with(name); })) {
      all.push_back(*one);
    }
  }
  all.push_back(nullptr);
  return all;
}

EngineProcess::End describe(int status) {
  if (WIFEXITED(status)) {
    return {.how = fmt::format("exit status {}", WEXITSTATUS(status)), .by_itself = true};
  }
  const int signal = WTERMSIG(status);
  return {.how = fmt::format("killed by signal {} ({})", signal, strsignal(signal)),
          .by_itself = signal != SIGKILL && signal != SIGTERM && signal != SIGINT};
}

}  // namespace

Result<EngineProcess> EngineProcess::start(const EngineCommand& command) {
  std::array<int, 2> ends = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return refused("a socket pair", errno);
  }
  std::vector<char*> arguments;
  arguments.reserve(command.arguments.size());
  for (const std::string& one : command.arguments) {
    arguments.push_back(const_cast<char*>(one.c_str()));
  }
  arguments.push_back(nullptr);
  const std::vector<char*> environment = joined_environment(command.environment);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kEngineDescriptor);
  posix_spawn_file_actions_addclosefrom_np(&actions, kEngineDescriptor + 1);
  pid_t id = -1;
  const int error = posix_spawn(&id, command.program.c_str(), &actions, nullptr, arguments.data(),
                                environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return refused(command.program.c_str(), error);
  }
  return EngineProcess(id, ends[0]);
}

EngineProcess::EngineProcess(EngineProcess&& other) noexcept
    : id_(std::exchange(other.id_, -1)), descriptor_(std::exchange(other.descriptor_, -1)) {}

EngineProcess::~EngineProcess() {
  if (id_ >= 0) end(0);
  if (descriptor_ >= 0) close(descriptor_);
}

int EngineProcess::take_descriptor() {
  return std::exchange(descriptor_, -1);
}

EngineProcess::End EngineProcess::end(int64_t patience_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(patience_ms);
  int status = 0;
  while (true) {
    const pid_t ended = waitpid(id_, &status, WNOHANG);
    if (ended == id_) break;
    if (ended < 0 && errno != EINTR) break;  // it was waited for elsewhere
    if (std::chrono::steady_clock::now() >= deadline) {
      kill(id_, SIGKILL);
      while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
      }
      break;
    }
    std::this_thread::sleep_for(kPoll);
  }
  id_ = -1;
  return describe(status);
}

}  // namespace rudder::remote
