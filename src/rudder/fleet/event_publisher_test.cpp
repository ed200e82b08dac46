// The publisher and real sockets on loopback.
#include "rudder/fleet/event_publisher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "rudder/fleet/replay_server.h"
#include "rudder/fleet/zmq_socket.h"

#if defined(__SANITIZE_THREAD__)
// libzmq is not compiled with the sanitizer, which does not see how its threads agree.
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\nrace:libzmq.so\n";
}
#endif

namespace rudder::fleet {
namespace {

using Frames = std::vector<std::string>;
constexpr std::array<int32_t, 2> kBlockTokens = {1, 300};
constexpr auto kPatience = std::chrono::seconds(30);

bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

uint64_t sequence_of(const std::string& bytes) {
  uint64_t sequence = 0;
  for (const char ch : bytes) sequence = sequence << 8 | static_cast<uint8_t>(ch);
  return sequence;
}

class EventPublisherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    api_ = load_zmq().value();
    context_ = std::make_unique<ZmqContext>(api_);
  }

  void start(EventsConfig config = {}, int32_t block_size = 2) {
    config.endpoint = "tcp://127.0.0.1:*";
    config.replay_endpoint = "tcp://127.0.0.1:*";
    config.topic = "kv@here@model";
    auto started = EventPublisher::start(config, {.block_size = block_size});
    ASSERT_TRUE(started) << started.error().to_string();
    publisher_ = std::move(*started);
    ASSERT_TRUE(eventually([&] { return publisher_->stats().batches > 0; })) << "that it is empty";
  }

  ZmqSocket subscribe(const std::string& topic) {
    ZmqSocket socket = context_->socket(ZMQ_SUB).value();
    api_->set_option(socket.handle(), ZMQ_SUBSCRIBE, topic.data(), topic.size());
    // A connection that a heartbeat ends is not made again: libzmq ends the process when the queue
    // of the socket was full (zeromq/libzmq issue 3937).
    constexpr int kNever = -1;
    api_->set_option(socket.handle(), ZMQ_RECONNECT_IVL, &kNever, sizeof(kNever));
    EXPECT_TRUE(socket.open(publisher_->endpoint(), false));
    return socket;
  }

  static Frames receive(ZmqSocket& socket) {
    std::optional<Frames> frames;
    eventually([&] { return (frames = socket.receive()).has_value(); });
    return frames.value_or(Frames());
  }

  // The first batch of all that are told. One that was being sent when the subscriber came may be
  // before it.
  static Frames receive_beginning(ZmqSocket& socket) {
    Frames frames;
    do {
      frames = receive(socket);
    } while (frames.size() == 3 && sequence_of(frames[1]) != 0);
    return frames;
  }

  void store(uint64_t hash, std::span<const int32_t> tokens = kBlockTokens) {
    publisher_->watcher()->stored({.hash = hash, .tokens = tokens});
    publisher_->watcher()->step_done();
  }

  // Batches that a subscriber gets until one stores a block the `blocks`th time.
  static std::vector<Frames> receive_blocks(ZmqSocket& socket, int blocks) {
    std::vector<Frames> found;
    while (blocks > 0) {
      found.push_back(receive(socket));
      if (found.back().size() != 3) return {};
      blocks -= found.back()[2].find("BlockStored") != std::string::npos;
    }
    return found;
  }

  // Everything that is replayed from `first`: sequences and payloads, without the end.
  std::vector<std::pair<uint64_t, std::string>> replay(uint64_t first) {
    ZmqSocket socket = context_->socket(ZMQ_DEALER).value();
    EXPECT_TRUE(socket.open(publisher_->replay_endpoint(), false));
    const std::string request = sequence_bytes(first);
    EXPECT_TRUE(eventually([&] { return socket.send({"", request}) == Sent::kDone; }));
    std::vector<std::pair<uint64_t, std::string>> found;
    for (;;) {
      const Frames frames = receive(socket);
      if (frames.size() != 4 || !frames[0].empty()) return {};
      if (sequence_of(frames[2]) == UINT64_MAX) {
        EXPECT_TRUE(frames[1].empty() && frames[3].empty());
        return found;
      }
      EXPECT_EQ(frames[1], "kv@here@model");
      found.emplace_back(sequence_of(frames[2]), frames[3]);
    }
  }

