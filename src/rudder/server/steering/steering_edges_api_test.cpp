// Steering and capture at their edges: a key that nobody is told, rows larger than what may wait
// for a reader, a server without either.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "rudder/base/json.h"
#include "rudder/server/http/route_table.h"
#include "rudder/server/testing/test_server.h"

namespace rudder::server {
namespace {

// A user's key must not fetch the admin's.
TEST(SteeringKey, IsNotToldByServerInfo) {
  ServerSettings settings;
  settings.api_key = {"user"};
  settings.steering_api_key = {"s3cret"};
  settings.port = 0;
  SettingsTable table;
  settings.declare(table);
  ScriptedEngine engine([](const engine::RequestParams&) { return say({"a"}); });
  const auto server =
      Server::start({.engine = &engine, .model = byte_model(), .all_settings = &table}, settings);
  ASSERT_TRUE(server);
  TestClient client((*server)->port());
  client.send("GET /server_info HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer user\r\n\r\n");
  const ClientResponse answer = client.receive();
  EXPECT_EQ(answer.status, 200);
  EXPECT_NE(answer.body.find("\"steering-api-key\":\"(set)\""), std::string::npos) << answer.body;
  EXPECT_EQ(answer.body.find("s3cret"), std::string::npos);
}

// Rows of a long prompt come in one step: more at once than a reader may leave unread.
TEST(SteeringStream, CapturedRowsMayBeMoreThanABufferAtOnce) {
  constexpr size_t kRow = size_t{256} << 10, kRows = 24;
  ServerSettings settings;
  settings.max_pending_output = 1 << 20;
  TestServer test(
      [](const engine::RequestParams&) {
        Script script = say({"a", "b"});
        for (size_t i = 0; i < kRows; ++i) {
          steer::capture::CapturedValues values;
          values.rows = {{.key = "resid_post",
                          .layers = {0},
                          .width = static_cast<int32_t>(kRow / sizeof(float)),
                          .data = std::vector<std::byte>(kRow)}};
          script.events[0].captures.push_back(
              {"response", 0, static_cast<int32_t>(i), std::move(values)});
        }
        return script;
      },
      settings);
  const ClientResponse answer = test.post(kCompletionsPath, R"({"prompt":"a","stream":true})");
  EXPECT_TRUE(answer.complete);
  EXPECT_GT(answer.body.size(), kRows * kRow);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

TEST(SteeringOff, FieldsAndRoutesAreRefusedNotIgnored) {
  TestServer test([](const engine::RequestParams&) { return say({"a"}); });
  for (const char* field : {"steering", "steering_name", "steering_vectors",
                            "prefill_steering_vectors", "decode_steering_vectors", "capture"}) {
    const ClientResponse answer =
        test.post(kCompletionsPath, fmt::format(R"({{"prompt":"a","{}":{{}}}})", field));
    EXPECT_EQ(answer.status, 400) << field;
    const auto error = parse_json(answer.body, "answer")->at("error").as_object();
    EXPECT_EQ(error.at("param").as_string(), field);
    EXPECT_NE(error.at("message").as_string().find("--"), std::string::npos);
    EXPECT_EQ(
        test.post(kCompletionsPath, fmt::format(R"({{"prompt":"a","{}":null}})", field)).status,
        200);
  }
  EXPECT_EQ(test.get("/v1/steering").status, 400);
  EXPECT_EQ(test.post("/v1/steering/set", "{}").status, 400);
}

}  // namespace
}  // namespace rudder::server
