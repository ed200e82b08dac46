// Where a server listens: a Unix socket, and addresses and settings that cannot be.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

Script greet(const engine::RequestParams& /*params*/) {
  return say({"hi"});
}

TEST(Addresses, UnixSocket) {
  ServerSettings settings;
  settings.uds = fmt::format("{}rudder-api-test-{}.sock", ::testing::TempDir(), ::getpid());
  {
    TestServer test(greet, settings);
    EXPECT_EQ(test.server->address(), "unix:" + settings.uds);
    TestClient client(settings.uds);
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_EQ(client.receive().status, 200);
  }
  EXPECT_NE(::access(settings.uds.c_str(), F_OK), 0) << "the socket is removed";
}

TEST(Addresses, ASocketIsTakenFromTheDeadAlone) {
  ServerSettings settings;
  settings.uds = fmt::format("{}rudder-dead-test-{}.sock", ::testing::TempDir(), ::getpid());
  TestServer test(greet, settings);
  ServerParts parts{.engine = &test.engine, .model = byte_model()};
  const Result<std::unique_ptr<Server>> second = Server::start(parts, settings);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().where, "uds");
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
  EXPECT_EQ(::access(settings.uds.c_str(), F_OK), 0) << "the first one still has it";
}

TEST(Addresses, WhatCannotBeIsNamed) {
  TestServer test(greet);
  ServerSettings settings;
  settings.port = test.server->port();
  ServerParts parts{.engine = &test.engine, .model = byte_model()};
  Result<std::unique_ptr<Server>> second = Server::start(parts, settings);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_EQ(second.error().where, "port");
  settings = {};
  settings.metrics_prefix = "a b";
  second = Server::start(parts, settings);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().where, "metrics-prefix");
}

}  // namespace
}  // namespace rudder::server
