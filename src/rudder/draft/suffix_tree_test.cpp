// The suffix tree against counting by brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "rudder/base/philox.h"
#include "rudder/draft/suffix_tree.h"

namespace rudder::draft {
namespace {

using TokenRun = std::vector<int32_t>;

// Every run of every text, and how often it occurs.
class CountedRuns {
 public:
  explicit CountedRuns(int32_t depth) : depth_(depth) {}

  void begin_text() { text_.clear(); }
  void append(int32_t token) {
    text_.push_back(token);
    const int32_t longest = std::min(depth_, static_cast<int32_t>(text_.size()));
    for (int32_t len = 1; len <= longest; ++len)
      ++counts_[TokenRun(text_.end() - len, text_.end())];
  }
  int32_t count(const TokenRun& run) const {
    const auto found = counts_.find(run);
    return found == counts_.end() ? 0 : found->second;
  }
  const std::map<TokenRun, int32_t>& counts() const { return counts_; }
  const TokenRun& text() const { return text_; }

  // How often the most frequent token follows.
  int32_t most_behind(const TokenRun& run) const {
    int32_t most = 0;
    for (auto it = counts_.upper_bound(run); it != counts_.end(); ++it) {
      if (it->first.size() < run.size() || !std::equal(run.begin(), run.end(), it->first.begin())) {
        break;
      }
      if (it->first.size() == run.size() + 1) most = std::max(most, it->second);
    }
    return most;
  }

 private:
  int32_t depth_;
  TokenRun text_;
  std::map<TokenRun, int32_t> counts_;
};

// The guess is what the limits allow behind some match, each of its tokens a most frequent one, and
// no match has a higher score. Which of several most frequent tokens it takes is its own affair, so
// a better score of another match is not looked for where there are several.
void check_guess(const SuffixGuess& guess, const CountedRuns& counted, const TokenRun& context,
                 bool is_own, const SuffixLimits& limits) {
  if (guess.tokens.empty()) return;
  const auto match_len = static_cast<size_t>(guess.match_len);
  ASSERT_LE(match_len, context.size());
  TokenRun run(context.end() - guess.match_len, context.end());
  const double budget = limits.max_spec_factor * guess.match_len + limits.max_spec_offset;
  ASSERT_LE(std::ssize(guess.tokens), std::min<int64_t>(limits.most, std::llround(budget - 0.499)));
  double prob = 1;
  double score = 0;
  int32_t ending = is_own ? 1 : 0;
  for (const int32_t token : guess.tokens) {
    const int32_t of = counted.count(run) - ending;
    const int32_t most = counted.most_behind(run);
    run.push_back(token);
    ASSERT_EQ(counted.count(run), most);
    prob *= static_cast<double>(most) / of;
    ASSERT_GE(prob, limits.min_token_prob - 1e-9);
    score += prob;
    ending = 0;
  }
  ASSERT_NEAR(score, guess.score, 1e-6);
}

TEST(SuffixTree, CountsAsBruteForceDoes) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    uint64_t draws = 0;
    const auto below = [&](int32_t n) {
      return static_cast<int32_t>(philox_u64(seed, ++draws) % static_cast<uint64_t>(n));
    };
    const int32_t depth = 2 + below(10);
    const int32_t vocab = 1 + below(6);
    const SuffixLimits limits = {.most = 1 + below(8),
                                 .max_spec_factor = 0.5 * below(5),
                                 .max_spec_offset = 1.0 * below(3),
                                 .min_token_prob = 0.1 * below(6)};
    SuffixTree tree(depth);
    CountedRuns counted(depth);
    for (int32_t text = 0, num_texts = 1 + below(4); text < num_texts; ++text) {
      if (text > 0) {
        tree.begin_text();
        counted.begin_text();
      }
      const int32_t len = below(80);
      for (int32_t i = 0; i < len; ++i) {
        const TokenRun& so_far = counted.text();
        const bool repeats = std::ssize(so_far) > 8 && below(4) != 0;
        const int32_t token = repeats ? so_far[so_far.size() - 7] : below(vocab);
        tree.append(token);
        counted.append(token);
        check_guess(tree.guess(limits), counted, so_far, true, limits);
        if (HasFatalFailure()) FAIL() << seed << " text " << text << " token " << i;
      }
    }
    for (const auto& [run, count] : counted.counts()) ASSERT_EQ(tree.count(run), count) << seed;
    EXPECT_EQ(tree.count(TokenRun{vocab + 1}), 0);
    EXPECT_LE(tree.num_nodes(), 2 * tree.num_tokens() + 4 * depth + 1);
    for (int i = 0; i < 20; ++i) {
      TokenRun context;
      for (int32_t j = 0, len = 1 + below(depth); j < len; ++j) context.push_back(below(vocab));
      check_guess(tree.guess_behind(context, limits), counted, context, false, limits);
      if (HasFatalFailure()) FAIL() << seed;
    }
  }
}

// By hand: 1 2 3 follows 7 three times of four, so a match of 1 drafts 1 token, one of 2 drafts 2.
TEST(SuffixTree, ADraftIsAsLongAsMatchAndCountsSay) {
  SuffixTree tree(8);
  for (const TokenRun& text :
       {TokenRun{9, 7, 1, 2, 3}, TokenRun{7, 1, 2, 3}, TokenRun{7, 1, 4}, TokenRun{7, 5}}) {
    tree.begin_text();
    for (const int32_t token : text) tree.append(token);
  }
  const SuffixLimits limits = {.most = 8, .min_token_prob = 0.1};
  const SuffixGuess one = tree.guess_behind(TokenRun{8, 7}, limits);
  EXPECT_EQ(one.tokens, TokenRun{1});
  EXPECT_EQ(one.match_len, 1);
  EXPECT_DOUBLE_EQ(one.score, 0.75);
  const SuffixGuess two = tree.guess_behind(TokenRun{9, 7}, limits);
  EXPECT_EQ(two.tokens, (TokenRun{1, 2}));
  EXPECT_DOUBLE_EQ(two.score, 2);
  EXPECT_EQ(tree.guess_behind(TokenRun{7, 1}, {.most = 1, .min_token_prob = 0.7}).tokens,
            TokenRun{});
  EXPECT_EQ(tree.guess_behind(TokenRun{6}, limits).tokens, TokenRun{});
}

TEST(SuffixTree, BytesAreBoundedByTokens) {
  for (const int32_t period : {1, 7, 1000, 100'000}) {
    SuffixTree tree(24);
    for (int32_t i = 0; i < 20'000; ++i) {
      const int64_t bound = tree.bytes_after(1);
      tree.append(static_cast<int32_t>(philox_u64(1, static_cast<uint64_t>(i % period)) % 500));
      ASSERT_LE(tree.bytes(), bound);
    }
    EXPECT_LE(tree.num_nodes(), 2 * 20'000 + 25) << period;
  }
}

}  // namespace
}  // namespace rudder::draft
