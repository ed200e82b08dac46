// Who may ask, and over what: Host and Origin, keys from files, TLS, what errors repeat.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/http/route_table.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

Script say_hello(const engine::RequestParams&) {
  return say({"hello"});
}

int status_with(TestServer& test, std::string_view fields, std::string_view path = "/v1/models") {
  TestClient client = test.client();
  client.send(fmt::format("GET {} HTTP/1.1\r\n{}\r\n", path, fields));
  return client.receive().status;
}

TEST(Security, AHostThatIsNotOursIsRefused) {
  TestServer test(say_hello);
  const std::string port = std::to_string(test.server->port());
  for (const std::string& host :
       {std::string("localhost"), "localhost:" + port, "127.0.0.1:" + port, std::string("[::1]:80"),
        std::string("LocalHost."), std::string("a.localhost:80"), std::string("192.168.1.5")}) {
    EXPECT_EQ(status_with(test, "Host: " + host + "\r\n"), 200) << host;
  }
  for (const char* host :
       {"evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example",
        "notlocalhost", "[evil]:80", "127.0.0.1evil"}) {
    for (const Route& route : routes()) {  // public ones too
      EXPECT_EQ(status_with(test, fmt::format("Host: {}\r\n", host), route.path), 421) << host;
    }
  }
  ServerSettings settings;
  settings.allowed_hosts = {"Models.Example"};
  TestServer named(say_hello, settings);
  EXPECT_EQ(status_with(named, "Host: models.example:443\r\n"), 200);
  EXPECT_EQ(status_with(named, "Host: other.example\r\n"), 421);
  settings = {};
  settings.host = "0.0.0.0";
  TestServer open(say_hello, settings);
  EXPECT_EQ(status_with(open, "Host: any.example\r\n"), 200) << "it has names that it cannot know";
  settings.allowed_hosts = {"models.example"};
  TestServer guarded(say_hello, settings);
  EXPECT_EQ(status_with(guarded, "Host: any.example\r\n"), 421);
}

TEST(Security, AnOriginThatIsNotOursIsRefused) {
  ServerSettings settings;
  settings.allowed_origins = {"https://ok.example"};
  TestServer test(say_hello, settings);
  const auto with_origin = [&](std::string_view origin) {
    return status_with(test, fmt::format("Host: localhost:80\r\nOrigin: {}\r\n", origin));
  };
  for (const char* origin : {"http://localhost:80", "https://ok.example"}) {
    EXPECT_EQ(with_origin(origin), 200) << origin;
  }
  for (const char* origin : {"https://evil.example", "null", "http://localhost:81",
                             "https://ok.example.evil", "localhost:80", "://"}) {
    EXPECT_EQ(with_origin(origin), 403) << origin;
  }
  settings.allowed_origins = {"*"};
  TestServer open(say_hello, settings);
  EXPECT_EQ(status_with(open, "Host: localhost\r\nOrigin: null\r\n"), 200);
}

TEST(Security, AnswersAreNotGuessedAt) {
  TestServer test(say_hello);
  EXPECT_EQ(test.get("/").field("x-content-type-options"), "nosniff");
  EXPECT_EQ(test.get("/nothing").field("x-content-type-options"), "nosniff");
  EXPECT_EQ(test.post(kCompletionsPath, R"({"prompt":"a","stream":true})")
                .field("x-content-type-options"),
            "nosniff");
}

std::string temporary_file(const std::string& name, const std::string& text) {
  const std::string path = fmt::format("{}{}-{}", ::testing::TempDir(), name, ::getpid());
  std::ofstream(path) << text;
  return path;
}

TEST(Security, KeysComeFromFilesToo) {
  ServerSettings settings;
  settings.api_key = {"one"};
  settings.api_key_file = temporary_file("keys", "# users\n\n  two \r\nthree");
  settings.steering_api_key_file = temporary_file("admin", "four\n");
  TestServer test(say_hello, settings);
  const auto status_of = [&](const char* key, const char* path) {
    return status_with(test, fmt::format("Host: localhost\r\nAuthorization: Bearer {}\r\n", key),
                       path);
  };
  for (const char* key : {"one", "two", "three"}) EXPECT_EQ(status_of(key, "/load"), 200) << key;
  for (const char* key : {"four", "# users", ""}) EXPECT_EQ(status_of(key, "/load"), 401) << key;
  EXPECT_EQ(test.post("/reset_prefix_cache", "{}", "Authorization: Bearer two\r\n").status, 401);
  EXPECT_EQ(test.post("/reset_prefix_cache", "{}", "Authorization: Bearer four\r\n").status, 200);

  const ServerParts parts{.engine = &test.engine, .model = byte_model()};
  for (const std::string& path : {temporary_file("empty", "# none\n"), std::string("/no/such")}) {
    ServerSettings wrong;
    wrong.port = 0;
    wrong.api_key_file = path;
    const auto started = Server::start(parts, wrong);
    ASSERT_FALSE(started) << "a file without keys opens nothing";
    EXPECT_EQ(started.error().where, "api-key-file");
  }
}

