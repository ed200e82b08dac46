// Connections that do not behave, and what they may cost: limits, deadlines, disconnects, slow
// readers, pipelining, drain.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "rudder/base/clock.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

constexpr std::string_view kGetHealth = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

Script quick(const engine::RequestParams&) {
  return say({"a", "b"});
}

Script held(const engine::RequestParams&) {
  Script script = say({"a", "b"});
  script.hold = true;
  return script;
}

Script endless(const engine::RequestParams&) {
  return say_endlessly("word ", 1000);
}

ServerSettings impatient() {
  ServerSettings settings;
  settings.header_timeout = 0.3;
  settings.body_timeout = 0.3;
  settings.timeout_keep_alive = 0.3;
  settings.write_timeout = 0.5;
  return settings;
}

TEST(Connection, KeepAliveAndPipelining) {
  TestServer test(quick);
  TestClient client = test.client();
  const std::string post = post_bytes(kCompletionsPath, R"({"prompt":"a"})");
  client.send(post + std::string(kGetHealth) + post +
              "GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n");
  for (const int status : {200, 200, 200, 404}) EXPECT_EQ(client.receive().status, status);
  client.send(kGetHealth);
  const ClientResponse answer = client.receive();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.field("connection"), "keep-alive");
}

TEST(Connection, CloseAndHttp10) {
  TestServer test(quick);
  TestClient client = test.client();
  client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.receive().field("connection"), "close");
  EXPECT_TRUE(client.closes());
  TestClient old = test.client();
  old.send(
      fmt::format("POST {} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: "
                  "30\r\n\r\n{}",
                  kCompletionsPath, R"({"prompt":"ab","stream":true })"));
  const ClientResponse stream = old.receive();
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.field("transfer-encoding"), "");
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
}

TEST(Connection, HeadHasNoBody) {
  TestServer test(quick);
  TestClient client = test.client();
  client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n" + std::string(kGetHealth));
  const ClientResponse head = client.receive("HEAD");
  EXPECT_EQ(head.status, 200);
  const ClientResponse get = client.receive();
  EXPECT_EQ(head.field("content-length"), std::to_string(get.body.size()));
}

TEST(Connection, ExpectContinue) {
  TestServer test(quick);
  const std::string body = R"({"prompt":"ab"})";
  const std::string head = fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nExpect: "
      "100-continue\r\nContent-Length: {}\r\n\r\n",
      kCompletionsPath, body.size());
  TestClient client = test.client();
  client.send(head);
  EXPECT_EQ(client.receive().status, 100);
  client.send(body);
  EXPECT_EQ(client.receive().status, 200);
  TestClient refused = test.client();
  refused.send(
      "POST /nope HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
      "5\r\n\r\n");
  EXPECT_EQ(refused.receive().status, 404) << "without a word about continuing";
}

TEST(Connection, ChunkedBody) {
  TestServer test(quick);
  TestClient client = test.client();
  client.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n",
                  kCompletionsPath));
  for (const char ch : std::string_view(R"({"prompt":"ab"})")) {
    client.send(fmt::format("1\r\n{}\r\n", ch));
  }
  client.send("0\r\n\r\n" + std::string(kGetHealth));
  EXPECT_EQ(client.receive().status, 200);
  EXPECT_EQ(client.receive().status, 200);
}

TEST(Connection, BodiesAreBounded) {
  ServerSettings settings;
  settings.max_request_body = 1000;
  TestServer test(quick, settings);
  const ClientResponse large = test.post(kCompletionsPath, std::string(1001, ' '));
  EXPECT_EQ(large.status, 413);
  EXPECT_NE(large.body.find(R"("code":"request_too_large")"), std::string::npos);
  EXPECT_EQ(large.field("connection"), "close");
  // A client that sends on regardless still gets to read the answer.
  TestClient stubborn = test.client();
  stubborn.send(post_bytes(kCompletionsPath, std::string(3'000'000, ' ')));
  EXPECT_EQ(stubborn.receive().status, 413);
  TestClient reused = test.client();
  reused.send(kGetHealth);
  EXPECT_EQ(reused.receive().status, 200);
  reused.send(post_bytes(kCompletionsPath, std::string(3'000'000, ' ')));
  EXPECT_EQ(reused.receive().status, 413);

  settings.max_request_body = 1'000'000;
  settings.max_buffered_bodies = 1000;
  TestServer crowded(quick, settings);
  EXPECT_EQ(crowded.post(kCompletionsPath, std::string(2000, ' ')).status, 503);
  EXPECT_EQ(crowded.post(kCompletionsPath, R"({"prompt":"a"})").status, 200) << "given back";
}

