// LookaheadWindow: the window of lookahead decoding (Fu et al. 2024), a Jacobi iteration over the
// tokens to come of one sequence. It has W columns. Column i guesses N - 1 tokens in a row from
// i tokens behind the sequence's last one on, which is column 0's first. Each step asks the
// model what comes behind each column, whose first token it sees behind the first tokens of the
// columns before it, then:
// - the column has N tokens, which are an n-gram that the model says itself: out with it;
// - without its first token it begins one position further on, as the sequence does with the step's
//   token. Where a step gave more tokens, columns whose position has passed begin again behind the
//   last one.
// Columns begin with one token; until a column has N - 1, a step only makes it longer.
// One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace rudder::draft {

struct LookaheadSettings {
  int32_t window = 10;     // W, columns
  int32_t ngram = 4;       // N, tokens of an n-gram
  int32_t candidates = 8;  // G, n-grams of the pool that a step verifies

  // Drafts of a step at most: the first tokens of all columns but the first, the others of each,
  // and those of the n-grams behind the sequence's last token.
  int32_t num_drafts() const {
    return (window - 1) + window * (ngram - 2) + candidates * (ngram - 1);
  }
};

class LookaheadWindow {
 public:
  // `columns` >= 1, of `ngram` - 1 >= 1 tokens. first(i): what column i begins with.
  LookaheadWindow(int32_t columns, int32_t ngram, const std::function<int32_t(int32_t)>& first);

  // The sequence has so many tokens more, of which `last` is the last.
  void advance(int64_t num_tokens, int32_t last);
  // Behind each of the first columns the token that the model says; -1: it says none. The n-grams
  // that columns have become.
  std::vector<std::vector<int32_t>> extend(std::span<const int32_t> behind);

  int32_t num_columns() const { return static_cast<int32_t>(columns_.size()); }
  // 1 to N - 1 tokens.
  std::span<const int32_t> column(int32_t i) const { return columns_[static_cast<size_t>(i)]; }

 private:
  size_t ngram_;
  std::deque<std::vector<int32_t>> columns_;
  int64_t moved_ = 0;  // positions that the first column has moved on since the last advance()
};

}  // namespace rudder::draft
