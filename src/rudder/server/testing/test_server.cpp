#include "rudder/server/testing/test_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <thread>

#include "rudder/base/json.h"
#include "rudder/base/log.h"

namespace rudder::server {
namespace {

// The character by which byte-level vocabularies spell a byte (GPT-2's table).
std::string spelled_byte(int byte) {
  const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                         (byte >= 0xAE && byte <= 0xFF);
  int code = byte;
  if (!printable) {
    int rank = 0;
    for (int other = 0; other < byte; ++other) {
      rank += !((other >= '!' && other <= '~') || (other >= 0xA1 && other <= 0xAC) ||
                (other >= 0xAE && other <= 0xFF));
    }
    code = 256 + rank;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string byte_tokenizer_json(const std::vector<std::string>& more_special) {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte > 0) vocab.push_back(',');
    append_json_string(vocab, spelled_byte(byte));
    vocab += fmt::format(":{}", byte);
  }
  std::string added;
  int id = 256;
  std::vector<std::string> special = {"<|im_start|>", "<|im_end|>"};
  special.insert(special.end(), more_special.begin(), more_special.end());
  for (const std::string& token : special) {
    if (!added.empty()) added.push_back(',');
    added +=
        fmt::format(R"({{"id":{},"content":"{}","single_word":false,"lstrip":false,"rstrip":false,)"
                    R"("normalized":false,"special":true}})",
                    id++, token);
  }
  return fmt::format(
      R"({{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{}],"normalizer":null,)"
      R"("pre_tokenizer":{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,)"
      R"("use_regex":true}},"post_processor":null,"decoder":{{"type":"ByteLevel",)"
      R"("add_prefix_space":true,"trim_offsets":true,"use_regex":true}},"model":{{"type":"BPE",)"
      R"("dropout":null,"unk_token":null,"continuing_subword_prefix":null,)"
      R"("end_of_word_suffix":null,"fuse_unk":false,"byte_fallback":false,"vocab":{{{}}},)"
      R"("merges":[]}}}})",
      added, vocab);
}

constexpr std::string_view kChatMl =
    "{%- for message in messages -%}{{- '<|im_start|>' + message.role + '\\n' + message.content + "
    "'<|im_end|>\\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- "
    "'<|im_start|>assistant\\n' -}}{%- endif -%}";

std::chrono::milliseconds left(std::chrono::steady_clock::time_point deadline) {
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return std::max(rest, std::chrono::milliseconds(0));
}

}  // namespace

ServerModel byte_model(const std::vector<std::string>& more_special) {
  ServerModel model;
  model.ids = {"tiny", "org/tiny-alias"};
  model.root = "org/tiny";
  model.created = 1700000000;
  model.max_model_len = 4096;
  model.dtype = "bfloat16";
  auto tokenizer = text::Tokenizer::from_json(byte_tokenizer_json(more_special));
  EXPECT_TRUE(tokenizer) << tokenizer.error().to_string();
  model.tokenizer = std::move(*tokenizer);
  auto chat = text::ChatPrompt::from_json("{}", kChatMl);
  EXPECT_TRUE(chat) << chat.error().to_string();
  model.chat = std::move(*chat);
  return model;
}

std::string ClientResponse::field(std::string_view name) const {
  for (const auto& [key, value] : fields) {
    if (key == name) return value;
  }
  return "";
}

TestClient::TestClient(uint16_t port, int receive_buffer) {
  fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
  if (receive_buffer > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) close();
}

TestClient::TestClient(const std::string& unix_path) {
  fd_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, unix_path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) close();
}

TestClient::~TestClient() {
  close();
}