  const ZmqApi* api_ = nullptr;
  std::unique_ptr<ZmqContext> context_;
  std::unique_ptr<EventPublisher> publisher_;
};

TEST_F(EventPublisherTest, ASubscriberGetsWhatIsStored) {
  start();
  ZmqSocket socket = subscribe("kv@");
  ASSERT_TRUE(eventually([&] { return publisher_->stats().subscribers == 1; }));
  store(7);
  const std::vector<Frames> found = receive_blocks(socket, 1);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.back()[0], "kv@here@model");
  EXPECT_EQ(found.back()[1].size(), 8u);
  EXPECT_EQ(publisher_->stats().stored, 1u);
}

// It may know the numbers of another process, so it is told from 0 what is held, and so are the
// others.
TEST_F(EventPublisherTest, WhoComesIsToldFromTheBeginning) {
  start();
  store(7);
  ASSERT_TRUE(eventually([&] { return publisher_->stats().batches >= 2; }));
  std::vector<ZmqSocket> sockets;
  for (int come = 1; come <= 2; ++come) {
    sockets.push_back(subscribe(""));
    for (ZmqSocket& socket : sockets) {
      const Frames told = receive_beginning(socket);
      ASSERT_EQ(told.size(), 3u);
      EXPECT_NE(told[2].find("AllBlocksCleared"), std::string::npos);
      EXPECT_NE(told[2].find("BlockStored"), std::string::npos);
    }
  }
}

TEST_F(EventPublisherTest, AnIdleSecondHasABatchWithoutEvents) {
  start();
  ZmqSocket socket = subscribe("");
  ASSERT_EQ(receive_beginning(socket).size(), 3u);
  const Frames first = receive(socket);
  const Frames second = receive(socket);
  ASSERT_EQ(first.size(), 3u);
  ASSERT_EQ(second.size(), 3u);
  EXPECT_EQ(first[2].size(), 12u);
  EXPECT_EQ(first[2].substr(10), std::string("\x90\x00", 2)) << "no events, rank 0";
  EXPECT_EQ(sequence_of(second[1]), sequence_of(first[1]) + 1);
}

TEST_F(EventPublisherTest, SubscribersAreThoseOfOurTopic) {
  start();
  {
    ZmqSocket ours = subscribe("kv@here");
    ZmqSocket other = subscribe("kv@there");
    ZmqSocket all = subscribe("");
    EXPECT_TRUE(eventually([&] { return publisher_->stats().subscribers == 2; }));
  }
  EXPECT_TRUE(eventually([&] { return publisher_->stats().subscribers == 0; }));
}

// Routers take a replay number by number: the batches of idle seconds are in it, too.
TEST_F(EventPublisherTest, WhoComesLateGetsAReplayWithoutAGap) {
  start();
  ZmqSocket socket = subscribe("");
  ASSERT_TRUE(eventually([&] { return publisher_->stats().subscribers == 1; }));
  store(1);
  ASSERT_FALSE(receive_blocks(socket, 1).empty());
  ASSERT_EQ(receive(socket).size(), 3u) << "an idle second";
  store(2);
  ASSERT_FALSE(receive_blocks(socket, 1).empty());
  const auto found = replay(0);
  ASSERT_GE(found.size(), 4u);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].first, i);
  EXPECT_NE(found[0].second.find("AllBlocksCleared"), std::string::npos);
  const auto stores = [](const auto& batch) {
    return batch.second.find("BlockStored") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(found, stores), 2);
  const auto rest = replay(2);
  ASSERT_GE(rest.size(), 2u);
  EXPECT_EQ(rest[0], found[2]);
  EXPECT_TRUE(replay(1'000'000).empty());
  // A replay is counted when its end was sent, which may be after it came.
  EXPECT_TRUE(eventually([&] { return publisher_->stats().replays == 3; }));
  EXPECT_EQ(publisher_->stats().replayed, found.size() + rest.size());
}

