#include "rudder/steer/capture/host_feature_reader.h"

#include <algorithm>
#include <atomic>

#include "rudder/features/batch_encode.h"
#include "rudder/steer/capture/consumer.h"

namespace rudder::steer::capture {
namespace {

constexpr size_t kRowsAtOnce = 16;  // encoded: enough that their encoder is read seldom

// Those that a list names cost their own columns alone, but with topk.
bool reads_columns(const features::FeatureAsk& ask) {
  return ask.top == 0 && ask.dictionary->activation != features::Activation::kTopK;
}

class HostFeatureReader final : public features::FeatureReader {
 public:
  Result<void> check(const features::Dictionary& /*dictionary*/) const override { return {}; }

  Result<void> read(std::span<const features::FeatureRow> rows, tensor::DType dtype,
                    std::vector<std::vector<features::FeatureValue>>& told) override {
    told.assign(rows.size(), {});
    dtype_ = dtype;
    // Rows that need all features share a pass; of others those that one ask lists.
    std::vector<size_t> whole;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!reads_columns(*rows[i].ask)) whole.push_back(i);
    }
    for (size_t begin = 0; begin < whole.size(); begin += kRowsAtOnce) {
      const size_t count = std::min(kRowsAtOnce, whole.size() - begin);
      read_whole(rows, std::span(whole).subspan(begin, count), told);
    }
    for (size_t begin = 0; begin < rows.size();) {
      size_t end = begin + 1;
      while (end < rows.size() && end - begin < kRowsAtOnce && rows[end].ask == rows[begin].ask) {
        ++end;
      }
      if (reads_columns(*rows[begin].ask)) {
        read_listed(rows.subspan(begin, end - begin), std::span(told).subspan(begin, end - begin));
      }
      begin = end;
    }
    rows_ += rows.size();
    return {};
  }

  size_t rows_together() const override { return kRowsAtOnce; }
  features::FeatureReaderStats stats() const override {
    return {.rows = rows_, .batches = batches_};
  }

 private:
  void add_row(const features::FeatureRow& row) {
    const auto width = static_cast<size_t>(row.ask->dictionary->d_in);
    floats_.resize(floats_.size() + width);
    decode_row(row.row, dtype_, std::span(floats_).last(width));
  }

  void read_whole(std::span<const features::FeatureRow> rows, std::span<const size_t> which,
                  std::vector<std::vector<features::FeatureValue>>& told) {
    const features::Dictionary& dictionary = *rows[which.front()].ask->dictionary;
    const auto count = static_cast<size_t>(dictionary.num_features);
    floats_.clear();
    for (const size_t i : which) add_row(rows[i]);
    values_.resize(which.size() * count);
    features::encode_rows(dictionary, floats_, values_);
    ++batches_;
    for (size_t n = 0; n < which.size(); ++n) {
      const std::span<const float> of_row = std::span(values_).subspan(n * count, count);
      const features::FeatureAsk& ask = *rows[which[n]].ask;
      std::vector<features::FeatureValue>& out = told[which[n]];
      if (ask.top > 0) {
        out = features::top_features(of_row, ask.top);
        continue;
      }
      for (const int32_t j : ask.features) out.push_back({j, of_row[static_cast<size_t>(j)]});
    }
  }

  void read_listed(std::span<const features::FeatureRow> rows,
                   std::span<std::vector<features::FeatureValue>> told) {
    const features::FeatureAsk& ask = *rows.front().ask;
    const size_t count = ask.features.size();
    floats_.clear();
    for (const features::FeatureRow& row : rows) add_row(row);
    values_.resize(rows.size() * count);
    features::encode_columns(*ask.dictionary, floats_, ask.features, values_);
    ++batches_;
    for (size_t n = 0; n < rows.size(); ++n) {
      for (size_t i = 0; i < count; ++i) {
        told[n].push_back({ask.features[i], values_[n * count + i]});
      }
    }
  }

  tensor::DType dtype_ = tensor::DType::kF32;
  std::vector<float> floats_;
  std::vector<float> values_;
  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> batches_{0};
};

}  // namespace

std::shared_ptr<features::FeatureReader> make_host_feature_reader() {
  return std::make_shared<HostFeatureReader>();
}

}  // namespace rudder::steer::capture
