#include "rudder/testing/fake_proposer.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/base/philox.h"
#include "rudder/testing/random_tree.h"

namespace rudder::testing {

FakeProposer::FakeProposer(const step::Capacity& capacity, uint64_t seed, double odds)
    : capacity_(capacity),
      seed_(seed),
      odds_(odds),
      group_(static_cast<size_t>(std::ranges::find(capacity.kv_groups, 0, &step::KvGroup::window) -
                                 capacity.kv_groups.begin())),
      memory_(capacity.drafts.guesses_from_rows ? 0
                                                : static_cast<size_t>(capacity.num_blocks) *
                                                      static_cast<size_t>(capacity.block_size)) {
  RUDDER_CHECK(
      capacity.drafts.guesses_from_rows || group_ < static_cast<size_t>(capacity.kv_groups.size()),
      "no KV group keeps every token");
}

FakeProposer::Cell& FakeProposer::cell(const Sequence& sequence, int32_t position) {
  const int64_t size = capacity_.block_size;
  const step::BlockId block = sequence.blocks[group_][static_cast<size_t>(position / size)];
  return memory_[static_cast<size_t>(int64_t{block} * size + position % size)];
}

int32_t FakeProposer::below(int32_t n) {
  return static_cast<int32_t>(philox_u64(seed_, ++num_draws_) % static_cast<uint64_t>(n));
}

bool FakeProposer::draws_right(int32_t position, int32_t wrong_at) {
  return odds_ < 0 ? position != wrong_at : below(10'000) < static_cast<int32_t>(odds_ * 10'000);
}

// False: it cannot, which `wrong` has in words.
bool FakeProposer::run_tokens(const step::SeqWork& work, const Sequence& sequence,
                              std::vector<std::string>* wrong) {
  const step::GuessWork& guess = work.guess;
  const auto named_end = guess.begin + static_cast<int32_t>(guess.tokens.size());
  for (int32_t i = guess.begin; i < named_end; ++i) {
    if (sequence.token_at(i) == guess.tokens[static_cast<size_t>(i - guess.begin)]) continue;
    wrong->push_back(
        fmt::format("slot {}: the proposer runs another token at {}", work.slot.value, i));
    return false;
  }
  const int32_t end = guess.num_guess > 0 ? sequence.len : named_end;
  // Of tokens that the plan does not name it runs the last ones, wherever they are.
  const int32_t tail = std::max(named_end, end - std::max(2, 1 + work.num_draft));
  for (int32_t i = guess.begin; i < end; ++i) {
    if (capacity_.drafts.keeps_guesses && i >= named_end && i < tail) continue;
    cell(sequence, i) = {sequence.token_at(i), i};
    if (i == 0 || sequence.row_at(i - 1) == sequence.token_at(i - 1)) continue;
    wrong->push_back(fmt::format("slot {}: the proposer finds rows of another token at {}",
                                 work.slot.value, i - 1));
    return false;
  }
  for (int32_t i = 0; i < end; ++i) {
    const Cell& found = cell(sequence, i);
    if (found.position == i && found.token == sequence.token_at(i)) continue;
    wrong->push_back(fmt::format("slot {}: the proposer has not run position {} of {}",
                                 work.slot.value, i, end));
    return false;
  }
  return true;
}

// The first `most` tokens of a tree, of which often one behind each right one is right.
std::vector<int32_t> FakeProposer::draw_tree(int32_t most, std::span<const int32_t> right) {
  const step::DraftTree& tree = capacity_.drafts.guess_tree;
  const int32_t wrong_at = below(3) == 0 ? below(1 + tree.depth()) : -1;
  return random_tree_guess(
      tree, most, right, capacity_.vocab_size, [&](int32_t n) { return below(n); },
      [&](int32_t row) { return below(3) > 0 && draws_right(tree.depth(row) - 1, wrong_at); });
}

// What it makes of guesses of a tree that others follow lies behind the sequence, one behind
// another.
void FakeProposer::keep_followed(std::span<const int32_t> guess, const Sequence& sequence) {
  const step::DraftTree tree =
      capacity_.drafts.guess_tree.first(static_cast<int32_t>(guess.size()));
  int32_t offset = sequence.len;
  for (int32_t row = 1; row <= tree.size(); ++row) {
    if ((tree.parents() >> row & 1) == 0) continue;
    cell(sequence, offset++) = {guess[static_cast<size_t>(row - 1)],
                                sequence.len + tree.depth(row) - 1};
  }
}

std::vector<int32_t> FakeProposer::run(const step::SeqWork& work, const Sequence& sequence,
                                       std::span<const int32_t> right,
                                       std::vector<std::string>* wrong) {
  const bool from_rows = capacity_.drafts.guesses_from_rows;
  if (!from_rows && !run_tokens(work, sequence, wrong)) return {};
  const int32_t most = std::min(work.guess.num_guess, sequence.max_len - sequence.len - 1);
  if (most <= 0) return {};
  std::vector<int32_t> tokens;
  if (!capacity_.drafts.guess_tree.empty()) {
    tokens = draw_tree(most, right);
    if (!from_rows) keep_followed(tokens, sequence);
    return tokens;
  }
  const int32_t count = odds_ < 0 && below(4) == 0 ? below(most + 1) : most;
  const int32_t wrong_at = below(3) == 0 ? below(count + 1) : -1;
  for (int32_t i = 0; i < count; ++i) {
    const bool is_known = static_cast<size_t>(i) < right.size() && draws_right(i, wrong_at);
    tokens.push_back(is_known ? right[static_cast<size_t>(i)] : below(capacity_.vocab_size));
    // What it makes of a guess that a next one follows lies behind the sequence.
    if (i + 1 < count && !from_rows)
      cell(sequence, sequence.len + i) = {tokens.back(), sequence.len + i};
  }
  return tokens;
}

}  // namespace rudder::testing