TEST(Connection, Deadlines) {
  TestServer test(quick, impatient());
  TestClient idle = test.client();
  TestClient half_header = test.client();
  half_header.send("GET /health HTTP/1.1\r\nHo");
  TestClient half_body = test.client();
  half_body.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Content-Length: 100\r\n\r\n{{",
                  kCompletionsPath));
  TestClient invited = test.client();
  invited.send(
      fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  "Expect: 100-continue\r\nContent-Length: 100\r\n\r\n",
                  kCompletionsPath));
  EXPECT_EQ(invited.receive().status, 100);
  EXPECT_EQ(invited.receive().status, 408);
  EXPECT_EQ(half_header.receive().status, 408);
  EXPECT_EQ(half_body.receive().status, 408);
  EXPECT_TRUE(idle.closes());
  // A trickle does not put a deadline off.
  TestClient trickle = test.client();
  const int64_t start = SteadyClock().now_us();
  for (const char ch : std::string(200, 'a')) {
    if (!trickle.send(std::string(1, ch))) break;
    if (SteadyClock().now_us() - start > 600'000) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(trickle.receive().status, 408);
}

TEST(Connection, ADisconnectCancels) {
  for (const char* stream : {"true", "false"}) {
    for (const bool hard : {false, true}) {
      TestServer test(held);
      TestClient client = test.client();
      client.send(
          post_bytes(kCompletionsPath, fmt::format(R"({{"prompt":"a","stream":{}}})", stream)));
      ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
      const int64_t start = SteadyClock().now_us();
      if (hard) {
        client.reset();
      } else {
        client.close();
      }
      ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 0; }))
          << "stream " << stream << ", reset " << hard;
      EXPECT_EQ(test.engine.num_cancelled(), 1u);
      EXPECT_LT(test.engine.last_cancel_us() - start, 1'000'000);
    }
  }
}

TEST(Connection, ADisconnectBehindPipelinedBytesCancels) {
  TestServer test(held);
  TestClient client = test.client();
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"a"})") + std::string(kGetHealth));
  ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; }));
}

TEST(Connection, ADisconnectInMidStreamCancels) {
  TestServer test(endless);
  for (int i = 0; i < 20; ++i) {
    TestClient client = test.client();
    client.send(post_bytes(kCompletionsPath, R"({"prompt":"a","stream":true})"));
    EXPECT_NE(client.receive_some(), "");
    client.close();
  }
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; }));
}

bool counts_a_slow_reader(TestServer& test) {
  const std::string metrics = test.get("/metrics").body;
  return metrics.find("http_slow_readers_total{model_name=\"tiny\"} 1\n") != std::string::npos &&
         metrics.find("http_client_disconnects_total{model_name=\"tiny\"} 0\n") !=
             std::string::npos;
}

TEST(Connection, ASlowReaderIsCancelled) {
  ServerSettings settings;
  settings.max_pending_output = 100'000;
  TestServer test(
      [](const engine::RequestParams&) { return say_endlessly(std::string(4096, 'x'), 1000); },
      settings);
  TestClient client(test.server->port(), 4096);
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"a","stream":true})"));
  EXPECT_TRUE(eventually([&] { return test.engine.num_cancelled() == 1; }));
  EXPECT_EQ(test.get("/health").status, 200);
  EXPECT_TRUE(eventually([&] { return counts_a_slow_reader(test); }));
}

