// The suffix tree against counting by brute force.
#include <gtest/gtest.h>

#include <algorithm>
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

  // Which tokens follow, and how often.
  std::map<int32_t, int32_t> behind(const TokenRun& run) const {
    std::map<int32_t, int32_t> behind;
    for (auto it = counts_.upper_bound(run); it != counts_.end(); ++it) {
      if (it->first.size() < run.size() || !std::equal(run.begin(), run.end(), it->first.begin())) {
        break;
      }
      if (it->first.size() == run.size() + 1) behind[it->first.back()] = it->second;
    }
    return behind;
  }

 private:
  int32_t depth_;
  TokenRun text_;
  std::map<TokenRun, int32_t> counts_;
};

// What the tree says follows the run, against all that does.
void check_next(const SuffixTree& tree, SuffixTree::Site site, const CountedRuns& counted,
                const TokenRun& run) {
  std::vector<SuffixTree::Next> next;
  const int32_t total = tree.append_next(site, &next);
  const std::map<int32_t, int32_t> behind = counted.behind(run);
  ASSERT_EQ(next.size(), std::min(behind.size(), size_t{SuffixTree::kMostNext}));
  int32_t all = 0;
  for (const auto& [token, count] : behind) all += count;
  if (std::ssize(behind) <= SuffixTree::kMostNext) {
    ASSERT_EQ(total, all);
  }
  for (const SuffixTree::Next& one : next) {
    ASSERT_EQ(one.count, behind.at(one.token));
    ASSERT_LE(one.count, next.front().count);
    TokenRun longer = run;
    longer.push_back(one.token);
    const SuffixTree::Site there = tree.step(site, one.token);
    ASSERT_FALSE(there.is_none());
    std::vector<SuffixTree::Next> further;
    tree.append_next(there, &further);
    ASSERT_EQ(further.empty(), counted.behind(longer).empty());
  }
  ASSERT_TRUE(tree.step(site, 1 << 20).is_none());
}

// The runs that end `context` and occur elsewhere: all of them, and what follows each.
void check_ends(const SuffixTree& tree, const std::vector<SuffixTree::Site>& ends,
                const CountedRuns& counted, const TokenRun& context, int32_t depth, bool is_own) {
  size_t len = 1;
  for (; len <= std::min(context.size(), static_cast<size_t>(depth)); ++len) {
    const TokenRun run(context.end() - static_cast<ptrdiff_t>(len), context.end());
    if (counted.count(run) <= (is_own ? 1 : 0)) break;
    ASSERT_LE(len, ends.size());
    check_next(tree, ends[len - 1], counted, run);
    if (::testing::Test::HasFatalFailure()) return;
  }
  ASSERT_EQ(ends.size(), len - 1);
}

TEST(SuffixTree, CountsAsBruteForceDoes) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    uint64_t draws = 0;
    const auto below = [&](int32_t n) {
      return static_cast<int32_t>(philox_u64(seed, ++draws) % static_cast<uint64_t>(n));
    };
    const int32_t depth = 2 + below(10);
    const int32_t vocab = 1 + below(seed % 5 == 0 ? 40 : 6);
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
        std::vector<SuffixTree::Site> ends;
        tree.append_ends(&ends);
        check_ends(tree, ends, counted, so_far, depth, true);
        if (HasFatalFailure()) FAIL() << seed << " text " << text << " token " << i;
      }
    }
    for (const auto& [run, count] : counted.counts()) ASSERT_EQ(tree.count(run), count) << seed;
    EXPECT_EQ(tree.count(TokenRun{vocab + 1}), 0);
    EXPECT_LE(tree.num_nodes(), 2 * tree.num_tokens() + 4 * depth + 1);
    for (int i = 0; i < 20; ++i) {
      TokenRun context;
      for (int32_t j = 0, len = 1 + below(depth); j < len; ++j) context.push_back(below(vocab));
      std::vector<SuffixTree::Site> ends;
      tree.append_ends_of(context, &ends);
      check_ends(tree, ends, counted, context, depth, false);
      if (HasFatalFailure()) FAIL() << seed;
    }
  }
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
