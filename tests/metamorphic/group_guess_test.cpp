// What guesses for a group of ranks, a draft model or heads, each rank with a part of it: the text
// is that of plain decoding, the guesses are those of one device, and every rank has the same bits.
#include <gtest/gtest.h>

#include "metamorphic/groups.h"
#include "metamorphic/guess_notes.h"
#include "metamorphic/tap_asks.h"

namespace rudder::metamorphic {
namespace {

using testing::TinyArch;

constexpr int32_t kDrafts = 5;  // as many as there are Medusa heads

// A model that guesses for itself is right about every greedy token, on ranks as on one device.
TEST(GroupGuesses, OwnGuessesAreAllRight) {
  for (const TinyArch arch : {TinyArch::kPreNorm, TinyArch::kHeadNorm}) {
    std::vector<Ask> asks = random_asks(10, 41, 40);
    for (Ask& ask : asks) {
      ask.sampling = {};
      ask.sampling.temperature = 0;
    }
    const RankBackend& backend = rank_backends()[1];
    for (const int32_t ranks : {2, 4, 8}) {
      const int32_t heads = heads_for(ranks);
      const std::vector<Got> plain =
          run(*tiny_group(backend, arch, kRoomy, {.num_heads = heads}), plain_settings(), asks).got;
      step::Capacity capacity = kRoomy;
      capacity.drafts.max_draft = 4;
      const auto executor =
          tiny_group(backend, arch, capacity,
                     {.num_ranks = ranks, .num_heads = heads, .guesser = Guesser::kItself});
      sched::SchedSettings settings = plain_settings();
      settings.max_in_flight = 2;
      const Outcome outcome = run(*executor, settings, spread_asks(asks));
      expect_nearly_same(plain, outcome.got, kNear);
      EXPECT_GT(outcome.stats.accepted_tokens, 100u);
      EXPECT_EQ(outcome.stats.draft_tokens, outcome.stats.accepted_tokens);
    }
  }
}

class GroupHeads : public ::testing::TestWithParam<GroupParam> {
 protected:
  static TinyArch arch() { return std::get<1>(GetParam()); }

  static std::unique_ptr<step::Executor> executor(const step::Capacity& capacity, GroupAsk ask) {
    ask.num_heads = heads_for(std::get<2>(GetParam()));
    return tiny_group(rank_backends()[std::get<0>(GetParam())], arch(), capacity, ask);
  }
  static std::unique_ptr<step::Executor> group(const step::Capacity& capacity, GroupAsk ask = {}) {
    ask.num_ranks = std::get<2>(GetParam());
    return executor(capacity, ask);
  }
};

TEST_P(GroupHeads, GuessAsOnOneDevice) {
  const std::vector<Ask> asks = spread_asks(random_masked_asks(8, 53, 30));
  step::Capacity capacity = kRoomy;
  capacity.drafts.max_draft = kDrafts;
  for (const Guesser guesser : kGuessersOnRanks) {
    if (!takes_guesser(arch(), guesser)) continue;
    SCOPED_TRACE(guesser_name(guesser));
    const auto one = executor(capacity, {.guesser = guesser});
    const auto ranks = group(capacity, {.guesser = guesser});
    GuessNotes expected(*one);
    GuessNotes got(*ranks);
    const Outcome of_one = run(expected, plain_settings(), asks);
    const Outcome outcome = run(got, plain_settings(), asks);
    expect_nearly_same(of_one.got, outcome.got, arch() == TinyArch::kGated ? 5e-5 : kNear);
    EXPECT_GT(outcome.stats.draft_tokens, least_drafts(guesser));
    // Streams that products gate are near ties more often: ranks round sums of theirs otherwise.
    if (arch() == TinyArch::kGatedStreams) {
      EXPECT_LE(num_different(expected.notes, got.notes), got.notes.size() / 50);
    } else {
      EXPECT_EQ(expected.notes, got.notes);
    }
  }
}

class GroupHeadBits : public GroupHeads {};

// Of steered and captured sequences too, in any batch, behind preemption and cached prefixes.
TEST_P(GroupHeadBits, RanksHaveTheSameBitsAndTheTextIsThatOfPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(10, 54, 30);
  step::Capacity tight = kRoomy;
  tight.num_blocks = 18;
  tight.drafts.max_draft = kDrafts;
  std::vector<Got> plain;
  {
    const auto roomy = group(kRoomy, {.has_taps = true});
    add_random_taps(asks, roomy->capacity(), 55);
    plain = run_alone(*roomy, asks);
  }
  asks = spread_asks(std::move(asks));
  for (const Guesser guesser : kGuessersOnRanks) {
    if (!takes_guesser(arch(), guesser)) continue;
    SCOPED_TRACE(guesser_name(guesser));
    std::vector<HashingOps::Hashes> hashes;
    hashes.reserve(static_cast<size_t>(std::get<2>(GetParam())));
    const RankWrap wrap = [&](std::unique_ptr<ops::Ops> inner) -> std::unique_ptr<ops::Ops> {
      return std::make_unique<HashingOps>(std::move(inner), hashes.emplace_back());
    };
    const Outcome busy = run(*group(tight, {.has_taps = true, .guesser = guesser, .wrap = wrap}),
                             busy_settings(), asks);
    EXPECT_EQ(busy.lost_tokens, 0);
    EXPECT_GT(busy.constrained_steps, 0);
    EXPECT_GT(busy.stats.draft_tokens, least_drafts(guesser));
    expect_same(plain, busy.got, "as plain decoding alone");
    ASSERT_EQ(std::ssize(hashes), std::get<2>(GetParam()));
    for (const HashingOps::Hashes& rank : hashes) EXPECT_EQ(rank, hashes[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, GroupHeads,
                         ::testing::ValuesIn(group_params({1}, Turn::kFirst).daily), group_name);
INSTANTIATE_TEST_SUITE_P(Full, GroupHeads,
                         ::testing::ValuesIn(group_params({0, 1}, Turn::kFirst).others),
                         group_name);
INSTANTIATE_TEST_SUITE_P(FullEight, GroupHeads,
                         ::testing::ValuesIn(group_params({1}, Turn::kFirst).of_eight), group_name);
INSTANTIATE_TEST_SUITE_P(Tiny, GroupHeadBits,
                         ::testing::ValuesIn(group_params({1, 2}, Turn::kSecond).daily),
                         group_name);
INSTANTIATE_TEST_SUITE_P(Full, GroupHeadBits,
                         ::testing::ValuesIn(group_params({1, 2}, Turn::kSecond).others),
                         group_name);
INSTANTIATE_TEST_SUITE_P(FullEight, GroupHeadBits,
                         ::testing::ValuesIn(group_params({1}, Turn::kSecond).of_eight),
                         group_name);

}  // namespace
}  // namespace rudder::metamorphic
