// Shared by the tests with sockets: a model of bytes (token id = byte), a server over a scripted
// engine on a free port, and a client that writes raw bytes and reads the answers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rudder/server/server.h"
#include "rudder/server/testing/scripted_engine.h"

namespace rudder::server {

inline constexpr std::string_view kChatPath = "/v1/chat/completions";
inline constexpr std::string_view kCompletionsPath = "/v1/completions";

// Ids 0 to 255 are bytes, 256 is <|im_start|>, 257 <|im_end|>, then come `more_special`; a ChatML
// template.
ServerModel byte_model(const std::vector<std::string>& more_special = {});

struct ClientResponse {
  int status = 0;  // 0: the connection ended before an answer
  std::vector<std::pair<std::string, std::string>> fields;  // names in lower case
  std::string body;                                         // chunks joined
  bool complete = false;                                    // the body came to its proper end

  std::string field(std::string_view name) const;
};

// For what comes at once on a machine that does nothing else.
inline constexpr auto kPatience = std::chrono::seconds(60);

class TestClient {
 public:
  explicit TestClient(uint16_t port, int receive_buffer = 0);
  explicit TestClient(const std::string& unix_path);
  ~TestClient();
  TestClient(TestClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  TestClient(const TestClient&) = delete;
  TestClient& operator=(const TestClient&) = delete;

  bool connected() const { return fd_ >= 0; }
  bool send(std::string_view bytes);
  // One response; what follows it is kept. `head` as the method: no body is expected.
  ClientResponse receive(std::string_view method = "GET",
                         std::chrono::milliseconds timeout = kPatience);
  // Some bytes, or "" at the end of the connection or after the timeout.
  std::string receive_some(std::chrono::milliseconds timeout = kPatience);
  // True when the peer closes within the timeout; discards what comes before.
  bool closes(std::chrono::milliseconds timeout = kPatience);
  void close();
  void reset();  // closes with RST

 private:
  bool fill(std::chrono::steady_clock::time_point deadline);

  int fd_ = -1;
  std::string buffer_;
};

// Gives the engine a compiler for the model's vocabulary.
void use_grammars(ScriptedEngine& engine, const ServerModel& model,
                  const constraint::GrammarSettings& settings = {});

struct TestServer {
  // `chat_template`: instead of ChatML.
  explicit TestServer(ScriptedEngine::Author author, const ServerSettings& settings = {},
                      int32_t max_seq_len = 4096, std::string_view chat_template = {});

  TestClient client() const { return TestClient(server->port()); }
  // One request on a connection of its own.
  ClientResponse get(std::string_view path, std::string_view more_fields = "");
  ClientResponse post(std::string_view path, std::string_view body,
                      std::string_view more_fields = "");

  ScriptedEngine engine;
  std::unique_ptr<Server> server;
};

std::string post_bytes(std::string_view path, std::string_view body,
                       std::string_view more_fields = "");

// Waits until the condition holds; false after the timeout.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds timeout = kPatience);

// Ids, times and the like replaced, so that an answer can be compared with a text.
std::string without_times(std::string text);

}  // namespace rudder::server
