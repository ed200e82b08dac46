#include "rudder/draft/lookahead_window.h"

#include <algorithm>

#include "rudder/base/check.h"

namespace rudder::draft {

LookaheadWindow::LookaheadWindow(int32_t columns, int32_t ngram,
                                 const std::function<int32_t(int32_t)>& first)
    : ngram_(static_cast<size_t>(ngram)) {
  RUDDER_CHECK(columns >= 1 && ngram >= 2, "{} columns, {} tokens", columns, ngram);
  for (int32_t i = 0; i < columns; ++i) columns_.push_back({first(i)});
}

void LookaheadWindow::advance(int64_t num_tokens, int32_t last) {
  const int64_t passed = std::max<int64_t>(0, num_tokens - moved_);
  std::rotate(columns_.begin(), columns_.begin() + passed % std::ssize(columns_), columns_.end());
  if (num_tokens > 0) moved_ = 0;
  columns_.front().front() = last;
}

std::vector<std::vector<int32_t>> LookaheadWindow::extend(std::span<const int32_t> behind) {
  std::vector<std::vector<int32_t>> ngrams;
  for (size_t i = 0; i < std::min(behind.size(), columns_.size()); ++i) {
    if (behind[i] < 0) continue;
    std::vector<int32_t>& column = columns_[i];
    column.push_back(behind[i]);
    if (column.size() < ngram_) continue;
    ngrams.push_back(column);
    column.erase(column.begin());
    if (i == 0) moved_ = 1;
  }
  return ngrams;
}

}  // namespace rudder::draft
