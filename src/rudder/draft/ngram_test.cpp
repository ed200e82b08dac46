// Prompt lookup against a search by brute force, on texts that repeat much and little.
#include <gtest/gtest.h>

#include <algorithm>

#include "rudder/base/philox.h"
#include "rudder/draft/ngram_index.h"
#include "rudder/draft/ngram_proposer.h"
#include "rudder/sched/sequence.h"

namespace rudder::draft {
namespace {

using Tokens = std::vector<int32_t>;

class RandomText {
 public:
  explicit RandomText(uint64_t seed) : seed_(seed) {}
  int32_t below(int32_t n) {
    return static_cast<int32_t>(philox_u64(seed_, ++num_draws_) % static_cast<uint64_t>(n));
  }
  // New tokens out of `vocab`, and copies of what stood before.
  Tokens text(int32_t len, int32_t vocab) {
    Tokens out;
    while (std::ssize(out) < len) {
      if (out.empty() || below(3) == 0) {
        out.push_back(below(vocab));
        continue;
      }
      const int32_t from = below(static_cast<int32_t>(out.size()));
      for (int32_t i = 0, count = below(20); i < count; ++i) {
        out.push_back(out[static_cast<size_t>(from + i)]);
      }
    }
    out.resize(static_cast<size_t>(len));
    return out;
  }

 private:
  const uint64_t seed_;
  uint64_t num_draws_ = 0;
};

Tokens guess_by_search(const Tokens& text, int32_t min_n, int32_t max_n, int32_t count) {
  const auto len = static_cast<int32_t>(text.size());
  for (int32_t n = std::min(max_n, len - 1); n >= min_n; --n) {
    for (int32_t from = len - 1; from >= n; --from) {  // behind the last occurrence first
      if (!std::equal(text.end() - n, text.end(), text.begin() + from - n)) continue;
      Tokens whole = text;
      for (int32_t i = 0; i < count; ++i) whole.push_back(whole[static_cast<size_t>(from + i)]);
      return {whole.end() - count, whole.end()};
    }
  }
  return {};
}

TEST(NgramIndex, FindsWhatASearchFinds) {
  int num_found = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    RandomText random(seed);
    const int32_t min_n = 1 + random.below(4);
    const int32_t max_n = min_n + random.below(5);
    const Tokens text = random.text(1 + random.below(150), 1 + random.below(40));
    NgramIndex index(min_n, max_n);
    Tokens so_far;
    for (const int32_t token : text) {
      so_far.push_back(token);
      ASSERT_TRUE(index.extend(so_far, 1));
      const int32_t count = 1 + random.below(12);
      Tokens draft;
      index.append_guess(so_far, count, &draft);
      ASSERT_EQ(draft, guess_by_search(so_far, min_n, max_n, count)) << seed;
      num_found += draft.empty() ? 0 : 1;
    }
    ASSERT_LE(index.bytes(), NgramIndex(min_n, max_n).bytes_after(std::ssize(text)));
  }
  EXPECT_GT(num_found, 5000);
}

TEST(NgramIndex, IsExtendedInPieces) {
  RandomText random(1);
  const Tokens text = random.text(1000, 50);
  NgramIndex whole(3, 3);
  ASSERT_TRUE(whole.extend(text, 1000));
  NgramIndex pieces(3, 3);
  for (int i = 0; i < 9; ++i) ASSERT_FALSE(pieces.extend(text, 100));
  ASSERT_TRUE(pieces.extend(text, 100));
  Tokens expected;
  Tokens draft;
  whole.append_guess(text, 9, &expected);
  pieces.append_guess(text, 9, &draft);
  EXPECT_EQ(draft, expected);
}

sched::NewSequence prompted(uint64_t id, Tokens prompt) {
  sched::NewSequence sequence;
  sequence.id = sched::SequenceId(id);
  sequence.prompt = std::move(prompt);
  return sequence;
}

TEST(NgramProposer, KeepsItsBoundAndGivesEverythingBack) {
  constexpr int64_t kMaxBytes = 1 << 20;
  NgramProposer proposer(2, 4, kMaxBytes);
  const Tokens text = RandomText(3).text(3000, 2000);
  int num_drafted = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    proposer.begin(prompted(id, text));
    sched::Draft draft;
    for (int i = 0; i < 2; ++i) proposer.propose(sched::SequenceId(id), text, {.most = 5}, &draft);
    num_drafted += draft.tokens.empty() ? 0 : 1;
    ASSERT_LE(proposer.bytes(), kMaxBytes);
  }
  EXPECT_GT(num_drafted, 0);
  EXPECT_LT(num_drafted, 40);
  for (uint64_t id = 1; id <= 40; ++id) proposer.end(sched::SequenceId(id), text);
  EXPECT_EQ(proposer.bytes(), 0);
}

}  // namespace
}  // namespace rudder::draft