TEST(Connection, AStalledReaderIsCancelled) {
  // Less than the bound is pending, but nothing of it is taken.
  TestServer test(
      [](const engine::RequestParams&) { return say_endlessly(std::string(4096, 'x'), 5000); },
      [] {
        ServerSettings settings = impatient();
        settings.max_pending_output = 1 << 30;
        settings.socket_send_buffer = 32 << 10;
        return settings;
      }());
  TestClient client(test.server->port(), 4096);
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"a","stream":true})"));
  EXPECT_TRUE(eventually([&] { return test.engine.num_cancelled() == 1; }));
  EXPECT_TRUE(eventually([&] { return counts_a_slow_reader(test); }));
}

TEST(Drain, WhatRunsFinishes) {
  TestServer test(held);
  TestClient client = test.client();
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"a","stream":true})"));
  ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
  bool clean = false;
  std::thread drain([&] { clean = test.server->drain(20'000'000); });
  EXPECT_TRUE(eventually([&] { return test.get("/readyz").status == 503; }));
  EXPECT_EQ(test.get("/livez").status, 200);
  EXPECT_EQ(test.post(kCompletionsPath, R"({"prompt":"b"})").status, 503);
  test.engine.release();
  drain.join();
  EXPECT_TRUE(clean);
  test.server->stop();
  const ClientResponse answer = client.receive();
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
  EXPECT_FALSE(test.client().connected());
}

TEST(Drain, WhatIsLeftIsToldSo) {
  TestServer test([](const engine::RequestParams& params) {
    return params.prompt.at(0) == 'e' ? endless(params) : held(params);
  });
  TestClient streaming = test.client();
  streaming.send(post_bytes(kCompletionsPath, R"({"prompt":"e","stream":true})"));
  EXPECT_NE(streaming.receive_some(), "");
  TestClient waiting = test.client();
  waiting.send(post_bytes(kCompletionsPath, R"({"prompt":"w"})"));
  ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 2; }));
  const int64_t start = SteadyClock().now_us();
  std::thread second_signal([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    test.server->hurry();
  });
  EXPECT_FALSE(test.server->drain(60'000'000));
  second_signal.join();
  test.server->stop();
  EXPECT_LT(SteadyClock().now_us() - start, 10'000'000);
  std::string rest;
  for (std::string some; !(some = streaming.receive_some()).empty();) rest += some;
  EXPECT_NE(rest.find(R"("code":"shutting_down")"), std::string::npos);
  EXPECT_TRUE(rest.ends_with("0\r\n\r\n")) << "the stream ends properly";
  const ClientResponse whole = waiting.receive();
  EXPECT_EQ(whole.status, 503);
  EXPECT_NE(whole.body.find(R"("code":"shutting_down")"), std::string::npos);
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; }));
}

TEST(Drain, StopAloneIsClean) {
  TestServer test([](const engine::RequestParams& params) {
    Script script = held(params);
    script.keep_sink = true;
    return script;
  });
  TestClient client = test.client();
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"a"})"));
  ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
  test.server->stop();
  EXPECT_EQ(client.receive().status, 503);
  test.server.reset();  // the engine's sinks outlive the server
  EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; }));
}

// Bytes that the system holds for the server's side of connections to `port`, and that nobody has
// acknowledged.
int64_t unsent_bytes(uint16_t port) {
  std::ifstream table("/proc/net/tcp");
  int64_t most = 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues;
    words >> number >> local >> remote >> state >> queues;
    if (state != "01" || local.substr(local.find(':') + 1) != fmt::format("{:04X}", port)) continue;
    most = std::max<int64_t>(most, std::stoll(queues, nullptr, 16));
  }
  return most;
}

TEST(Connection, TheSystemHoldsLittleOfWhatASlowReaderLeaves) {
  ServerSettings settings;
  settings.socket_send_buffer = 32 << 10;
  TestServer test([](const engine::RequestParams&) { return say({"a"}); }, settings);
  constexpr int kReceiveBuffer = 4096;
  TestClient client(test.server->port(), kReceiveBuffer);
  const std::string prompt(256 << 10, 'a');  // its ids are three times as much JSON
  client.send(post_bytes("/tokenize", R"({"prompt":")" + prompt + "\"}"));
  ASSERT_TRUE(eventually([&] { return unsent_bytes(test.server->port()) > 0; }));
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(unsent_bytes(test.server->port()), 256 << 10);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(client.receive("POST").status, 200);
}

