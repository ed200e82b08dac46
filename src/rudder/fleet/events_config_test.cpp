#include "rudder/fleet/events_config.h"

#include <gtest/gtest.h>

namespace rudder::fleet {
namespace {

TEST(EventsConfig, ReadsVllmsKeys) {
  const auto read = read_events_config(
      R"({"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557",)"
      R"("replay_endpoint":"tcp://*:5558","buffer_steps":7,"hwm":8,"max_queue_size":9,)"
      R"("topic":"kv@pod@model"})");
  ASSERT_TRUE(read) << read.error().to_string();
  const EventsConfig& config = read->value();
  EXPECT_EQ(config.endpoint, "tcp://*:5557");
  EXPECT_EQ(config.replay_endpoint, "tcp://*:5558");
  EXPECT_EQ(config.buffer_steps, 7);
  EXPECT_EQ(config.hwm, 8);
  EXPECT_EQ(config.max_queue_size, 9);
  EXPECT_EQ(config.topic, "kv@pod@model");
}

TEST(EventsConfig, IsOffUnlessItIsTurnedOn) {
  for (const char* off : {"", R"({"enable_kv_cache_events":false})",
                          R"({"enable_kv_cache_events":true,"publisher":"null"})"}) {
    const auto read = read_events_config(off);
    ASSERT_TRUE(read) << off;
    EXPECT_FALSE(read->has_value()) << off;
  }
  const auto read = read_events_config(R"({"enable_kv_cache_events":true,"replay_endpoint":null})");
  ASSERT_TRUE(read && read->has_value());
  EXPECT_TRUE(is_bound((*read)->endpoint)) << "by default on loopback";
  EXPECT_TRUE((*read)->replay_endpoint.empty());
}

TEST(EventsConfig, RefusesByTheKey) {
  struct Case {
    const char* text;
    const char* where;
  };
  for (const Case& c : {
           Case{"[]", "kv-events-config"},
           {R"({"endpoint":"tcp://*:1"})", "kv-events-config.enable_kv_cache_events"},
           {R"({"enable_kv_cache_events":1})", "kv-events-config.enable_kv_cache_events"},
           {R"({"enable_kv_cache_events":true,"endpoints":""})", "kv-events-config.endpoints"},
           {R"({"publisher":"kafka"})", "kv-events-config.publisher"},
           {R"({"endpoint":"inproc://x"})", "kv-events-config.endpoint"},
           {R"({"endpoint":"tcp://"})", "kv-events-config.endpoint"},
           {R"({"endpoint":"tcp://host"})", "kv-events-config.endpoint"},
           {R"({"endpoint":"tcp://127.0.0.1:99999"})", "kv-events-config.endpoint"},
           {R"({"endpoint":"tcp://127.0.0.1:-1"})", "kv-events-config.endpoint"},
           {R"({"endpoint":"tcp://127.0.0.1:http"})", "kv-events-config.endpoint"},
           {R"({"endpoint":5557})", "kv-events-config.endpoint"},
           {R"({"replay_endpoint":"tcp://host:5558"})", "kv-events-config.replay_endpoint"},
           {R"({"hwm":0})", "kv-events-config.hwm"},
           {R"({"hwm":1.5})", "kv-events-config.hwm"},
           {R"({"buffer_steps":-1})", "kv-events-config.buffer_steps"},
           {R"({"max_queue_size":1000001})", "kv-events-config.max_queue_size"},
           {R"({"topic":7})", "kv-events-config.topic"},
       }) {
    const auto read = read_events_config(c.text);
    ASSERT_FALSE(read) << c.text;
    EXPECT_EQ(read.error().where, c.where) << c.text;
    EXPECT_EQ(read.error().code, ErrorCode::kInvalidArgument) << c.text;
  }
  EXPECT_FALSE(read_events_config("{"));
}

TEST(EventsConfig, BindsToWhatIsHere) {
  for (const char* here :
       {"tcp://*:5557", "tcp://[::]:5557", "ipc:///tmp/x", "tcp://127.0.0.1:1"}) {
    EXPECT_TRUE(is_bound(here)) << here;
  }
  for (const char* there : {"tcp://10.0.0.7:5557", "tcp://picker:5557", "tcp://localhost:5557"}) {
    EXPECT_FALSE(is_bound(there)) << there;
  }
}

TEST(EventsConfig, EachReplicaHasEndpointsOfItsOwn) {
  EventsConfig config;
  config.endpoint = "tcp://*:5557";
  config.replay_endpoint = "ipc:///tmp/replay";
  const auto third = events_of_rank(config, 2);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->endpoint, "tcp://*:5559");
  EXPECT_EQ(third->replay_endpoint, "ipc:///tmp/replay_dp2");
  const auto first = events_of_rank(config, 0);
  EXPECT_EQ(first->endpoint, config.endpoint);
  EXPECT_EQ(first->replay_endpoint, config.replay_endpoint);
  config.endpoint = "tcp://127.0.0.1:0";
  config.replay_endpoint.clear();
  EXPECT_EQ(events_of_rank(config, 1)->endpoint, "tcp://127.0.0.1:0");
  EXPECT_EQ(events_of_rank(config, 1)->replay_endpoint, "");
  config.endpoint = "tcp://127.0.0.1:65535";
  EXPECT_EQ(events_of_rank(config, 1).error().where, "kv-events-config.endpoint");
}

}  // namespace
}  // namespace rudder::fleet
