// look_up against a search from the back, as the host's own lookup is tested
// (draft/ngram_test.cpp), over random histories that repeat much and little.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "rudder/ops/look_up_args.h"
#include "rudder/testing/ops_conformance_slots.h"

namespace rudder::testing {
namespace {

using tensor::DType;

// What followed the last earlier occurrence of the longest n-gram at the end.
std::vector<int32_t> guess_by_search(std::vector<int32_t> text, int32_t min_n, int32_t max_n,
                                     int32_t count) {
  const auto len = static_cast<int32_t>(text.size());
  for (int32_t n = std::min(max_n, len - 1); n >= min_n; --n) {
    for (int32_t from = len - 1; from >= n; --from) {
      if (!std::equal(text.end() - n, text.end(), text.begin() + from - n)) continue;
      for (int32_t i = 0; i < count; ++i)
        text.push_back(text[static_cast<size_t>(int64_t{from} + i)]);
      return {text.end() - count, text.end()};
    }
  }
  return {};
}

// What slots keep, and the rows of one step.
struct LookedUp {
  int32_t num_slots = 0;
  int64_t max_len = 0;
  int32_t most = 0;
  std::vector<int32_t> carry, history, guess;
  std::vector<int32_t> len;  // of each slot's history
  std::vector<ops::SampleRow> rows;
  std::vector<ops::SampledToken> sampled;

  LookedUp(int32_t slots, int64_t longest, int32_t most_guessed)
      : num_slots(slots),
        max_len(longest),
        most(most_guessed),
        carry(static_cast<size_t>(slots) + 1),
        history(carry.size() * static_cast<size_t>(longest), -7),
        guess(carry.size() * static_cast<size_t>(most_guessed), -7),
        len(carry.size()) {}

  std::vector<int32_t> tokens(int32_t slot) const {
    const auto begin = history.begin() + slot * max_len;
    return {begin, begin + len[static_cast<size_t>(slot)]};
  }