TEST(Connection, ASilentStreamIsPingedBetweenItsEvents) {
  ServerSettings settings;
  settings.sse_ping_interval = 0.2;
  Script script = say({"a", "b", "c"});
  script.hold = true;
  script.tick_us = 500'000;
  TestServer test([&](const engine::RequestParams&) { return script; }, settings);
  TestClient client = test.client();
  client.send(post_bytes(kCompletionsPath, R"({"prompt":"x","stream":true})"));
  std::string seen = client.receive_some();
  EXPECT_TRUE(seen.starts_with("HTTP/1.1 200")) << "the head comes with the first comment";
  while (seen.find(": ping") == std::string::npos) {
    const std::string more = client.receive_some();
    ASSERT_FALSE(more.empty());
    seen += more;
  }
  test.engine.release();
  while (seen.find("[DONE]") == std::string::npos) {
    const std::string more = client.receive_some();
    ASSERT_FALSE(more.empty());
    seen += more;
  }
  // Chunks are events or comments, whole ones.
  int pings = 0;
  int events = 0;
  for (size_t at = seen.find("\r\n\r\n") + 4; at < seen.size();) {
    const size_t size_end = seen.find("\r\n", at);
    ASSERT_NE(size_end, std::string::npos);
    const size_t size = std::stoul(seen.substr(at, size_end - at), nullptr, 16);
    std::string_view chunk = std::string_view(seen).substr(size_end + 2, size);
    while (!chunk.empty()) {
      const size_t end = chunk.find("\n\n");
      ASSERT_NE(end, std::string_view::npos) << "half an event";
      const std::string_view block = chunk.substr(0, end);
      EXPECT_TRUE(block == ": ping" || block.starts_with("data: ")) << block;
      (block == ": ping" ? pings : events) += 1;
      chunk.remove_prefix(end + 2);
    }
    at = size_end + 2 + size + 2;
  }
  EXPECT_GE(pings, 3) << "before the first token, and between the slow ones";
  EXPECT_EQ(events, 4);
}

TEST(Connection, AMessageIsPingedByAnEventOfItsApi) {
  ServerSettings settings;
  settings.sse_ping_interval = 0.1;
  TestServer test(held, settings);
  TestClient client = test.client();
  client.send(
      post_bytes("/v1/messages",
                 R"({"max_tokens":3,"stream":true,"messages":[{"role":"user","content":"x"}]})"));
  std::string seen;
  while (seen.find("event: ping\ndata: {\"type\":\"ping\"}\n\n") == std::string::npos) {
    const std::string more = client.receive_some();
    ASSERT_FALSE(more.empty()) << seen;
    seen += more;
  }
  EXPECT_EQ(seen.find("message_start"), std::string::npos) << "before the first token";
  test.engine.release();
  while (seen.find("event: message_stop") == std::string::npos) {
    const std::string more = client.receive_some();
    ASSERT_FALSE(more.empty()) << seen;
    seen += more;
  }
  EXPECT_EQ(seen.find(": ping\n\n"), std::string::npos) << "no comments, an event";
}

TEST(Connection, ARequestSaysHowOftenItsStreamIsPinged) {
  ServerSettings settings;
  settings.sse_ping_interval = 0.1;
  TestServer test(held, settings);
  TestClient client = test.client();
  client.send(
      post_bytes(kCompletionsPath, R"({"prompt":"x","stream":true,"sse_ping_interval":0})"));
  EXPECT_EQ(client.receive_some(std::chrono::milliseconds(500)), "");
  test.engine.release();
  const std::string body = client.receive().body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(body.find(": ping"), std::string::npos);

  settings.sse_ping_interval = 0;
  TestServer silent(held, settings);
  TestClient other = silent.client();
  other.send(post_bytes(kCompletionsPath, R"({"prompt":"x","stream":true,"sse_ping_interval":1})"));
  EXPECT_NE(other.receive_some(), "");
  silent.engine.release();
}

}  // namespace
}  // namespace rudder::server
