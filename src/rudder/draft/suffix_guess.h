// SuffixGuess: makes a draft of what suffix trees have behind the end of a text. Every run that
// ends the text and occurs in a tree is a context, which knows the tokens that followed it and
// their counts. A long context knows few tokens, a short one many, so they are blended (prediction
// by partial matching, method C): the longest says, of n occurrences with d different tokens behind
// them, a token that came c times with c / (n + d), and leaves d / (n + d) to the next shorter one.
// Further tokens of the draft are blended likewise, behind each context with the draft's tokens.
// The draft is the tree of the likeliest tokens: that which has the most accepted tokens expected,
// of all of as many; or the chain of the likeliest token each. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rudder/draft/suffix_tree.h"
#include "rudder/sched/draft.h"

namespace rudder::draft {

// How large a draft may be, and how sure.
struct SuffixLimits {
  int32_t most = 0;         // tokens
  bool takes_tree = false;  // else a chain
  // Of the longest context's tokens so many times are the draft's, one behind another.
  double max_spec_factor = 1;
  double min_token_prob = 0.1;  // of a token with all that it follows
};

class SuffixGuess {
 public:
  void clear();
  // Contexts of the end of the tree's own text, or of `text`, another one. Of equal lengths those
  // that are added first come first. The tree is there and unchanged until make() is done.
  void add_own(const SuffixTree& tree);
  void add_behind(const SuffixTree& tree, std::span<const int32_t> text);

  // The tokens of a tree are by how likely they are, so its first ones are the likeliest of all.
  // More tokens than a tree may have are a chain, or left out.
  void make(const SuffixLimits& limits, sched::Draft* draft);

 private:
  struct Context {
    const SuffixTree* tree = nullptr;
    int32_t length = 0;  // of its run
    SuffixTree::Site site;
  };
  // Behind a row: the last token of the text, or a token of the draft.
  struct Candidate {
    double prob = 0;  // with all that it follows
    float odds = 0;   // behind its row
    int32_t row = 0;
    int32_t token = 0;
    size_t serial = 0;
  };
  struct Blended {
    int32_t token = 0;
    double odds = 0;
  };
  struct Row {
    int32_t parent = 0;
    int32_t depth = 0;
  };

  void add_sites(const SuffixTree& tree);
  void add_row(const Candidate& candidate);
  void blend(int32_t row);
  void expand(int32_t row, double prob, const SuffixLimits& limits);
  Candidate pop();
  static bool comes_later(const Candidate& a, const Candidate& b);

  std::vector<Context> contexts_;  // of the longest runs first
  int32_t most_depth_ = 0;
  std::vector<Row> rows_;                // of the draft, with row 0
  std::vector<SuffixTree::Site> sites_;  // by row and context
  std::vector<Candidate> heap_;          // the likeliest first
  size_t num_candidates_ = 0;
  std::vector<Blended> blended_;  // behind one row
  std::vector<SuffixTree::Next> next_;
  std::vector<SuffixTree::Site> ends_;
};

}  // namespace rudder::draft
