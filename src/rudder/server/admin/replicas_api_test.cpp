// What a server over several replicas says of each, and of those that have failed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rudder/server/testing/exposition_validator.h"
#include "rudder/server/testing/test_server.h"
#include "rudder/server/vitals.h"

namespace rudder::server {
namespace {

class ReplicasApiTest : public ::testing::Test {
 protected:
  ReplicasApiTest() : engine_([](const engine::RequestParams&) { return say({"hi"}); }) {
    engine_.set_replicas(3);
    ServerSettings settings;
    settings.port = 0;
    auto server = Server::start({.engine = &engine_, .model = byte_model()}, settings);
    EXPECT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
  }

  ClientResponse get(std::string_view path) {
    TestClient client(server_->port());
    client.send(fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
    return client.receive();
  }

  ScriptedEngine engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(ReplicasApiTest, AFailedReplicaIsNamedAndAllOfThemAre503) {
  EXPECT_EQ(get("/readyz").body, R"({"status":"ready"})");
  engine_.set_last_stuck(true);
  const ClientResponse degraded = get("/readyz");
  EXPECT_EQ(degraded.status, 200);
  EXPECT_EQ(degraded.body, R"({"status":"degraded","engines":3,"failed_engines":[2]})");
  EXPECT_EQ(get("/health").body, degraded.body);
  engine_.set_stuck(true);
  EXPECT_EQ(get("/readyz").status, 503);
}

TEST_F(ReplicasApiTest, TheServerLivesUntilEveryReplicaIsDead) {
  EXPECT_EQ(get("/livez").status, 200);
  engine_.set_last_stuck(true);
  EXPECT_EQ(get("/livez").status, 200) << "the others serve";
  engine_.set_stuck(true);
  EXPECT_EQ(get("/livez").status, 200) << "it may go on again";
  EXPECT_TRUE(server_->watch());
  engine_.set_dead(true);
  EXPECT_EQ(get("/livez").status, 503);
  const Result<void> watched = server_->watch();
  ASSERT_FALSE(watched);
  EXPECT_EQ(watched.error().message, "the engine has failed");
}

TEST_F(ReplicasApiTest, AnEngineThatStandsStillForGoodEndsTheServersLife) {
  engine_.set_stuck(true);
  int32_t ticks = 0;
  while (server_->watch() && ticks < Vitals::kExertedPatience) ++ticks;
  EXPECT_GE(ticks, Vitals::kPatience - 1);
  EXPECT_EQ(get("/livez").status, 503);
}

TEST_F(ReplicasApiTest, MetricsAndLoadsAreThoseOfEachReplica) {
  engine_.set_last_stuck(true);
  const ExpositionCheck check = check_exposition(get("/metrics").body);
  EXPECT_EQ(check.problem, "");
  for (const std::string_view engine : {"0", "1", "2"}) {
    const auto sample = [&](std::string_view name, std::string_view more) {
      const auto found = check.samples.find(
          fmt::format("rudder:{}{{model_name=\"tiny\",engine=\"{}\"{}}}", name, engine, more));
      EXPECT_NE(found, check.samples.end()) << name << " of " << engine;
      return found == check.samples.end() ? -1.0 : found->second;
    };
    EXPECT_EQ(sample("engine_up", ""), engine == "2" ? 0 : 1);
    EXPECT_EQ(sample("kv_cache_usage_perc", ""), 0.25);
    EXPECT_EQ(sample("time_to_first_token_seconds_bucket", ",le=\"+Inf\""), 10);
  }
  const std::string loads = get("/v1/loads").body;
  EXPECT_NE(loads.find("\"dp_rank_count\":3"), std::string::npos) << loads;
  for (const char* rank : {"\"dp_rank\":0", "\"dp_rank\":1", "\"dp_rank\":2"}) {
    EXPECT_NE(loads.find(rank), std::string::npos) << loads;
  }
}

}  // namespace
}  // namespace rudder::server