void TestClient::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void TestClient::reset() {
  const linger hard{1, 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
  close();
}

bool TestClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool TestClient::fill(std::chrono::steady_clock::time_point deadline) {
  pollfd poll_fd{fd_, POLLIN, 0};
  if (::poll(&poll_fd, 1, static_cast<int>(left(deadline).count())) <= 0) return false;
  char bytes[65536];
  const ssize_t got = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (got <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(got));
  return true;
}

std::string TestClient::receive_some(std::chrono::milliseconds timeout) {
  if (buffer_.empty()) fill(std::chrono::steady_clock::now() + timeout);
  return std::exchange(buffer_, {});
}

bool TestClient::closes(std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (fill(deadline)) buffer_.clear();
  return left(deadline).count() > 0;
}

ClientResponse TestClient::receive(std::string_view method, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  ClientResponse response;
  size_t end = 0;
  while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
    if (!fill(deadline)) return response;
  }
  std::string_view head(buffer_.data(), end + 2);
  const size_t first_line = head.find("\r\n");
  std::from_chars(head.data() + 9, head.data() + 12, response.status);
  head.remove_prefix(first_line + 2);
  while (!head.empty()) {
    const size_t line = head.find("\r\n");
    const size_t colon = head.find(':');
    response.fields.emplace_back(head.substr(0, colon), head.substr(colon + 2, line - colon - 2));
    head.remove_prefix(line + 2);
  }
  buffer_.erase(0, end + 4);
  if (method == "HEAD" || response.status == 204 || response.status == 100) {
    response.complete = true;
    return response;
  }
  if (response.field("transfer-encoding") == "chunked") {
    while (true) {
      size_t eol = 0;
      while ((eol = buffer_.find("\r\n")) == std::string::npos) {
        if (!fill(deadline)) return response;
      }
      size_t length = 0;
      std::from_chars(buffer_.data(), buffer_.data() + eol, length, 16);
      while (buffer_.size() < eol + 2 + length + 2) {
        if (!fill(deadline)) return response;
      }
      response.body.append(buffer_, eol + 2, length);
      buffer_.erase(0, eol + 2 + length + 2);
      if (length == 0) break;
    }
  } else if (const std::string length_text = response.field("content-length");
             !length_text.empty()) {
    const size_t length = std::stoul(length_text);
    while (buffer_.size() < length) {
      if (!fill(deadline)) return response;
    }
    response.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
  } else {
    while (fill(deadline)) {
    }
    response.body = std::exchange(buffer_, {});
  }
  response.complete = true;
  return response;
}

void use_grammars(ScriptedEngine& engine, const ServerModel& model,
                  const constraint::GrammarSettings& settings) {
  const engine::RequestLimits limits = engine.limits();
  auto made = constraint::GrammarCompiler::create(*model.tokenizer, limits.vocab_size,
                                                  limits.eos_ids, settings);
  ASSERT_TRUE(made) << made.error().to_string();
  engine.set_grammars(std::move(*made));
}

TestServer::TestServer(ScriptedEngine::Author author, const ServerSettings& settings,
                       int32_t max_seq_len, std::string_view chat_template)
    : engine(std::move(author), max_seq_len) {
  set_log_level(LogLevel::kError);
  ServerSettings used = settings;
  used.port = 0;
  ServerModel model = byte_model();
  if (!chat_template.empty()) {
    auto chat = text::ChatPrompt::from_json("{}", chat_template);
    EXPECT_TRUE(chat) << chat.error().to_string();
    model.chat = std::move(*chat);
  }
  use_grammars(engine, model, used.grammars);
  Result<std::unique_ptr<Server>> started =
      Server::start({.engine = &engine, .model = std::move(model), .version = "1.2.3"}, used);
  EXPECT_TRUE(started) << started.error().to_string();
  server = std::move(*started);
}

std::string post_bytes(std::string_view path, std::string_view body, std::string_view more_fields) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{}Content-Length: "
      "{}\r\n\r\n{}",
      path, more_fields, body.size(), body);
}

ClientResponse TestServer::get(std::string_view path, std::string_view more_fields) {
  TestClient connection = client();
  connection.send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, more_fields));
  return connection.receive();
}

ClientResponse TestServer::post(std::string_view path, std::string_view body,
                                std::string_view more_fields) {
  TestClient connection = client();
  connection.send(post_bytes(path, body, more_fields));
  return connection.receive();
}

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string without_times(std::string text) {
  constexpr std::string_view kKey = "\"created\":";
  for (size_t at = text.find(kKey); at != std::string::npos; at = text.find(kKey, at + 1)) {
    const size_t start = at + kKey.size();
    size_t end = start;
    while (end < text.size() && text[end] >= '0' && text[end] <= '9') ++end;
    text.replace(start, end - start, "0");
  }
  return text;
}

}  // namespace rudder::server
