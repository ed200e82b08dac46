#include "rudder/steer/capture/session_features.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rudder::steer::capture {

void SessionFeatures::read_ahead(std::span<const Part> parts) {
  std::vector<bool> is_read(parts.size());
  for (size_t first = 0; first < parts.size(); ++first) {
    if (is_read[first]) continue;
    const SessionFeatures& one = *parts[first].features;
    std::vector<features::FeatureRow> rows;
    std::vector<size_t> together;
    for (size_t i = first; i < parts.size(); ++i) {
      const SessionFeatures& other = *parts[i].features;
      if (is_read[i] || other.ask_.dictionary != one.ask_.dictionary) continue;
      is_read[i] = true;
      together.push_back(i);
      for (const Record& record : parts[i].batch->records) {
        rows.push_back({parts[i].batch->row(record, other.layout_), &other.ask_});
      }
    }
    Told told;
    const Result<void> done = one.reader_->read(rows, one.dtype_, told);
    auto next = told.begin();
    for (const size_t i : together) {
      SessionFeatures& to = *parts[i].features;
      if (!done) {
        to.ahead_.push(*parts[i].batch, tl::unexpected(done.error()));
        continue;
      }
      const auto end = next + std::ssize(parts[i].batch->records);
      to.ahead_.push(*parts[i].batch, Told(std::move_iterator(next), std::move_iterator(end)));
      next = end;
    }
  }
}

Result<std::vector<std::vector<features::FeatureValue>>> SessionFeatures::take(
    const RowBatch& batch) {
  if (auto read = ahead_.take(batch)) return std::move(*read);
  const Part part{this, &batch};
  read_ahead(std::span(&part, 1));
  return *ahead_.take(batch);
}

}  // namespace rudder::steer::capture
