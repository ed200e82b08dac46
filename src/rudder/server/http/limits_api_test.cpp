// What clients may make the server hold: answers that nobody reads, connections that nobody uses,
// bytes that nobody asked for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/admin/process_stats.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

constexpr int kSmallReceiveBuffer = 4096;
constexpr std::string_view kHealth = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
constexpr std::string_view kOnePrompt = R"({"prompt":"a"})";

Script say_a(const engine::RequestParams&) {
  return say({"a"});
}

Script wait_for_release(const engine::RequestParams&) {
  Script script = say({"a"});
  script.hold = true;
  return script;
}

// Its answer has three times as many bytes.
std::string tokenize_request(size_t bytes) {
  return post_bytes("/tokenize", R"({"prompt":")" + std::string(bytes, 'a') + "\"}");
}

// A server that keeps little in the kernel, and at most so many bytes of answers.
ServerSettings little_output(int64_t bytes) {
  ServerSettings settings;
  settings.socket_send_buffer = 32 << 10;
  settings.max_buffered_output = bytes;
  settings.response_store_bytes = 0;
  return settings;
}

TEST(OutputLimits, AStoredResponseIsHeldOnceHoweverManyFetchIt) {
  constexpr size_t kText = 9 << 20;
  constexpr size_t kReaders = 100;
  TestServer test([](const engine::RequestParams&) { return say({std::string(kText, 'x')}); });
  const ClientResponse made = test.post("/v1/responses", R"({"input":"a"})");
  ASSERT_EQ(made.status, 200);
  const std::string id(parse_json(made.body, "body").value().at("id").as_string());
  const std::string get =
      fmt::format("GET /v1/responses/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", id);
  const int64_t before = read_process_stats().resident_bytes;
  std::vector<TestClient> readers;
  for (size_t i = 0; i < kReaders; ++i) {
    readers.emplace_back(test.server->port(), kSmallReceiveBuffer);
    readers.back().send(get);
    ASSERT_NE(readers.back().receive_some(), "") << "it is being answered";
  }
  EXPECT_LT(read_process_stats().resident_bytes - before, int64_t{100} << 20)
      << "900 MiB are being sent";
  TestClient reader = test.client();
  reader.send(get);
  EXPECT_EQ(reader.receive().body, made.body);
}

