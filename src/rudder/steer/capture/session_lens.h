// SessionLens: the tokens that the lens tells one session of the consumer `response`. What several
// sessions wait for is read together. The consumer's thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/read_ahead.h"
#include "rudder/tap/lens.h"

namespace rudder::steer::capture {

class SessionLens {
 public:
  // `lens` may be null where no row is added.
  SessionLens(int32_t top, tensor::DType dtype, std::shared_ptr<tap::Lens> lens)
      : top_(top), dtype_(dtype), lens_(std::move(lens)) {}

  // Where in a record a row lies that is read.
  void add_row(const RowLayout& layout) { rows_.push_back(layout); }
  bool empty() const { return rows_.empty(); }
  const std::vector<RowLayout>& rows() const { return rows_; }

  // Whole rows of several streams are read as the model reads what its last layer leaves.
  bool collapses() const { return !rows_.empty() && rows_.front().has_streams(); }

  struct Part {
    SessionLens* session = nullptr;  // not empty()
    const RowBatch* batch = nullptr;
  };
  // Reads what take() will want of these batches, of one lens, in one call; all of their sessions
  // collapse rows or none does. A fault is told to each of them.
  static void read_ahead(std::span<const Part> parts);

  // [records of the batch, rows, top]: what was read ahead, or is read now.
  Result<std::vector<tap::LensToken>> take(const RowBatch& batch);

 private:
  const int32_t top_;
  const tensor::DType dtype_;
  const std::shared_ptr<tap::Lens> lens_;
  std::vector<RowLayout> rows_;
  ReadAhead<std::vector<tap::LensToken>> ahead_;
};

}  // namespace rudder::steer::capture
