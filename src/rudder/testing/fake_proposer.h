// FakeProposer: the proposer of a FakeExecutor whose capacity guesses. It keeps a fake KV memory of
// its own beside the executor's, in the same blocks, and records in words what a plan makes it run
// that the sequence does not have, and where it guesses behind tokens that it has not run. It keeps
// nothing where it guesses from rows. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rudder/step/executor.h"

namespace rudder::testing {

class FakeProposer {
 public:
  // `odds`: FakeOptions::guess_odds.
  FakeProposer(const step::Capacity& capacity, uint64_t seed, double odds);

  // Whose blocks its memory lies beside.
  int32_t group() const { return static_cast<int32_t>(group_); }

  // A sequence behind its part of a step: its tokens by position, the last sampled one included,
  // and its blocks by KV group.
  struct Sequence {
    std::function<int32_t(int32_t)> token_at;
    std::function<int32_t(int32_t)> row_at;  // whose rows lie at a position, but the last
    int32_t len = 0;
    int32_t max_len = 0;
    std::span<const step::GroupTable> blocks;
  };
  // Runs what the work asks for, and guesses `right` tokens, as far as it is drawn.
  std::vector<int32_t> run(const step::SeqWork& work, const Sequence& sequence,
                           std::span<const int32_t> right, std::vector<std::string>* wrong);

 private:
  struct Cell {
    int32_t token = -1;
    int32_t position = -1;
  };
  Cell& cell(const Sequence& sequence, int32_t position);
  bool run_tokens(const step::SeqWork& work, const Sequence& sequence,
                  std::vector<std::string>* wrong);
  std::vector<int32_t> draw_tree(int32_t most, std::span<const int32_t> right);
  void keep_followed(std::span<const int32_t> guess, const Sequence& sequence);
  bool draws_right(int32_t position, int32_t wrong_at);
  int32_t below(int32_t n);

  const step::Capacity capacity_;
  const uint64_t seed_;
  const double odds_;
  const size_t group_;  // the first without a window
  uint64_t num_draws_ = 0;
  std::vector<Cell> memory_;  // [num_blocks, block_size]; empty where it guesses from rows
};

}  // namespace rudder::testing
