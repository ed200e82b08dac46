#include "rudder/cuda/bench_weights.h"

namespace rudder::cuda {
namespace {

uint64_t next(uint64_t state) {
  return state * 6364136223846793005u + 1442695040888963407u;
}

}  // namespace

using tensor::View;

View BenchWeights::wide(int64_t rows, int64_t width) {
  const auto count = static_cast<size_t>(rows * width);
  uint64_t state = 0x9e3779b97f4a7c15u + values_.size();
  while (values_.size() < count) {
    state = next(state);
    // Of both signs, a factor of four apart at most: never zeros, whose time would flatter.
    values_.push_back(static_cast<uint16_t>((state >> 48 & 0x80ffu) | 0x3c00u));
  }
  return {values_.data(), tensor::DType::kBF16, {rows, width}};
}

View BenchWeights::codes(const ops::StoredPart& part) {
  uint64_t state = 0x2545f4914f6cdd1du + codes_.size();
  while (static_cast<int64_t>(codes_.size()) < part.bytes()) {
    state = next(state);
    codes_.push_back(static_cast<uint8_t>(state >> 56));
  }
  return {codes_.data(), part.dtype, {part.rows, part.columns}};
}

View BenchWeights::scales(const ops::StoredPart& part) {
  while (static_cast<int64_t>(scales_.size()) < part.rows * part.columns) {
    scales_.push_back(static_cast<uint16_t>(0x1c00 + scales_.size() * 37 % 0x400));  // about 2^-8
  }
  return {scales_.data(), part.dtype, {part.rows, part.columns}};
}

ops::LinearPart BenchWeights::part(int64_t out, int64_t in, bool bias) {
  ops::LinearPart part;
  if (stored_) {
    const ops::StoredParts parts = ops::stored_parts(*stored_, out, in);
    part.format = *stored_;
    part.codes = codes(parts.codes);
    part.scales = scales(parts.scales);
    if (parts.offsets.rows > 0) part.offsets = part.scales;
  } else {
    part = ops::wide_part(wide(out, in));
  }
  if (bias) part.bias = {wide(1, out).data, tensor::DType::kBF16, {out}};
  return part;
}

}  // namespace rudder::cuda