// The longest piece of `sent` that `told` repeats.
size_t longest_repeat(const std::string& told, const std::string& sent) {
  size_t longest = 0;
  for (size_t at = 0; at < told.size(); ++at) {
    while (at + longest < told.size() &&
           sent.find(told.substr(at, longest + 1)) != std::string::npos) {
      ++longest;
    }
  }
  return longest;
}

TEST(Security, ErrorsRepeatLittleOfARequest) {
  TestServer test(say_hello);
  std::string text;  // no piece of it stands in it twice, and none in a message
  for (int i = 0; i < 2500; ++i) text += fmt::format("Q{:04}", i);
  const std::string bodies[] = {
      R"({"prompt":"a","model":"@"})",
      R"({"prompt":"a","stream_options":{"@":1},"stream":"@"})",
      R"({"prompt":"a","logit_bias":{"@":"@"}})",
      R"({"prompt":"a","response_format":{"type":"@"}})",
      R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"type":"@"}}}})",
      R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"@":{"pattern":"(@"}}}}}})",
      R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{"@":{"properties":{"@":7}}}}}}})",
      R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"$ref":"#/@"}}}})",
      R"({"prompt":"a","structured_outputs":{"@":1}})",
      R"({"prompt":"a","structured_outputs":{"grammar":"root ::= @"}})",
      R"({"prompt":"a","structured_outputs":{"regex":"(@"}})",
      R"({"prompt":"a","tools":[{"type":"@"}]})",
      R"({"prompt":"a","previous_response_id":"@","input":"@"})",
      R"({"messages":[{"role":"@","content":"a"}]})",
      R"({"messages":[{"role":"user","content":[{"type":"@"}]}]})",
      R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"@","tools":[{"type":"function","function":{"name":"@"}}]})",
      R"({"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"function","function":{"name":"@"}}})",
      R"({"messages":[{"role":"user","content":"a"}],"reasoning_effort":"@"})",
      R"({"prompt":"a" @})"};
  int num_errors = 0;
  const auto check = [&](const ClientResponse& answer, const std::string& what) {
    if (answer.status == 200) return;
    ++num_errors;
    EXPECT_LE(longest_repeat(answer.body, text), 200u) << what << ": " << answer.body;
    EXPECT_LT(answer.body.size(), 1500u) << what;
  };
  for (const std::string& form : bodies) {
    std::string body = form;
    for (size_t at = 0; (at = body.find('@', at)) != std::string::npos; at += text.size()) {
      body.replace(at, 1, text);
    }
    for (const std::string_view path :
         {kChatPath, kCompletionsPath, std::string_view("/v1/responses"),
          std::string_view("/v1/messages"), std::string_view("/tokenize")}) {
      check(test.post(path, body), fmt::format("{} {}", path, form));
    }
  }
  for (const char* path : {"/v1/models/", "/v1/responses/", "/nothing/"}) {
    check(test.get(path + text), path);
  }
  EXPECT_GT(num_errors, 50);
}

// A certificate that signs itself, for `name`, and its key: two PEM files.
std::pair<std::string, std::string> make_certificate_files(const std::string& name) {
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_RSA_gen(2048), EVP_PKEY_free);
  const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  X509_NAME* subject = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  X509_set_issuer_name(certificate.get(), subject);
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const std::string certificate_path = temporary_file("certificate.pem", "");
  const std::string key_path = temporary_file("key.pem", "");
  FILE* file = std::fopen(certificate_path.c_str(), "w");
  PEM_write_X509(file, certificate.get());
  std::fclose(file);
  file = std::fopen(key_path.c_str(), "w");
  PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  return {certificate_path, key_path};
}

