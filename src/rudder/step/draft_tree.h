// DraftTree: which drafts of a sequence follow which, where they are several guesses at what comes
// (docs/contracts/step.md, "Drafts"). Plain data, part of plans.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "rudder/base/check.h"

namespace rudder::step {

// With the carried token as many rows as a word has bits.
inline constexpr int32_t kMaxTreeDrafts = 63;

// By row of the sequence's part of a step: row 0 is the carried token, row i the i-th draft. A
// draft follows a row before its own; those that follow one row are different tokens. Empty: a
// chain, each follows the one before it.
class DraftTree {
 public:
  constexpr DraftTree() = default;

  constexpr int32_t size() const { return size_; }  // drafts
  constexpr bool empty() const { return size_ == 0; }
  constexpr bool operator==(const DraftTree&) const = default;

  // Another draft, behind the row `parent`.
  constexpr void add(int32_t parent) {
    RUDDER_CHECK(parent >= 0 && parent <= size_ && size_ < kMaxTreeDrafts,
                 "draft {} of a tree follows row {}", size_ + 1, parent);
    parents_[static_cast<size_t>(++size_)] = static_cast<uint8_t>(parent);
  }
  // That of a draft's row, 1 or more.
  constexpr int32_t parent(int32_t row) const { return parents_[static_cast<size_t>(row)]; }

  // Drafts from the carried token to the row.
  constexpr int32_t depth(int32_t row) const {
    int32_t depth = 0;
    for (; row > 0; row = parent(row)) ++depth;
    return depth;
  }
  constexpr int32_t depth() const {
    const std::array<uint8_t, kMaxTreeDrafts + 1> all = depths();
    return *std::max_element(all.begin(), all.end());
  }
  // Itself and the rows that it follows, a bit each.
  constexpr uint64_t ancestors(int32_t row) const {
    uint64_t rows = 1;
    for (; row > 0; row = parent(row)) rows |= uint64_t{1} << row;
    return rows;
  }
  // The rows that are followed by others, with row 0; and those at most so deep.
  constexpr uint64_t parents() const {
    uint64_t rows = 1;
    for (int32_t row = 1; row <= size_; ++row) rows |= uint64_t{1} << parent(row);
    return rows;
  }
  constexpr uint64_t down_to(int32_t most) const {
    const std::array<uint8_t, kMaxTreeDrafts + 1> all = depths();
    uint64_t rows = 1;
    for (int32_t row = 1; row <= size_; ++row) {
      if (all[static_cast<size_t>(row)] <= most) rows |= uint64_t{1} << row;
    }
    return rows;
  }
  // The rows of the chain of first children.
  constexpr uint64_t first_chain() const {
    uint64_t rows = 1;
    int32_t last = 0;
    for (int32_t row = 1; row <= size_; ++row) {
      if (parent(row) != last) continue;
      rows |= uint64_t{1} << row;
      last = row;
    }
    return rows;
  }
  constexpr bool is_chain() const {
    return first_chain() == (~uint64_t{0} >> (kMaxTreeDrafts - size_));
  }

  // Of the rows in `rows`, which are a tree: each but row 0 with the one that it follows.
  constexpr DraftTree part(uint64_t rows) const {
    DraftTree part;
    std::array<int32_t, kMaxTreeDrafts + 1> new_row = {};
    for (int32_t row = 1; row <= size_; ++row) {
      if ((rows >> row & 1) == 0) continue;
      RUDDER_CHECK(parent(row) == 0 || (rows >> parent(row) & 1) != 0, "row {} without row {}", row,
                   parent(row));
      part.add(new_row[static_cast<size_t>(parent(row))]);
      new_row[static_cast<size_t>(row)] = part.size_;
    }
    return part;
  }
  // Of the first `count` drafts.
  constexpr DraftTree first(int32_t count) const {
    DraftTree first = *this;
    first.size_ = std::min(size_, count);
    std::fill(first.parents_.begin() + first.size_ + 1, first.parents_.end(), uint8_t{0});
    return first;
  }

 private:
  // By row; 0 behind the last.
  constexpr std::array<uint8_t, kMaxTreeDrafts + 1> depths() const {
    std::array<uint8_t, kMaxTreeDrafts + 1> depths = {};
    for (size_t row = 1; row <= static_cast<size_t>(size_); ++row) {
      depths[row] = static_cast<uint8_t>(depths[parents_[row]] + 1);
    }
    return depths;
  }

  std::array<uint8_t, kMaxTreeDrafts + 1> parents_ = {};  // by row
  int32_t size_ = 0;
};

// A tree of the likeliest tokens of a guesser: draft i is the one of rank ranks[i], from 0 on, of
// those at its depth.
struct RankedTree {
  DraftTree tree;
  std::vector<int32_t> ranks = {};
};

}  // namespace rudder::step
