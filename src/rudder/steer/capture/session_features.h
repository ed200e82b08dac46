// SessionFeatures: the features that one session of the consumer `response` tells of its rows. What
// several sessions wait for is read together. The consumer's thread uses it.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "rudder/features/feature_reader.h"
#include "rudder/steer/capture/consumer.h"
#include "rudder/steer/capture/read_ahead.h"

namespace rudder::steer::capture {

class SessionFeatures {
 public:
  // `ask` outlives it.
  SessionFeatures(const features::FeatureAsk& ask, tensor::DType dtype,
                  std::shared_ptr<features::FeatureReader> reader)
      : ask_(ask), dtype_(dtype), reader_(std::move(reader)) {}

  // Where in a record the row lies that the dictionary reads; until then nothing is told.
  void set_row(const RowLayout& layout) { layout_ = layout; }
  bool empty() const { return layout_.bytes == 0; }
  const RowLayout& row() const { return layout_; }

  struct Part {
    SessionFeatures* features = nullptr;  // not empty()
    const RowBatch* batch = nullptr;
  };
  // Reads what take() will want of these batches: the rows of one dictionary in one call, whoever
  // asks. A fault is told to each of them.
  static void read_ahead(std::span<const Part> parts);

  // Of every record of the batch: what was read ahead, or is read now.
  Result<std::vector<std::vector<features::FeatureValue>>> take(const RowBatch& batch);

 private:
  using Told = std::vector<std::vector<features::FeatureValue>>;

  const features::FeatureAsk& ask_;
  const tensor::DType dtype_;
  const std::shared_ptr<features::FeatureReader> reader_;
  RowLayout layout_;
  ReadAhead<Told> ahead_;
};

}  // namespace rudder::steer::capture
