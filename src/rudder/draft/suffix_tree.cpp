#include "rudder/draft/suffix_tree.h"

#include <algorithm>

namespace rudder::draft {
namespace {

constexpr int64_t kChildBytes = sizeof(uint64_t) + sizeof(int64_t) + 1;  // of children_, aligned

}  // namespace

SuffixTree::SuffixTree(int32_t depth) : depth_(depth) {
  nodes_.emplace_back();
  begin_text();
}

void SuffixTree::begin_text() {
  ends_.assign(1, kRoot);
}

uint64_t SuffixTree::key(int32_t parent, int32_t token) {
  return uint64_t{static_cast<uint32_t>(parent)} << 32 | static_cast<uint32_t>(token);
}

int32_t SuffixTree::child(int32_t parent, int32_t token) const {
  const auto found = children_.find(key(parent, token));
  return found == children_.end() ? kNone : found->second;
}

// The longest first: what moves a run changes no shorter one's node.
void SuffixTree::append(int32_t token) {
  text_.push_back(token);
  const size_t longest = std::min(ends_.size(), static_cast<size_t>(depth_));
  ends_.resize(longest + 1);
  for (size_t len = longest; len > 0; --len) ends_[len] = extend(ends_[len - 1], token);
}

// The run of `node`, as it ends the text, goes on with `token`. Returns the node of the longer run.
int32_t SuffixTree::extend(int32_t node, int32_t token) {
  const int32_t next = child(node, token);
  const int32_t count = at(node).count;
  if (next == kNone && node != kRoot && count == 1) {
    ++at(node).length;  // it occurs here alone
    return node;
  }
  if (next == kNone) {
    const int32_t last = static_cast<int32_t>(text_.size()) - 1;
    const int32_t leaf = new_node({.start = last, .length = 1, .count = 1, .parent = node});
    link_child(leaf);
    return leaf;
  }
  if (node != kRoot && at(next).count == count - 1) {  // now all its occurrences go on so
    if (at(next).length == 1) return absorb_parent(next);
    take_token_of(node, next);
    return node;
  }
  if (at(next).length > 1) return split(next);
  count_child(next);
  return next;
}

// The edge of `node`, an only child of one token, becomes that of its parent and its own.
int32_t SuffixTree::absorb_parent(int32_t node) {
  const int32_t parent = at(node).parent;
  children_.erase(key(parent, text_at(at(node).start)));
  Node& kept = at(node);
  const Node gone = at(parent);
  kept.start = gone.start;
  kept.length += gone.length;
  kept.count = gone.count;
  kept.parent = gone.parent;
  kept.next = gone.next;
  kept.previous = gone.previous;
  if (gone.next != kNone) at(gone.next).previous = node;
  (gone.previous != kNone ? at(gone.previous).next : at(gone.parent).first_child) = node;
  children_[key(gone.parent, text_at(kept.start))] = node;
  free_.push_back(parent);
  return node;
}

// The first token of the edge of `only`, an only child, goes to the end of `node`'s.
void SuffixTree::take_token_of(int32_t node, int32_t only) {
  children_.erase(key(node, text_at(at(only).start)));
  ++at(node).length;
  ++at(only).start;
  --at(only).length;
  children_[key(node, text_at(at(only).start))] = only;
}

// One more occurrence has the first token of `node`'s edge: a new node for the run up to there.
int32_t SuffixTree::split(int32_t node) {
  const Node lower = at(node);
  unlink_child(node);
  const int32_t upper =
      new_node({.start = lower.start, .length = 1, .count = lower.count, .parent = lower.parent});
  link_child(upper);
  at(node).start = lower.start + 1;
  at(node).length = lower.length - 1;
  at(node).parent = upper;
  link_child(node);
  count_child(upper);
  return upper;
}

int32_t SuffixTree::new_node(const Node& node) {
  if (free_.empty()) {
    nodes_.push_back(node);
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  const int32_t index = free_.back();
  free_.pop_back();
  at(index) = node;
  return index;
}

// Among its siblings, which the most frequent leads.
void SuffixTree::link_child(int32_t node) {
  Node& linked = at(node);
  Node& parent = at(linked.parent);
  children_[key(linked.parent, text_at(linked.start))] = node;
  const int32_t head = parent.first_child;
  const bool leads = head == kNone || at(head).count < linked.count;
  linked.previous = leads ? kNone : head;
  linked.next = leads ? head : at(head).next;
  if (linked.next != kNone) at(linked.next).previous = node;
  (leads ? parent.first_child : at(head).next) = node;
}

// The caller writes what takes over its entry in children_.
void SuffixTree::unlink_child(int32_t node) {
  const Node& gone = at(node);
  (gone.previous != kNone ? at(gone.previous).next : at(gone.parent).first_child) = gone.next;
  if (gone.next != kNone) at(gone.next).previous = gone.previous;
}

void SuffixTree::count_child(int32_t node) {
  ++at(node).count;
  const int32_t head = at(at(node).parent).first_child;
  if (head == node || at(head).count >= at(node).count) return;
  unlink_child(node);
  link_child(node);
}

SuffixTree::Site SuffixTree::step(Site site, int32_t token) const {
  if (site.offset == at(site.node).length) {
    site = {child(site.node, token), 0};
    if (site.is_none()) return {};
  }
  if (text_at(at(site.node).start + site.offset) != token) return {};
  return {site.node, site.offset + 1};
}

SuffixTree::Site SuffixTree::find(std::span<const int32_t> run) const {
  Site site = {kRoot, 0};
  for (const int32_t token : run) {
    site = step(site, token);
    if (site.is_none()) break;
  }
  return site;
}

int32_t SuffixTree::count(std::span<const int32_t> run) const {
  const Site site = find(run);
  return site.is_none() ? 0 : at(site.node).count;
}

void SuffixTree::append_ends(std::vector<Site>* sites) const {
  for (size_t len = 1; len < ends_.size(); ++len) {
    const Node& node = at(ends_[len]);
    if (node.count == 1) break;  // it occurs at the end alone, and so do the longer ones
    sites->push_back({ends_[len], node.length});
  }
}

void SuffixTree::append_ends_of(std::span<const int32_t> context, std::vector<Site>* sites) const {
  const size_t longest = std::min(context.size(), static_cast<size_t>(depth_));
  for (size_t len = 1; len <= longest; ++len) {
    const Site site = find(context.last(len));
    if (site.is_none()) break;
    sites->push_back(site);
  }
}

// Of all occurrences one may end the text being written, with nothing behind it.
int32_t SuffixTree::append_next(Site site, std::vector<Next>* next) const {
  const Node& node = at(site.node);
  if (site.offset < node.length) {
    next->push_back({text_at(node.start + site.offset), node.count});
    return node.count;
  }
  int32_t total = 0;
  int32_t child = node.first_child;
  for (int32_t i = 0; i < kMostNext && child != kNone; ++i, child = at(child).next) {
    next->push_back({text_at(at(child).start), at(child).count});
    total += at(child).count;
  }
  return child == kNone ? total : std::max(total, node.count - 1);
}

int64_t SuffixTree::bytes() const {
  return static_cast<int64_t>(nodes_.capacity() * sizeof(Node) +
                              (text_.capacity() + free_.capacity()) * sizeof(int32_t)) +
         static_cast<int64_t>(children_.bucket_count()) * kChildBytes;
}

// Two nodes and two entries a token, in tables that double when they are full.
int64_t SuffixTree::bytes_after(int64_t count) const {
  constexpr int64_t kTokenBytes = 2 * (2 * sizeof(Node) + sizeof(int32_t) + 3 * kChildBytes);
  return std::max(bytes(), (num_tokens() + count + depth_) * kTokenBytes);
}

}  // namespace rudder::draft