// One connection of TLS.
class TlsClient {
 public:
  explicit TlsClient(uint16_t port)
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), ssl_(nullptr, SSL_free) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_);
  }
  ~TlsClient() { ::close(fd_); }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool shake_hands() { return SSL_connect(ssl_.get()) == 1; }
  // Of the server's certificate.
  std::string name() const {
    char text[256] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(ssl_.get())),
                              NID_commonName, text, sizeof(text));
    return text;
  }
  void send(std::string_view bytes) {
    EXPECT_EQ(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())),
              static_cast<int>(bytes.size()));
  }
  // Until the text has come, or the end.
  std::string read_until(std::string_view end) {
    std::string seen;
    char bytes[16384];
    while (seen.find(end) == std::string::npos) {
      const int got = SSL_read(ssl_.get(), bytes, sizeof(bytes));
      if (got <= 0) break;
      seen.append(bytes, static_cast<size_t>(got));
    }
    return seen;
  }

 private:
  int fd_ = -1;
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_;
};

ServerSettings with_tls(const std::string& name) {
  ServerSettings settings;
  std::tie(settings.ssl_certfile, settings.ssl_keyfile) = make_certificate_files(name);
  return settings;
}

TEST(Tls, RequestsAndAnswersOfAnySize) {
  TestServer test(say_hello, with_tls("first"));
  EXPECT_TRUE(test.server->address().starts_with("https://")) << test.server->address();
  TlsClient client(test.server->port());
  ASSERT_TRUE(client.shake_hands());
  client.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(client.read_until("}").find("1.2.3"), std::string::npos);
  const std::string prompt(500'000, 'p');
  client.send(post_bytes("/tokenize", R"({"prompt":")" + prompt + "\"}"));
  const std::string answer = client.read_until("\"token_strs\":null}");
  EXPECT_NE(answer.find("\"count\":500000"), std::string::npos) << answer.substr(0, 500);
  EXPECT_GT(answer.size(), 1'500'000u);
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"a","stream":true})"));
  EXPECT_NE(client.read_until("0\r\n\r\n").find("hello"), std::string::npos);
}

TEST(Tls, ADisconnectCancels) {
  TestServer test(
      [](const engine::RequestParams&) {
        Script script = say({"a"});
        script.hold = true;
        return script;
      },
      with_tls("first"));
  {
    TlsClient client(test.server->port());
    ASSERT_TRUE(client.shake_hands());
    client.send(post_bytes(kCompletionsPath, R"({"prompt":"a"})"));
    ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; }));
}

TEST(Tls, WhatIsNotTlsIsClosed) {
  ServerSettings settings = with_tls("first");
  settings.header_timeout = 0.3;
  TestServer test(say_hello, settings);
  TestClient plain = test.client();
  plain.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(plain.receive().status, 0);
  TestClient silent = test.client();
  EXPECT_TRUE(silent.closes()) << "a handshake has a deadline";
  TlsClient client(test.server->port());
  EXPECT_TRUE(client.shake_hands());
}

TEST(Tls, TheCertificateIsReadAgain) {
  TestServer test(say_hello, with_tls("first"));
  TlsClient before(test.server->port());
  ASSERT_TRUE(before.shake_hands());
  const auto [certificate, key] = make_certificate_files("second");
  EXPECT_TRUE(test.server->reload_certificate());
  TlsClient after(test.server->port());
  ASSERT_TRUE(after.shake_hands());
  EXPECT_EQ(after.name(), "second");
  EXPECT_EQ(before.name(), "first");
  std::ofstream(certificate) << "nothing";
  const Result<void> broken = test.server->reload_certificate();
  ASSERT_FALSE(broken);
  EXPECT_EQ(broken.error().where, "ssl-certfile");
  TlsClient still(test.server->port());
  ASSERT_TRUE(still.shake_hands()) << "what was read before stays";
  before.send("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_NE(before.read_until("}").find("1.2.3"), std::string::npos) << "what is open goes on";
}

TEST(Tls, BothFilesAreNeeded) {
  TestServer test(say_hello);
  ServerSettings settings = with_tls("first");
  settings.ssl_keyfile.clear();
  const auto started = Server::start({.engine = &test.engine, .model = byte_model()}, settings);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().where, "ssl-keyfile");
}

}  // namespace
}  // namespace rudder::server