TEST(OutputLimits, WholeAnswersThatNobodyReadsAreBounded) {
  TestServer test(say_a, little_output(4 << 20));
  std::vector<TestClient> readers;
  int num_refused = 0;
  for (int i = 0; i < 8; ++i) {
    readers.emplace_back(test.server->port(), kSmallReceiveBuffer);
    readers.back().send(tokenize_request(300'000));
    num_refused += readers.back().receive_some().starts_with("HTTP/1.1 503");
  }
  EXPECT_GE(num_refused, 3);
  EXPECT_LE(num_refused, 5) << "five answers of 0.9 MB have room";
  EXPECT_EQ(test.get("/health").status, 200) << "small answers always do";
  readers.clear();
  EXPECT_TRUE(eventually([&] {
    TestClient client = test.client();
    client.send(tokenize_request(300'000));
    return client.receive().status == 200;
  })) << "given back";
}

TEST(OutputLimits, OneAnswerIsBounded) {
  ServerSettings settings;
  settings.max_answer_bytes = 100'000;
  TestServer test(say_a, settings);
  TestClient client = test.client();
  client.send(tokenize_request(50'000));
  const ClientResponse answer = client.receive();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("100000"), std::string::npos) << answer.body;
  client.send(tokenize_request(30'000));
  EXPECT_EQ(client.receive().status, 200) << "on the same connection";
}

TEST(OutputLimits, StreamsThatNobodyReadsShareOneBound) {
  ServerSettings settings = little_output(2 << 20);
  settings.max_pending_output = 1 << 30;
  TestServer test(
      [](const engine::RequestParams& params) {
        // So slowly that threads keep up where sanitizers and other tests slow them down.
        return say_endlessly(params.prompt.at(0) == 'q' ? "a" : std::string(4096, 'x'), 5000);
      },
      settings);
  TestClient quick = test.client();
  quick.send(post_bytes(kCompletionsPath, R"({"prompt":"q","stream":true})"));
  std::vector<TestClient> slow;
  for (int i = 0; i < 8; ++i) {
    slow.emplace_back(test.server->port(), kSmallReceiveBuffer);
    slow.back().send(post_bytes(kCompletionsPath, R"({"prompt":"s","stream":true})"));
  }
  // A thread of its own: who reads without pause is not cancelled for what others leave unread.
  std::atomic<bool> is_over = false;
  std::atomic<bool> is_cut = false;
  std::thread reader([&] {
    while (!is_over && !is_cut) is_cut = quick.receive_some().empty();
  });
  EXPECT_TRUE(
      eventually([&] { return test.engine.num_cancelled() == 8 && test.engine.num_active() == 1; },
                 std::chrono::seconds(60)));
  is_over = true;
  reader.join();
  EXPECT_FALSE(is_cut);
}

TEST(OutputLimits, AReaderThatTricklesIsCancelled) {
  ServerSettings settings = little_output(1 << 30);
  settings.write_timeout = 0.5;
  TestServer test(say_a, settings);
  TestClient client(test.server->port(), kSmallReceiveBuffer);
  client.send(tokenize_request(1'000'000));
  const int64_t start = SteadyClock().now_us();
  size_t taken = 0;
  for (std::string some; !(some = client.receive_some()).empty(); taken += some.size()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ASSERT_LT(SteadyClock().now_us() - start, 20'000'000) << "at 40 KB/s it would take a minute";
  }
  EXPECT_LT(taken, 2'000'000u);
}

TEST(OutputLimits, AnAnswerIsAtMostTenTimesItsRequest) {
  TestServer test(say_a);
  const std::string prompt(2000, 'p');
  const auto echo = [&](int n) {
    return test.post(kCompletionsPath,
                     fmt::format(R"({{"prompt":"{}","echo":true,"n":{}}})", prompt, n));
  };
  EXPECT_EQ(echo(20).status, 200);
  const ClientResponse refused = echo(60);
  EXPECT_EQ(refused.status, 400) << "120,000 bytes for 2,000";
  EXPECT_NE(refused.body.find(R"("param":"n")"), std::string::npos) << refused.body;
  // A prompt's parameters are told with each prompt.
  std::string prompts = "\"a\"";
  for (int i = 1; i < 200; ++i) prompts += ",\"a\"";
  const std::string body =
      fmt::format(R"({{"prompt":[{}],"stop":["{}"]}})", prompts, std::string(500, 's'));
  const ClientResponse rendered = test.post("/v1/completions/render", body);
  EXPECT_EQ(rendered.status, 400);
  EXPECT_NE(rendered.body.find("10 times what was sent"), std::string::npos) << rendered.body;
  EXPECT_NE(rendered.body.find(R"("param":"prompt")"), std::string::npos) << rendered.body;
}

std::string pipelined_bytes() {
  std::string bytes;
  while (bytes.size() < 110'000) bytes += kHealth;
  return bytes;
}

TEST(ConnectionLimits, ADisconnectBehindManyPipelinedBytesCancels) {
  for (const bool hard : {false, true}) {
    TestServer test(wait_for_release);
    TestClient client = test.client();
    client.send(post_bytes(kCompletionsPath, kOnePrompt));
    ASSERT_TRUE(eventually([&] { return test.engine.num_active() == 1; }));
    client.send(pipelined_bytes());
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(test.engine.num_active(), 1u) << "it only waits";
    if (hard) {
      client.reset();
    } else {
      client.close();
    }
    EXPECT_TRUE(eventually([&] { return test.engine.num_active() == 0; })) << "reset " << hard;
  }
}

TEST(ConnectionLimits, TheLongestIdleConnectionIsClosed) {
  ServerSettings settings;
  settings.max_connections = 4;
  settings.max_connections_per_address = 100;
  TestServer test(wait_for_release, settings);
  TestClient idle = test.client();
  idle.send(kHealth);
  ASSERT_EQ(idle.receive().status, 200);
  std::vector<TestClient> busy;
  for (size_t i = 0; i < 3; ++i) {
    busy.push_back(test.client());
    busy.back().send(post_bytes(kCompletionsPath, kOnePrompt));
    ASSERT_TRUE(eventually([&] { return test.engine.num_active() == i + 1; }));
  }
  // A connection becomes idle a little after its client has read the answer.
  EXPECT_TRUE(eventually([&] { return test.get("/health").status == 200; }));
  EXPECT_TRUE(idle.closes());
  EXPECT_EQ(test.engine.num_active(), 3u) << "the others go on";
  test.engine.release();
  for (TestClient& client : busy) EXPECT_EQ(client.receive().status, 200);
}

TEST(ConnectionLimits, WhereAllAreBusyTheNewcomerIsToldSo) {
  ServerSettings settings;
  settings.max_connections = 4;
  settings.max_connections_per_address = 100;
  TestServer test(wait_for_release, settings);
  std::vector<TestClient> clients;
  for (size_t i = 0; i < 4; ++i) {
    clients.push_back(test.client());
    clients.back().send(post_bytes(kCompletionsPath, kOnePrompt));
    ASSERT_TRUE(eventually([&] { return test.engine.num_active() == i + 1; }));
  }
  for (int i = 0; i < 50; ++i) {
    TestClient refused = test.client();
    refused.send(post_bytes(kCompletionsPath, std::string(100'000, ' ')));
    const ClientResponse answer = refused.receive();
    ASSERT_EQ(answer.status, 503) << "attempt " << i;
    EXPECT_NE(answer.body.find("too many connections"), std::string::npos);
    EXPECT_EQ(answer.field("retry-after"), "1");
  }
  test.engine.release();
  for (TestClient& client : clients) EXPECT_EQ(client.receive().status, 200);
  EXPECT_TRUE(eventually([&] { return test.get("/health").status == 200; }));
}

TEST(ConnectionLimits, OneAddressHasABoundOfItsOwn) {
  ServerSettings settings;
  settings.max_connections = 10;
  TestServer test(say_a, settings);
  std::vector<TestClient> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(test.client());
    clients.back().send(kHealth);
    EXPECT_EQ(clients.back().receive().status, 200);
  }
  TestClient sixth = test.client();
  sixth.send(kHealth);
  EXPECT_EQ(sixth.receive().status, 503) << "half of all";
  clients.clear();
  EXPECT_TRUE(eventually([&] { return test.get("/health").status == 200; }));
}

}  // namespace
}  // namespace rudder::server
