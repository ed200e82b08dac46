// BenchWeights: random weights on the host for the benches of products, of any format, made once as
// long as the largest asks for and then handed out again. Used by ops_bench.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rudder/ops/args.h"

namespace rudder::cuda {

class BenchWeights {
 public:
  // Of `stored`; none: of bf16.
  explicit BenchWeights(const std::optional<ops::WeightFormat>& stored) : stored_(stored) {}

  // Good until the next call.
  ops::LinearPart part(int64_t out, int64_t in, bool bias);
  tensor::View wide(int64_t rows, int64_t width);  // bf16

 private:
  tensor::View codes(const ops::StoredPart& part);
  tensor::View scales(const ops::StoredPart& part);

  const std::optional<ops::WeightFormat> stored_;
  std::vector<uint16_t> values_;
  std::vector<uint8_t> codes_;
  std::vector<uint16_t> scales_;  // f16
};

}  // namespace rudder::cuda
