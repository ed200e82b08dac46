// FeatureReader: reads captured rows as features of dictionaries. The consumer `response` uses it
// on its own thread, beside the steps, with the rows of several requests in a call. The executor's
// room has one on the device; host_feature_reader.h is the one where there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/features/dictionary.h"
#include "rudder/features/feature_reader_stats.h"
#include "rudder/features/top_features.h"
#include "rudder/tensor/dtype.h"

namespace rudder::features {

// Which features are told of a row.
struct FeatureAsk {
  std::string name;
  std::shared_ptr<const Dictionary> dictionary;  // null: nothing is asked
  int32_t top = 0;                               // so many of the largest; 0: `features`
  std::vector<int32_t> features;                 // in the order of the request

  bool empty() const { return dictionary == nullptr; }
  // The most numbers that a row can have.
  size_t most() const { return top > 0 ? static_cast<size_t>(top) : features.size(); }
};

// A captured row, and what is told of it.
struct FeatureRow {
  std::span<const std::byte> row;  // [d_in] in the dtype of captures
  const FeatureAsk* ask = nullptr;
};

class FeatureReader {
 public:
  virtual ~FeatureReader() = default;
  // Any thread. An Error says in bytes why the dictionary can not be read here.
  virtual Result<void> check(const Dictionary& dictionary) const = 0;
  // `told` becomes what is asked of each row, in their order. All rows are of one dictionary, which
  // check() has taken. One thread at a time. An Error is the device's.
  virtual Result<void> read(std::span<const FeatureRow> rows, tensor::DType dtype,
                            std::vector<std::vector<FeatureValue>>& told) = 0;
  // Rows that a call should have, where so many wait: more together cost little less, and the first
  // would wait for the last.
  virtual size_t rows_together() const = 0;
  virtual FeatureReaderStats stats() const = 0;  // any thread
};

}  // namespace rudder::features
