#include "rudder/remote/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "rudder/remote/messages.h"

namespace rudder::remote {
namespace {

constexpr int64_t kPatienceMs = 20'000;

struct Pair {
  std::array<int, 2> ends = {-1, -1};
  Pair() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0); }
};

void write_raw(int descriptor, const std::string& bytes) {
  EXPECT_EQ(write(descriptor, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
}

TEST(ChannelTest, MessagesOfEverySizeComeInOrder) {
  const Pair pair;
  Channel one(pair.ends[0]);
  Channel other(pair.ends[1]);
  std::vector<std::string> sent;
  for (size_t i = 0; i < 40; ++i)
    sent.emplace_back((i * i * i * 97) % 300'000, static_cast<char>(i));
  std::thread sender([&] {
    for (const std::string& text : sent) one.send(Channel::frame(text));
  });
  for (const std::string& text : sent) {
    const auto got = other.receive_as<std::string>(kPatienceMs);
    ASSERT_TRUE(got.has_value() && got->has_value());
    EXPECT_EQ(**got, text);
  }
  sender.join();
  EXPECT_TRUE(one.flush(kPatienceMs));
}

TEST(ChannelTest, NothingComesOrTheOtherSideHasEnded) {
  const Pair pair;
  Channel one(pair.ends[0]);
  auto other = std::make_unique<Channel>(pair.ends[1]);
  EXPECT_FALSE(one.receive(1)->has_value());
  other->send(Channel::frame(std::string("last")));
  EXPECT_TRUE(other->flush(kPatienceMs));
  other.reset();
  EXPECT_EQ(**one.receive_as<std::string>(kPatienceMs), "last");
  EXPECT_EQ(one.receive(kPatienceMs).error().code, ErrorCode::kUnavailable);
  one.send(Channel::frame(std::string("to nobody")));
}

TEST(ChannelTest, WhatIsNoMessageIsAnError) {
  const auto code_of = [](const std::string& bytes, bool is_whole) {
    const Pair pair;
    Channel one(pair.ends[0]);
    write_raw(pair.ends[1], bytes);
    if (is_whole) close(pair.ends[1]);
    const auto got = one.receive_as<FromEngine>(200);
    if (!is_whole) close(pair.ends[1]);
    return got ? std::nullopt : std::optional(got.error().code);
  };
  EXPECT_EQ(code_of("\xff\xff\xff\xff", false), ErrorCode::kIo);                  // too long
  EXPECT_EQ(code_of(std::string("\x02\0\0\0\x63\0", 6), false), ErrorCode::kIo);  // of no kind
  EXPECT_EQ(code_of(std::string("\0\0\0\0", 4), false), ErrorCode::kIo);          // of no byte
  std::string longer = Channel::frame(FromEngine(Refused{.id = 1, .error = {}}));
  longer[0] = static_cast<char>(longer[0] + 1);
  EXPECT_EQ(code_of(longer + "x", false), ErrorCode::kIo);  // a byte too many
  const std::string cut = Channel::frame(FromEngine(Refused{.id = 1, .error = {}}));
  EXPECT_EQ(code_of(cut.substr(0, cut.size() - 1), true), ErrorCode::kUnavailable);
  EXPECT_EQ(code_of(cut.substr(0, cut.size() - 1), false), std::nullopt);  // it may still come
}

}  // namespace
}  // namespace rudder::remote
