// The automatic bound where prompts are long: it costs little from a server's first request on, and
// where long prompts are few it protects those that stream beside them.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <initializer_list>
#include <utility>
#include <vector>

#include "rudder/testing/load_model.h"

namespace rudder::sched {
namespace {

// About what steps of an 8B model in fp8 take on an H200: 2,048 tokens of a prompt 25 ms without
// keys and 46 ms at 8,000 keys in the mean, decodes of 8 sequences of 16,000 keys 5 ms. Up to 2 %
// more or less.
double long_prompt_us(const step::StepPlan& plan) {
  StepShape shape;
  for (const step::SeqWork& work : plan.seqs) shape.add(work);
  const double us = (shape.prompt_tokens > 0 ? 3900 : 2700) +
                    10.5 * static_cast<double>(plan.num_tokens()) +
                    0.0176 * static_cast<double>(shape.decode_keys) +
                    0.00124 * static_cast<double>(shape.prompt_pairs);
  const double noise = 0.02 * (static_cast<double>(plan.id * 2654435761u % 201) / 100 - 1);
  return us * (1 + noise);
}

using Loads = std::initializer_list<testing::ClosedLoop>;

testing::LoadModel long_prompt_model(int64_t max_itl_us) {
  const step::Capacity capacity = {.num_slots = 512,
                                   .num_blocks = 70'000,
                                   .block_size = 16,
                                   .max_tokens_per_step = 2048,
                                   .max_seq_len = 70'000,
                                   .vocab_size = 1000,
                                   .max_in_flight = 2};
  SchedSettings settings;
  settings.max_num_seqs = 512;
  settings.max_num_batched_tokens = 2048;
  settings.max_itl_us = max_itl_us;
  settings.enable_prefix_caching = false;
  settings.model_identity = "model";
  return {capacity, settings, long_prompt_us};
}

// One behind the other: what the last was served.
testing::LoadFigures serve_in_turn(int64_t max_itl_us, Loads loads) {
  testing::LoadModel model = long_prompt_model(max_itl_us);
  testing::LoadFigures last;
  for (const testing::ClosedLoop& load : loads) last = serve(model, load);
  return last;
}

void print_both(const char* name, const testing::LoadFigures& none,
                const testing::LoadFigures& paced) {
  std::printf("%-32s ITL %.2f, P99 %.2f ms (%.1f); without a bound %.2f, %.2f ms (%.1f)\n", name,
              paced.itl_p50, paced.itl_p99, paced.itl_p99 / paced.itl_p50, none.itl_p50,
              none.itl_p99, none.itl_p99 / none.itl_p50);
  std::printf("  %.0f tok/s (%+.1f %%), mean TTFT %.0f ms (%+.0f %%)\n", paced.tokens_per_s,
              100 * (paced.tokens_per_s / none.tokens_per_s - 1), paced.ttft_mean,
              100 * (paced.ttft_mean / none.ttft_mean - 1));
}

// What clients wait for is prompts: by a bound that follows from decodes few would stream at a
// time.
TEST(LongPromptsTest, TheAutomaticBoundYieldsFromTheFirstRequestOn) {
  constexpr testing::ClosedLoop kShort = {96, 128, 0, 128, 4 * 96};
  constexpr testing::ClosedLoop kVeryLong = {8, 16'000, 0, 128, 3 * 8};
  struct Case {
    const char* name;
    Loads loads;
  };
  for (const Case& c :
       {Case{"16,000/128, 8 clients", {kVeryLong}}, Case{"the same, again", {kVeryLong, kVeryLong}},
        Case{"the same behind 128/128, 96", {kShort, kVeryLong}},
        Case{"16,000/128, 8 clients, longer", {{8, 16'000, 0, 128, 8 * 8}}},
        Case{"32,000/64, 4 clients", {{4, 32'000, 0, 64, 3 * 4}}},
        Case{"64,000/128, 2 clients", {{2, 64'000, 0, 128, 4 * 2}}},
        Case{"8,000/500, 16 clients", {{16, 8000, 0, 500, 3 * 16}}},
        Case{"8,000/500, 16 clients, longer", {{16, 8000, 0, 500, 8 * 16}}},
        Case{"4,000/200, 32 clients", {{32, 4000, 0, 200, 2 * 32}}},
        Case{"4,000/200, 32 clients, longer", {{32, 4000, 0, 200, 8 * 32}}}}) {
    const testing::LoadFigures none = serve_in_turn(kNoItlBound, c.loads);
    const testing::LoadFigures paced = serve_in_turn(kAutoItlBound, c.loads);
    print_both(c.name, none, paced);
    EXPECT_GE(paced.tokens_per_s, 0.97 * none.tokens_per_s) << c.name;
    EXPECT_LE(paced.ttft_mean, 1.2 * none.ttft_mean) << c.name;
    EXPECT_LE(paced.itl_p99, 1.02 * none.itl_p99) << c.name;
  }
}

// It is back as soon as prompts are short again.
TEST(LongPromptsTest, TheBoundHoldsBehindLongPrompts) {
  constexpr testing::ClosedLoop kVeryLong = {8, 16'000, 0, 128, 3 * 8};
  for (const testing::ClosedLoop& load : {testing::ClosedLoop{96, 128, 0, 128, 8 * 96},
                                          testing::ClosedLoop{128, 1000, 0, 1000, 2 * 128}}) {
    const testing::LoadFigures none = serve_in_turn(kNoItlBound, {kVeryLong, load});
    const testing::LoadFigures paced = serve_in_turn(kAutoItlBound, {kVeryLong, load});
    print_both("behind 16,000/128", none, paced);
    EXPECT_LE(paced.itl_p99, 2.5 * paced.itl_p50);
  }
}

constexpr testing::ClosedLoop kChats = {16, 200, 0, 200, 0};

// Chats beside so many clients of a prompt each 15 s: without a bound, then with the automatic one.
struct Beside {
  testing::LoadFigures chats, others;
};
std::array<Beside, 2> chats_beside(int32_t clients, int32_t prompt_len) {
  const testing::ClosedLoop seldom = {clients, prompt_len, 0, 128, 8, 15'000'000};
  const std::array<testing::ClosedLoop, 2> loads = {kChats, seldom};
  std::array<Beside, 2> both;
  for (size_t i = 0; i < both.size(); ++i) {
    testing::LoadModel model = long_prompt_model(i == 0 ? kNoItlBound : kAutoItlBound);
    const std::vector<testing::LoadFigures> figures = serve(model, loads);
    both[i] = {.chats = figures[0], .others = figures[1]};
  }
  std::printf("%d clients of %d/128 now and then\n", clients, prompt_len);
  print_both("chats", both[0].chats, both[1].chats);
  std::printf("  P99 TTFT %.0f ms, without a bound %.0f\n", both[1].chats.ttft_p99,
              both[0].chats.ttft_p99);
  print_both("long", both[0].others, both[1].others);
  return both;
}

// A long prompt now and then beside chats: few wait and many stream, also while it runs. What the
// bound costs it is at most a second; one that is so long that it would be more gets larger steps.
TEST(LongPromptsTest, ChatsAreProtectedFromAFewLongPrompts) {
  struct Case {
    int32_t clients, prompt_len;
    double most_ratio, most_ttft_p99;
  };
  for (const Case& c : {Case{2, 16'000, 2.5, 100}, Case{1, 64'000, 10, 100}}) {
    const auto [none, paced] = chats_beside(c.clients, c.prompt_len);
    EXPECT_LE(paced.chats.itl_p99, c.most_ratio * paced.chats.itl_p50) << c.prompt_len;
    EXPECT_LE(paced.chats.ttft_mean, 0.6 * none.chats.ttft_mean) << c.prompt_len;
    EXPECT_LE(paced.chats.ttft_p99, c.most_ttft_p99) << c.prompt_len;
    EXPECT_LE(paced.others.ttft_mean, none.others.ttft_mean + 1200) << c.prompt_len;
  }
}

// While one of two streams its answer, the other runs in larger pieces: another like it is taken to
// come. The chats wait for these, not for the prompts.
TEST(LongPromptsTest, ChatsDoNotWaitForLongPrompts) {
  const auto [none, paced] = chats_beside(2, 64'000);
  EXPECT_LE(paced.chats.ttft_mean, 0.6 * none.chats.ttft_mean);
  EXPECT_LE(none.chats.ttft_p99, 300);
  EXPECT_LE(paced.chats.ttft_p99, 150);
  EXPECT_LE(paced.chats.itl_p99, 0.7 * none.chats.itl_p99);
  EXPECT_LE(paced.others.ttft_mean, 1.3 * none.others.ttft_mean);
  EXPECT_GE(paced.chats.tokens_per_s, 0.95 * none.chats.tokens_per_s);
}

}  // namespace
}  // namespace rudder::sched
