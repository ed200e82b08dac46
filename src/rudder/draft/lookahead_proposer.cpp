#include "rudder/draft/lookahead_proposer.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/base/philox.h"

namespace rudder::draft {
namespace {

// Tokens of a sequence that one call pools.
constexpr size_t kPooledTokensACall = 1024;

// A tree of at most `most` drafts, in which drafts that are alike behind one token are one.
class Trie {
 public:
  Trie(sched::Draft& draft, int32_t most) : draft_(draft), most_(most) {}

  // The row behind `row` that has the token, new where none has it; -1: there is no room.
  int32_t child(int32_t row, int32_t token) {
    if (row < 0) return -1;
    for (int32_t child = row + 1; child <= draft_.tree.size(); ++child) {
      const bool is_it = draft_.tree.parent(child) == row &&
                         draft_.tokens[static_cast<size_t>(child - 1)] == token;
      if (is_it) return child;
    }
    if (draft_.tree.size() == most_) return -1;
    draft_.tree.add(row);
    draft_.tokens.push_back(token);
    return draft_.tree.size();
  }
  // The last row of a run of tokens.
  int32_t path(int32_t row, std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) row = child(row, token);
    return row;
  }

 private:
  sched::Draft& draft_;
  const int32_t most_;
};

}  // namespace

void LookaheadProposer::begin(const sched::NewSequence& sequence) {
  // Any tokens may begin; those of the text are likelier than others to be followed by its own.
  const auto first = [&](int32_t i) {
    const uint64_t draw = philox_u64(sequence.id.value, static_cast<uint64_t>(i));
    return sequence.prompt[draw % sequence.prompt.size()];
  };
  Text text = {LookaheadPool(settings_.ngram, settings_.candidates),
               LookaheadWindow(settings_.window, settings_.ngram, first)};
  bytes_ += text.pool.bytes();
  const bool is_new = texts_.emplace(sequence.id, std::move(text)).second;
  RUDDER_CHECK(is_new, "sequence {} begins twice", sequence.id.value);
}

void LookaheadProposer::end(sched::SequenceId id, std::span<const int32_t>) {
  const auto found = texts_.find(id);
  RUDDER_CHECK(found != texts_.end(), "sequence {} has not begun", id.value);
  bytes_ -= found->second.pool.bytes();
  texts_.erase(found);
}

void LookaheadProposer::add(Text& text, std::span<const int32_t> ngram) {
  const int64_t before = text.pool.bytes();
  text.pool.add(ngram, bytes_ - before + text.pool.bytes_after() <= max_bytes_);
  bytes_ += text.pool.bytes() - before;
}

void LookaheadProposer::pool_text(Text& text, std::span<const int32_t> tokens) {
  const auto n = static_cast<size_t>(settings_.ngram);
  const size_t end = std::min(tokens.size(), text.num_pooled + kPooledTokensACall);
  for (; text.num_pooled < end; ++text.num_pooled) {
    const size_t count = text.num_pooled + 1;
    if (count >= n) add(text, tokens.subspan(count - n, n));
  }
}

// N-grams of the pool first: where there is room for a part of the tree, they may be right.
void LookaheadProposer::propose(sched::SequenceId id, std::span<const int32_t> tokens,
                                const sched::DraftAsk& ask, sched::Draft* draft) {
  Text& text = texts_.at(id);
  pool_text(text, tokens);
  const size_t num_new = text.num_known == 0 ? 0 : tokens.size() - text.num_known;
  text.window.advance(static_cast<int64_t>(num_new), tokens.back());
  text.num_known = tokens.size();
  Trie trie(*draft, std::min(ask.most, step::kMaxTreeDrafts));
  const std::span<const int32_t> tails = text.pool.find(tokens.back());
  const auto tail = static_cast<size_t>(settings_.ngram - 1);
  for (size_t i = 0; i < tails.size(); i += tail) trie.path(0, tails.subspan(i, tail));
  text.asked.clear();
  int32_t first = 0;  // row of the column's first token
  for (int32_t i = 0; i < text.window.num_columns(); ++i) {
    const std::span<const int32_t> column = text.window.column(i);
    if (i > 0) first = trie.child(first, column.front());
    const int32_t last = trie.path(first, column.subspan(1));
    if (last < 0) return;
    text.asked.push_back(last);
  }
}

void LookaheadProposer::note_rows(sched::SequenceId id, std::span<const int32_t> rows) {
  Text& text = texts_.at(id);
  std::vector<int32_t> behind;
  for (const int32_t row : text.asked) {
    const auto index = static_cast<size_t>(row);
    behind.push_back(index < rows.size() ? rows[index] : -1);
  }
  for (const std::vector<int32_t>& ngram : text.window.extend(behind)) add(text, ngram);
  text.asked.clear();
}

}  // namespace rudder::draft