// Too much for the buffer: the numbers begin again, with what is held, as after a restart.
TEST_F(EventPublisherTest, AReplayAlwaysBeginsAtTheBeginning) {
  start({.buffer_steps = 4});
  ZmqSocket socket = subscribe("");
  ASSERT_TRUE(eventually([&] { return publisher_->stats().subscribers == 1; }));
  std::optional<uint64_t> last;
  bool went_back = false;
  for (uint64_t hash = 1; hash <= 20; ++hash) {
    store(hash);
    if (hash > 2) publisher_->watcher()->removed({.hash = hash - 2});  // said with the next block
    // What is held comes once more where the numbers begin again.
    for (bool is_new = false; !is_new;) {
      const std::vector<Frames> found = receive_blocks(socket, 1);
      ASSERT_FALSE(found.empty());
      for (const Frames& frames : found) {
        const uint64_t sequence = sequence_of(frames[1]);
        EXPECT_TRUE(!last || sequence == *last + 1 || sequence == 0) << sequence;
        went_back |= last && sequence < *last;
        last = sequence;
      }
      is_new = found.back()[2].find("AllBlocksCleared") == std::string::npos;
    }
    const auto kept = replay(0);
    ASSERT_FALSE(kept.empty());
    EXPECT_LE(kept.size(), 1u + 4u);
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i].first, i);
    EXPECT_NE(kept[0].second.find("AllBlocksCleared"), std::string::npos);
  }
  EXPECT_TRUE(went_back);
}

TEST_F(EventPublisherTest, WhatIsNoRequestIsPassedOver) {
  start();
  ZmqSocket socket = context_->socket(ZMQ_DEALER).value();
  ASSERT_TRUE(socket.open(publisher_->replay_endpoint(), false));
  for (const std::vector<std::string_view>& wrong : {std::vector<std::string_view>{"a"},
                                                     {"", "1234567"},
                                                     {"", "123456789"},
                                                     {"x", "12345678"},
                                                     {"", "12345678", ""},
                                                     {"", "", "", "", "", "", "", "", "", ""},
                                                     {""}}) {
    ASSERT_TRUE(eventually([&] { return socket.send(wrong) == Sent::kDone; }));
  }
  EXPECT_EQ(replay(0).size(), 1u);
  EXPECT_FALSE(socket.receive());
}

// The engine's side never waits, and the reader beside it misses nothing. ZeroMQ drops what is past
// the bound of a connection, of which half may be read and not yet acknowledged: the reader stays
// well within the other half. The blocks are more than the buffers of the kernel take up.
TEST_F(EventPublisherTest, ASubscriberThatNeverReadsHoldsNobodyUp) {
  constexpr int kBound = 1000;
  constexpr uint64_t kUnread = kBound / 10;
  constexpr uint64_t kBlocks = 20'000;
  const std::vector<int32_t> tokens(256, 300);  // a batch within kMaxReceived
  start({.hwm = kBound}, static_cast<int32_t>(tokens.size()));
  ZmqSocket stuck = subscribe("");
  ZmqSocket reader = subscribe("");
  ASSERT_TRUE(eventually([&] { return publisher_->stats().subscribers == 2; }));
  uint64_t stored = 0;
  for (uint64_t seen = 0; seen < kBlocks;) {
    while (stored < kBlocks && stored < seen + kUnread) store(++stored, tokens);
    const Frames frames = receive(reader);
    ASSERT_EQ(frames.size(), 3u) << "nothing came after " << seen << " blocks";
    seen += frames[2].find("BlockStored") != std::string::npos;
  }
  EXPECT_EQ(publisher_->stats().dropped, 0u) << "by the queue of the engine's side";
  uint64_t kept = 0;
  while (stuck.receive()) ++kept;
  EXPECT_LT(kept, kBlocks) << "it was never full";
}

TEST_F(EventPublisherTest, AnAddressInUseIsRefusedByItsKey) {
  start();
  for (const bool is_replay : {false, true}) {
    EventsConfig config = {.endpoint = "tcp://127.0.0.1:*"};
    (is_replay ? config.replay_endpoint : config.endpoint) = publisher_->endpoint();
    const auto second = EventPublisher::start(config, {});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kIo);
    EXPECT_EQ(second.error().where,
              is_replay ? "kv-events-config.replay_endpoint" : "kv-events-config.endpoint");
  }
}

}  // namespace
}  // namespace rudder::fleet