  // What look_up() makes of rows [first, end), of one slot.
  void look_up(size_t first, size_t end, int32_t min_n, int32_t max_n) {
    const int32_t slot = rows[first].slot;
    bool has_ended = false;
    for (size_t r = first; r < end; ++r) {
      if (sampled[r].end == ops::SampleEnd::kRejected) continue;
      has_ended = has_ended || sampled[r].end != ops::SampleEnd::kNone;
      if (sampled[r].token < 0) continue;
      history[static_cast<size_t>(slot * max_len + rows[r].position)] = sampled[r].token;
      len[static_cast<size_t>(slot)] = rows[r].position + 1;
    }
    std::vector<int32_t> found;
    const std::vector<int32_t> text = tokens(slot);
    const int32_t room = rows[first].max_len - static_cast<int32_t>(text.size()) - 1;
    const int32_t count = std::min({rows[first].num_guess, most, room});
    if (!has_ended && count > 0) found = guess_by_search(text, min_n, max_n, count);
    found.resize(static_cast<size_t>(most), -1);
    std::ranges::copy(found, guess.begin() + slot * most);
  }
};

// New tokens out of `vocab`, and copies of what stood before.
template <typename Below>
std::vector<int32_t> repetitive_text(int64_t len, int32_t vocab, Below below) {
  std::vector<int32_t> text;
  while (std::ssize(text) < len) {
    if (text.empty() || below(3) == 0) {
      text.push_back(below(vocab));
      continue;
    }
    const auto from = static_cast<size_t>(below(std::ssize(text)));
    const auto count = static_cast<size_t>(below(20));
    for (size_t i = 0; i < count; ++i) text.push_back(text[from + i]);
  }
  text.resize(static_cast<size_t>(len));
  return text;
}

TEST_P(OpsConformance, LookUpGuessesWhatASearchFinds) {
  if (ops_.draft_ops() == nullptr) GTEST_SKIP() << "it looks nothing up";
  const auto below = [&](int64_t n) { return static_cast<int32_t>(between(0, n - 1)); };
  int64_t num_found = 0;
  for (const auto& [num_slots, max_len, most] :
       {std::array{1, 24, 1}, std::array{9, 200, 6}, std::array{70, 1000, 16},
        std::array{3, 17000, 128}, std::array{2, 60, 7}}) {
    LookedUp step(num_slots, max_len, most);
    const int32_t vocab = 1 + below(60);
    for (int32_t slot = 0; slot < num_slots; ++slot) {
      const std::vector<int32_t> text = repetitive_text(1 + below(max_len * 9 / 10), vocab, below);
      std::ranges::copy(text, step.history.begin() + slot * max_len);
      step.len[static_cast<size_t>(slot)] = static_cast<int32_t>(text.size());
    }
    ops::SlotState state;
    state.carry = device_.put(step.carry);
    state.history = device_.put_as(std::span<const int32_t>(step.history), DType::kI32,
                                   {num_slots + 1, max_len});
    state.guess =
        device_.put_as(std::span<const int32_t>(step.guess), DType::kI32, {num_slots + 1, most});
    for (int round = 0; round < 12; ++round) {
      const int32_t min_n = 1 + below(4);
      const int32_t max_n = min_n + below(round % 4 == 0 ? 28 : 5);
      step.rows.clear();
      step.sampled.clear();
      std::vector<size_t> firsts;
      for (int32_t slot = 0; slot < num_slots; ++slot) {
        if (below(5) == 0) continue;  // it has nothing to do
        const int32_t at = step.len[static_cast<size_t>(slot)];
        const int32_t num_rows = std::min<int32_t>(1 + below(2) * below(9), step.max_len - at - 1);
        if (num_rows <= 0) continue;
        const int32_t kept = 1 + below(num_rows);
        firsts.push_back(step.rows.size());
        for (int32_t i = 0; i < num_rows; ++i) {
          ops::SampleRow& row = step.rows.emplace_back();
          row.slot = slot;
          row.position = at + i;
          row.max_len = at + 2 + below(60);
          row.num_guess = i == 0 ? below(most + 2) : 0;
          ops::SampledToken& sampled = step.sampled.emplace_back();
          if (i < kept) {
            sampled.token =
                below(3) == 0
                    ? below(vocab)
                    : step.history[static_cast<size_t>(int64_t{slot} * max_len + below(at))];
          } else {
            sampled.end = ops::SampleEnd::kRejected;
          }
        }
        const auto last = step.sampled.end() - num_rows + kept - 1;
        if (below(8) == 0) last->end = ops::SampleEnd::kStopId;
        if (below(12) == 0) *last = {.token = -1, .end = ops::SampleEnd::kNumerical};
        if (below(12) == 0) {
          for (auto row = step.sampled.end() - num_rows; row != step.sampled.end(); ++row) {
            *row = {.token = -1, .end = ops::SampleEnd::kRejected};
          }
          (step.sampled.end() - num_rows)->end = ops::SampleEnd::kMasked;
        }
      }
      for (int32_t i = below(4); i > 0 || step.rows.empty(); --i) {
        step.rows.emplace_back().slot = num_slots;
        step.sampled.push_back({.token = 1});
      }
      const auto num_rows = std::ssize(step.rows);
      const ops::LookUpArgs args = {
          .state = state,
          .rows = device_.put_as(std::span<const ops::SampleRow>(step.rows), DType::kU8,
                                 {num_rows, sizeof(ops::SampleRow)}),
          .sampled = device_.put_as(std::span<const ops::SampledToken>(step.sampled), DType::kI32,
                                    {num_rows, 4}),
          .min_n = min_n,
          .max_n = max_n};
      ops_.draft_ops()->look_up(args);
      for (size_t i = 0; i < firsts.size(); ++i) {
        size_t end = firsts[i];
        while (end < step.rows.size() && step.rows[end].slot == step.rows[firsts[i]].slot) ++end;
        step.look_up(firsts[i], end, min_n, max_n);
        num_found += step.guess[static_cast<size_t>(step.rows[firsts[i]].slot) *
                                static_cast<size_t>(most)] >= 0
                         ? 1
                         : 0;
      }
      const std::string what = std::to_string(num_slots) + " slots, round " + std::to_string(round);
      ASSERT_EQ(device_.values<int32_t>(state.guess), step.guess) << what;
      ASSERT_EQ(device_.values<int32_t>(state.history), step.history) << what;
    }
  }
  EXPECT_GT(num_found, 150);
}

}  // namespace
}  // namespace rudder::testing
