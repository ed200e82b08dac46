#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "rudder/base/philox.h"
#include "rudder/draft/lookahead_pool.h"
#include "rudder/draft/lookahead_proposer.h"
#include "rudder/draft/lookahead_window.h"

namespace rudder::draft {
namespace {

using Tokens = std::vector<int32_t>;

class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  int32_t below(int32_t n) {
    return static_cast<int32_t>(philox_u64(seed_, ++count_) % static_cast<uint64_t>(n));
  }

 private:
  const uint64_t seed_;
  uint64_t count_ = 0;
};

TEST(LookaheadPool, KeepsTheLastOnesOfEachFirstToken) {
  constexpr int32_t kMost = 3;
  LookaheadPool pool(3, kMost);
  std::map<int32_t, std::vector<Tokens>> reference;  // the last first
  Draws draws(4);
  for (int i = 0; i < 3000; ++i) {
    const Tokens ngram = {draws.below(7), draws.below(2), draws.below(3)};
    pool.add(ngram, true);
    std::vector<Tokens>& tails = reference[ngram[0]];
    const Tokens tail = {ngram[1], ngram[2]};
    std::erase(tails, tail);
    tails.insert(tails.begin(), tail);
    if (tails.size() > kMost) tails.pop_back();
    for (int32_t first = 0; first < 8; ++first) {
      Tokens wanted;
      for (const Tokens& each : reference[first])
        wanted.insert(wanted.end(), each.begin(), each.end());
      const auto found = pool.find(first);
      ASSERT_EQ(Tokens(found.begin(), found.end()), wanted);
    }
  }
}

TEST(LookaheadPool, WithoutRoomANewOneReplacesTheOldest) {
  LookaheadPool pool(2, 3);
  pool.add(Tokens{1, 10}, true);
  pool.add(Tokens{1, 11}, true);
  const int64_t bytes = pool.bytes();
  EXPECT_GE(pool.bytes_after(), bytes);
  pool.add(Tokens{1, 12}, false);
  pool.add(Tokens{2, 13}, false);
  EXPECT_TRUE(std::ranges::equal(pool.find(1), Tokens{12, 11}));
  EXPECT_TRUE(pool.find(2).empty());
  EXPECT_EQ(pool.bytes(), bytes);
}

// The example of the paper's figure: W = 5, N = 4. Each guess is a number that says of which
// column and step it is, from which follows where it has to stand.
TEST(LookaheadWindow, MovesAsThePapersDoes) {
  LookaheadWindow window(5, 4, [](int32_t i) { return i; });
  // Filling: columns get longer, and each token of the sequence turns them by one position.
  for (int32_t step = 1; step <= 2; ++step) {
    EXPECT_TRUE(
        window.extend(Tokens{10 * step, 10 * step + 1, 10 * step + 2, 10 * step + 3, 10 * step + 4})
            .empty());
    window.advance(1, 100 * step);
    EXPECT_EQ(window.column(0).front(), 100 * step);
    for (int32_t i = 0; i < 5; ++i) EXPECT_EQ(std::ssize(window.column(i)), 1 + step);
  }
  EXPECT_TRUE(std::ranges::equal(window.column(0), Tokens{200, 12, 21}));
  EXPECT_TRUE(std::ranges::equal(window.column(1), Tokens{3, 13, 22}));
  // Full: each column is an n-gram with what comes, and goes on one position further.
  const std::vector<Tokens> ngrams = window.extend(Tokens{30, 31, 32, 33, 34});
  ASSERT_EQ(ngrams.size(), 5u);
  EXPECT_EQ(ngrams[0], (Tokens{200, 12, 21, 30}));
  EXPECT_EQ(ngrams[1], (Tokens{3, 13, 22, 31}));
  window.advance(1, 300);
  EXPECT_TRUE(std::ranges::equal(window.column(0), Tokens{300, 21, 30}));
  EXPECT_TRUE(std::ranges::equal(window.column(1), Tokens{13, 22, 31}));
  // Three tokens at once: two columns have passed, and begin again behind the last.
  window.extend(Tokens{40, 41, 42, 43, 44});
  window.advance(3, 400);
  EXPECT_EQ(window.column(0)[2], 42);
  EXPECT_EQ(window.column(2)[2], 44);
  EXPECT_EQ(window.column(3)[2], 40);
  window.advance(0, 400);  // nothing came
  EXPECT_EQ(window.column(0)[2], 42);
}

TEST(LookaheadWindow, AColumnWithoutAnAnswerStays) {
  LookaheadWindow window(3, 2, [](int32_t i) { return i; });
  const auto ngrams = window.extend(Tokens{-1, 5});
  ASSERT_EQ(ngrams.size(), 1u);
  EXPECT_EQ(ngrams[0], (Tokens{1, 5}));
  EXPECT_TRUE(std::ranges::equal(window.column(0), Tokens{0}));
  EXPECT_TRUE(std::ranges::equal(window.column(1), Tokens{5}));
  EXPECT_TRUE(std::ranges::equal(window.column(2), Tokens{2}));
}

// A model whose next token follows from the last two, for which it has few words.
int32_t next_token(std::span<const int32_t> text) {
  const auto last = static_cast<uint64_t>(text.back());
  const auto before = static_cast<uint64_t>(text.size() > 1 ? text[text.size() - 2] : 0);
  return static_cast<int32_t>(philox_u64(last, before % 3) % 40);
}

Tokens path_of(const sched::Draft& draft, int32_t row) {
  Tokens path;
  for (; row > 0; row = draft.tree.parent(row))
    path.insert(path.begin(), draft.tokens[static_cast<size_t>(row - 1)]);
  return path;
}

sched::NewSequence of_prompt(uint64_t id, Tokens prompt) {
  sched::NewSequence sequence;
  sequence.id = sched::SequenceId(id);
  sequence.prompt = std::move(prompt);
  return sequence;
}

// Every row is answered as the model would. The tree is one, its window's rows stand where the
// paper has them, and it gets the model's own text right more often than not.
TEST(LookaheadProposer, LearnsWhatTheModelSays) {
  const LookaheadSettings settings = {.window = 5, .ngram = 4, .candidates = 2};
  EXPECT_EQ(settings.num_drafts(), 4 + 5 * 2 + 2 * 3);
  LookaheadProposer proposer(settings, 1 << 20);
  Tokens text = {1, 2, 3, 4, 5};
  const auto id = sched::SequenceId(7);
  proposer.begin(of_prompt(7, text));
  int num_steps = 0;
  const size_t prompt_len = text.size();
  while (text.size() < 300) {
    sched::Draft draft;
    proposer.propose(id, text, {.most = settings.num_drafts()}, &draft);
    ASSERT_EQ(draft.tree.size(), std::ssize(draft.tokens));
    ASSERT_LE(draft.tree.size(), settings.num_drafts());
    ASSERT_GE(draft.tree.size(), settings.window - 1);
    sched::Draft again;
    proposer.propose(id, text, {.most = settings.num_drafts()}, &again);
    ASSERT_EQ(again.tokens, draft.tokens);
    std::set<Tokens> paths;
    for (int32_t row = 1; row <= draft.tree.size(); ++row) paths.insert(path_of(draft, row));
    ASSERT_EQ(std::ssize(paths), draft.tree.size());  // none is there twice
    ASSERT_LE(draft.tree.depth(), settings.window - 1 + settings.ngram - 2);
    Tokens rows;
    for (int32_t row = 0; row <= draft.tree.size(); ++row) {
      Tokens whole = text;
      const Tokens path = path_of(draft, row);
      whole.insert(whole.end(), path.begin(), path.end());
      rows.push_back(next_token(whole));
    }
    int32_t row = 0;
    for (;;) {
      const int32_t token = rows[static_cast<size_t>(row)];
      text.push_back(token);
      int32_t next = 0;
      for (int32_t child = row + 1; child <= draft.tree.size(); ++child) {
        const bool is_it = draft.tree.parent(child) == row &&
                           draft.tokens[static_cast<size_t>(child - 1)] == token;
        if (is_it) next = child;
      }
      if (next == 0) break;
      row = next;
    }
    proposer.note_rows(id, rows);
    ++num_steps;
  }
  const double tokens_a_step = static_cast<double>(text.size() - prompt_len) / num_steps;
  EXPECT_GT(tokens_a_step, 2);
  proposer.end(id, text);
  EXPECT_EQ(proposer.bytes(), 0);
}

// A part of a tree, of which rows were cut, is a tree; what it did not ask is not learnt.
TEST(LookaheadProposer, TakesTheRoomThatThereIs) {
  LookaheadProposer proposer({}, 1 << 20);
  proposer.begin(of_prompt(1, {5, 6, 7}));
  const Tokens text = {5, 6, 7, 8};
  for (int32_t most = 1; most < 63; ++most) {
    sched::Draft draft;
    proposer.propose(sched::SequenceId(1), text, {.most = most}, &draft);
    EXPECT_LE(std::ssize(draft.tokens), most);
    EXPECT_GE(std::ssize(draft.tokens), std::min(most, 7));
    proposer.note_rows(sched::SequenceId(1), Tokens{9, 9});
  }
  proposer.end(sched::SequenceId(1), text);
}

TEST(LookaheadProposer, KeepsItsBoundAndGivesEverythingBack) {
  constexpr int64_t kMaxBytes = 1 << 18;
  LookaheadProposer proposer({}, kMaxBytes);
  Draws draws(9);
  Tokens text;
  for (int i = 0; i < 3000; ++i) text.push_back(draws.below(2000));
  for (uint64_t id = 1; id <= 40; ++id) {
    proposer.begin(of_prompt(id, text));
    for (int i = 0; i < 4; ++i) {
      sched::Draft draft;
      proposer.propose(sched::SequenceId(id), text, {.most = 41}, &draft);
      EXPECT_FALSE(draft.tokens.empty());  // the window takes none of it
      proposer.note_rows(sched::SequenceId(id), Tokens(draft.tokens.size() + 1, i));
      ASSERT_LE(proposer.bytes(), kMaxBytes);
    }
  }
  EXPECT_GT(proposer.bytes(), kMaxBytes / 4);
  for (uint64_t id = 1; id <= 40; ++id) proposer.end(sched::SequenceId(id), text);
  EXPECT_EQ(proposer.bytes(), 0);
}

}  // namespace
}  // namespace rudder::draft
