// SuffixTree: how often every run of at most `depth` tokens occurs in the texts that it was given,
// and what followed it (SuffixDecoding, arXiv 2411.04975); suffix_guess.h makes drafts of it. A
// token takes O(depth) steps, whatever went before; there are at most about two nodes a token. One
// thread.
//
// A node is a run of tokens, the root none; its edge is what it adds to its parent's run, an
// offset into the texts and a length. Runs that always go on alike share an edge. So the run of
// each of the last `depth` ends of the text being written ends at a node, and each new token moves
// all of them.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <span>
#include <vector>

namespace rudder::draft {

class SuffixTree {
  static constexpr int32_t kNone = -1;

 public:
  static constexpr int32_t kMostNext = 16;

  explicit SuffixTree(int32_t depth);

  // What is appended from here on follows nothing.
  void begin_text();
  void append(int32_t token);

  // Where a run ends in the tree: `offset` tokens into the edge of `node`, at most its length.
  struct Site {
    int32_t node = kNone;
    int32_t offset = 0;

    bool is_none() const { return node == kNone; }
  };
  // A token that follows a run, so often.
  struct Next {
    int32_t token = 0;
    int32_t count = 0;
  };

  // Of the runs that end the text being written, or `context`, another text, the sites of those
  // that occur elsewhere: of its last token, its last two, and so on.
  void append_ends(std::vector<Site>* sites) const;
  void append_ends_of(std::span<const int32_t> context, std::vector<Site>* sites) const;
  // Appends what follows the run at `site`, at most kMostNext tokens: the most frequent one, then
  // those that came up last. Returns how often anything follows it.
  int32_t append_next(Site site, std::vector<Next>* next) const;
  // Of the run with `token` behind it; none: it does not occur.
  Site step(Site site, int32_t token) const;

  // Occurrences of `run`, which has at most `depth` tokens.
  int32_t count(std::span<const int32_t> run) const;

  int64_t num_tokens() const { return std::ssize(text_); }
  int64_t num_nodes() const { return std::ssize(nodes_) - std::ssize(free_); }
  int64_t bytes() const;
  // What bytes() may be at most once `count` more tokens are appended.
  int64_t bytes_after(int64_t count) const;

 private:
  struct Node {
    int32_t start = 0;  // of its edge in text_
    int32_t length = 0;
    int32_t count = 0;  // occurrences of its run
    int32_t parent = kNone;
    int32_t first_child = kNone;  // the most frequent
    int32_t next = kNone;         // siblings
    int32_t previous = kNone;
  };
  static constexpr int32_t kRoot = 0;

  Node& at(int32_t node) { return nodes_[static_cast<size_t>(node)]; }
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }
  int32_t text_at(int32_t position) const { return text_[static_cast<size_t>(position)]; }
  static uint64_t key(int32_t parent, int32_t token);
  int32_t child(int32_t parent, int32_t token) const;
  Site find(std::span<const int32_t> run) const;

  int32_t extend(int32_t node, int32_t token);
  int32_t new_node(const Node& node);
  void link_child(int32_t node);
  void unlink_child(int32_t node);
  void count_child(int32_t node);
  int32_t absorb_parent(int32_t node);
  void take_token_of(int32_t node, int32_t only);
  int32_t split(int32_t node);

  int32_t depth_;
  std::vector<int32_t> text_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_;
  boost::unordered_flat_map<uint64_t, int32_t> children_;
  std::vector<int32_t> ends_;  // of the text being written, the node of its last 0, 1, ... tokens
};

}  // namespace rudder::draft
