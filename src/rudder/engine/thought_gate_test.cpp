#include "rudder/engine/thought_gate.h"

#include <gtest/gtest.h>

#include <random>

namespace rudder::engine {
namespace {

// thoughts|rest, whole and in every way of cuts that is drawn.
std::string parted(const ThoughtText& marks, const std::string& text) {
  std::mt19937_64 rng(3);
  std::string first;
  for (int round = 0; round < 50; ++round) {
    ThoughtGate gate(marks);
    ThoughtGate::Parts all;
    for (size_t at = 0; at < text.size();) {
      const size_t length = round == 0 ? text.size() : rng() % 5;
      const ThoughtGate::Parts parts = gate.push(std::string_view(text).substr(at, length));
      all.thoughts += parts.thoughts;
      all.rest += parts.rest;
      at += length;
    }
    all.rest += gate.flush();
    const std::string line = all.thoughts + "|" + all.rest;
    if (round == 0) first = line;
    EXPECT_EQ(line, first) << text;
  }
  return first;
}

TEST(ThoughtGate, PartsThoughtsFromTheRest) {
  const ThoughtText closed = {.begin = "<think>", .end = "</think>"};
  EXPECT_EQ(parted(closed, "no thoughts </think> here"), "|no thoughts </think> here");
  EXPECT_EQ(parted(closed, "\n<think>a b</think>c</think>"), "\n<think>a b</think>|c</think>");
  EXPECT_EQ(parted(closed, "<think>never ends </thin"), "<think>never ends </thin|");
  EXPECT_EQ(parted(closed, " <thi"), "| <thi");
  EXPECT_EQ(parted(closed, "x<think>y</think>"), "|x<think>y</think>");
  const ThoughtText open = {.begin = "<think>", .end = "</think>", .open = true};
  EXPECT_EQ(parted(open, "a</</think>b"), "a</</think>|b");
  EXPECT_EQ(parted(open, "<think>a</think>b"), "<think>a</think>|b");
}

TEST(ThoughtGate, WithoutMarksAllIsRest) {
  ThoughtGate gate(std::nullopt);
  EXPECT_EQ(gate.push("<think>a").rest, "<think>a");
  EXPECT_EQ(gate.flush(), "");
}

}  // namespace
}  // namespace rudder::engine
