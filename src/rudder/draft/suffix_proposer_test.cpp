// Who sees whose finished outputs, and what is remembered for how long.
#include <gtest/gtest.h>

#include "rudder/draft/suffix_proposer.h"

namespace rudder::draft {
namespace {

using Tokens = std::vector<int32_t>;
constexpr int64_t kPlenty = int64_t{64} << 20;

// `count` tokens that stand nowhere else.
Tokens own_text(int32_t first, int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

sched::NewSequence sequence_of(uint64_t id, Tokens prompt, std::string salt = "") {
  sched::NewSequence sequence;
  sequence.id = sched::SequenceId(id);
  sequence.prompt = std::move(prompt);
  sequence.cache_salt = std::move(salt);
  return sequence;
}

std::shared_ptr<const tap::SequenceTaps> steered(uint64_t key) {
  auto taps = std::make_shared<tap::SequenceTaps>();
  taps->segments.push_back({.content = {.low = key, .high = 1}, .program = nullptr});
  return taps;
}

class Drafting {
 public:
  explicit Drafting(int32_t max_cached, int64_t max_bytes = kPlenty)
      : proposer({.max_cached_requests = max_cached}, max_bytes) {}

  // Runs a sequence from its prompt to the end of `output`.
  void run(sched::NewSequence sequence, const Tokens& output) {
    Tokens whole = sequence.prompt;
    whole.insert(whole.end(), output.begin(), output.end());
    proposer.begin(sequence);
    proposer.end(sequence.id, whole);
  }
  // What a new sequence is drafted behind its prompt, once all is filed.
  Tokens draft_for(const sched::NewSequence& sequence) {
    sched::Draft draft;
    proposer.begin(sequence);
    for (int i = 0; i < 64; ++i) {
      draft = {};
      proposer.propose(sequence.id, sequence.prompt, {.most = 4}, &draft);
    }
    proposer.end(sequence.id, sequence.prompt);
    return draft.tokens;
  }

  SuffixProposer proposer;
};

TEST(SuffixProposer, DraftsFromTheSequencesOwnText) {
  Drafting drafting(0);
  Tokens prompt = own_text(100, 20);
  prompt.insert(prompt.end(), {103, 104, 105, 106});
  EXPECT_EQ(drafting.draft_for(sequence_of(1, prompt)), (Tokens{107, 108, 109, 110}));
  EXPECT_EQ(drafting.draft_for(sequence_of(2, own_text(100, 20))), Tokens());
  EXPECT_EQ(drafting.proposer.bytes(), 0);
}

TEST(SuffixProposer, FinishedOutputsAreOfOneTenantUnderOneSteering) {
  Drafting drafting(10);
  drafting.run(sequence_of(1, own_text(0, 5), "a"), own_text(100, 40));
  sched::NewSequence steered_one = sequence_of(2, own_text(0, 5), "a");
  steered_one.taps = steered(7);
  drafting.run(steered_one, own_text(500, 40));

  const Tokens plain_end = {1, 110, 111, 112, 113};
  const Tokens steered_end = {1, 510, 511, 512, 513};
  EXPECT_EQ(drafting.draft_for(sequence_of(3, plain_end, "a")), (Tokens{114, 115, 116, 117}));
  EXPECT_EQ(drafting.draft_for(sequence_of(4, plain_end, "b")), Tokens());
  EXPECT_EQ(drafting.draft_for(sequence_of(5, plain_end)), Tokens());
  EXPECT_EQ(drafting.draft_for(sequence_of(6, steered_end, "a")), Tokens());
  sched::NewSequence alike = sequence_of(7, steered_end, "a");
  alike.taps = steered(7);
  EXPECT_EQ(drafting.draft_for(alike), (Tokens{514, 515, 516, 517}));
  alike.id = sched::SequenceId(8);
  alike.taps = steered(8);
  EXPECT_EQ(drafting.draft_for(alike), Tokens());
  sched::NewSequence of_other_tenant = sequence_of(10, plain_end, "a");
  of_other_tenant.tenant = 1;
  EXPECT_EQ(drafting.draft_for(of_other_tenant), Tokens());
  // A prompt is nobody's output.
  EXPECT_EQ(drafting.draft_for(sequence_of(9, {9, 0, 1, 2}, "a")), Tokens());
}

TEST(SuffixProposer, KeepsNothingUnlessAsked) {
  Drafting drafting(0);
  drafting.run(sequence_of(1, own_text(0, 5)), own_text(100, 40));
  EXPECT_EQ(drafting.draft_for(sequence_of(2, {1, 110, 111, 112})), Tokens());
}

// Of each tenant the last half of max_cached_requests are there, and never more than all.
TEST(SuffixProposer, ForgetsTheOldestOutputs) {
  Drafting drafting(4);
  for (int32_t i = 0; i < 9; ++i) {
    drafting.run(sequence_of(static_cast<uint64_t>(1 + i), {1}), own_text(1000 * i, 30));
  }
  const auto knows = [&](int32_t i) {
    const Tokens end = {1, 1000 * i + 10, 1000 * i + 11, 1000 * i + 12};
    return !drafting.draft_for(sequence_of(static_cast<uint64_t>(100 + i), end)).empty();
  };
  for (int32_t i = 0; i < 5; ++i) EXPECT_FALSE(knows(i)) << i;
  EXPECT_TRUE(knows(7));
  EXPECT_TRUE(knows(8));
}

TEST(SuffixProposer, BytesStayBounded) {
  constexpr int64_t kMaxBytes = 1 << 20;
  Drafting drafting(1000, kMaxBytes);
  for (int32_t i = 0; i < 60; ++i) {
    const auto id = static_cast<uint64_t>(1 + i);
    drafting.run(sequence_of(id, {1}, std::string(1, static_cast<char>('a' + i % 3))),
                 own_text(2000 * i, 1500));
    (void)drafting.draft_for(sequence_of(1000 + id, own_text(2000 * i, 4000)));
    ASSERT_LE(drafting.proposer.bytes(), 2 * kMaxBytes);
  }
  // The last output is known still.
  const Tokens end = {1, 2000 * 59 + 1490, 2000 * 59 + 1491, 2000 * 59 + 1492};
  const std::string salt(1, static_cast<char>('a' + 59 % 3));
  EXPECT_FALSE(drafting.draft_for(sequence_of(5000, end, salt)).empty());
}

}  // namespace
}  // namespace rudder::draft
