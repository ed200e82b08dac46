#include "rudder/steer/capture/session_lens.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "rudder/steer/dot.h"

namespace rudder::steer::capture {

// The likeliest tokens of a row begin with fewer of them, so all rows are read for the most.
void SessionLens::read_ahead(std::span<const Part> parts) {
  if (parts.empty()) return;
  const auto width = static_cast<size_t>(parts.front().session->rows_.front().width);
  int32_t top = 0;
  size_t num_rows = 0;
  for (const Part& part : parts) {
    top = std::max(top, part.session->top_);
    num_rows += part.batch->records.size() * part.session->rows_.size();
  }
  std::vector<float> rows(num_rows * width);
  const bool collapses = parts.front().session->collapses();
  std::vector<int32_t> made;
  size_t at = 0;
  for (const Part& part : parts) {
    for (const Record& record : part.batch->records) {
      for (const RowLayout& layout : part.session->rows_) {
        decode_row(part.batch->row(record, layout), part.session->dtype_,
                   std::span(rows).subspan(at, width));
        at += width;
        if (collapses) made.push_back(layout.residual->streams_at(layout.point.point));
      }
    }
  }
  std::vector<tap::LensToken> tokens;
  tap::Lens& lens = *parts.front().session->lens_;
  const Result<void> done =
      collapses ? lens.read_collapsed(rows, made, top, tokens) : lens.read(rows, top, tokens);
  auto next = tokens.begin();
  for (const Part& part : parts) {
    if (!done) {
      part.session->ahead_.push(*part.batch, tl::unexpected(done.error()));
      continue;
    }
    std::vector<tap::LensToken> told;
    const size_t count = part.batch->records.size() * part.session->rows_.size();
    told.reserve(count * static_cast<size_t>(part.session->top_));
    for (size_t i = 0; i < count; ++i, next += top) {
      told.insert(told.end(), next, next + part.session->top_);
    }
    part.session->ahead_.push(*part.batch, std::move(told));
  }
}

Result<std::vector<tap::LensToken>> SessionLens::take(const RowBatch& batch) {
  if (auto read = ahead_.take(batch)) return std::move(*read);
  const Part part{this, &batch};
  read_ahead(std::span(&part, 1));
  return *ahead_.take(batch);
}

}  // namespace rudder::steer::capture
