// The reader of features over the ops of a backend: what it tells of rows, against encode() in
// double precision. A test program of each backend instantiates the suite. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rudder/exec/feature_reader.h"
#include "rudder/features/dictionary.h"
#include "rudder/ops/ops.h"
#include "rudder/steer/features/test_dictionary.h"

namespace rudder::metamorphic {

struct FeatureBackend {
  std::string name;
  std::function<std::unique_ptr<ops::Ops>()> make_reader;
};
inline void PrintTo(const FeatureBackend& backend, std::ostream* out) {
  *out << backend.name;
}

class FeatureReaderTest : public ::testing::TestWithParam<FeatureBackend> {
 protected:
  using Told = std::vector<std::vector<features::FeatureValue>>;
  using Shared = std::shared_ptr<const features::Dictionary>;

  void start(int64_t dictionary_bytes, tensor::DType dtype, int32_t widest = 512);
  static Shared share(features::Dictionary dictionary) {
    return std::make_shared<const features::Dictionary>(std::move(dictionary));
  }
  static features::FeatureAsk top_of(const Shared& dictionary, int32_t top);
  static features::FeatureAsk list_of(const Shared& dictionary, std::vector<int32_t> features);
  // Random rows as the backend captures them, and their numbers.
  void make_rows(int64_t count, int32_t width);
  // These instead, rounded to bf16, of the same width.
  void put_rows(std::vector<float> rows);
  std::span<const float> row(size_t r) const;
  // Of row r what asks[r % asks] says.
  Told read(std::span<const features::FeatureAsk> asks);
  // What is told of every row; rows of which rounding may decide are left out.
  void check(std::span<const features::FeatureAsk> asks, const Told& told);

  std::unique_ptr<exec::DeviceFeatureReader> reader_;
  tensor::DType act_ = tensor::DType::kF32;
  tensor::DType dtype_ = tensor::DType::kF32;
  std::mt19937_64 random_{11};
  int64_t near_ = 0;     // features at a threshold
  int64_t checked_ = 0;  // others

  std::vector<float> rows_;

 private:
  void check_row(const features::FeatureAsk& ask, size_t r,
                 const std::vector<features::FeatureValue>& told);

  std::vector<std::byte> bytes_;
  int32_t width_ = 0;
};

}  // namespace rudder::metamorphic
