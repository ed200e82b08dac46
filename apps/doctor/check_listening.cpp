#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "doctor/findings.h"

namespace rudder::apps {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Why nothing can listen there; empty: it can.
std::string why_not_listen(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::strerror(errno);
  const int on = 1;  // as the server has it: a port that was just closed is free
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  std::string why;
  if (bind(fd, address.ai_addr, address.ai_addrlen) != 0 || listen(fd, 1) != 0) {
    why = std::strerror(errno);
  }
  close(fd);
  return why;
}

void check_port(const server::ServerSettings& settings, Findings& findings) {
  const std::string asked = fmt::format("{}:{}", settings.host, settings.port);
  addrinfo hints = {};
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(settings.host.c_str(), std::to_string(settings.port).c_str(), &hints, &found);
  if (error != 0) {
    findings.push_back({Verdict::kFails, "port",
                        fmt::format("{}: the host is no address: {}", asked, gai_strerror(error))});
    return;
  }
  const Addresses addresses(found, &freeaddrinfo);
  const std::string why = why_not_listen(*addresses);
  findings.push_back({why.empty() ? Verdict::kFine : Verdict::kFails, "port",
                      why.empty() ? fmt::format("{} is free", asked)
                                  : fmt::format("{}: {}; choose another with --port", asked, why)});
}

void check_readable(const std::string& file, const char* flag, Findings& findings) {
  if (file.empty()) return;
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(file, ignored);
  const bool is_readable = is_file && access(file.c_str(), R_OK) == 0;
  findings.push_back({is_readable ? Verdict::kFine : Verdict::kFails, "tls",
                      fmt::format("--{} {}{}", flag, file,
                                  is_readable ? ""
                                  : is_file   ? " cannot be read by this user"
                                              : " is no file")});
}

}  // namespace

void check_listening(const server::ServerSettings& settings, Findings& findings) {
  if (settings.uds.empty()) {
    check_port(settings, findings);
  } else {
    const auto folder = std::filesystem::absolute(settings.uds).parent_path();
    const bool is_writable = access(folder.c_str(), W_OK | X_OK) == 0;
    findings.push_back(
        {is_writable ? Verdict::kFine : Verdict::kFails, "socket",
         fmt::format("{}{}", settings.uds, is_writable ? "" : ": its folder cannot be written")});
  }
  check_readable(settings.ssl_certfile, "ssl-certfile", findings);
  check_readable(settings.ssl_keyfile, "ssl-keyfile", findings);
}

}  // namespace rudder::apps
