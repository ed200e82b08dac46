#include "rudder/cpu/adapter_adder.h"

#include <algorithm>
#include <array>

#include "rudder/base/check.h"

namespace rudder::cpu {
namespace {

constexpr size_t kAdderLanes = 16;

// In lanes, so that the compiler multiplies them together; the lanes are added in their order.
float dot(const float* a, const float* b, int64_t count) {
  std::array<float, kAdderLanes> sums = {};
  int64_t i = 0;
  for (; i + int64_t{kAdderLanes} <= count; i += int64_t{kAdderLanes}) {
    for (size_t lane = 0; lane < kAdderLanes; ++lane) {
      sums[lane] += a[i + static_cast<int64_t>(lane)] * b[i + static_cast<int64_t>(lane)];
    }
  }
  for (size_t lane = 0; i < count; ++i, ++lane) sums[lane] += a[i] * b[i];
  float sum = 0;
  for (const float lane : sums) sum += lane;
  return sum;
}

// Of each part of the product that the token's adapter changes: run(part, begin, end, scale,
// has_gains), with the rows of the product that it is.
template <typename Run>
void each_part(const ops::AdapterWeights& weights, int64_t row, Run&& run) {
  int64_t begin = 0;
  for (int32_t part = 0; part < weights.num_parts; ++part) {
    const int64_t end = weights.part_end[static_cast<size_t>(part)];
    const float* const scale = weights.scales.as<float>() + 2 * (row * weights.num_parts + part);
    run(part, begin, end, scale[0], scale[1] != 0);
    begin = end;
  }
}

void shrink_row(const ops::AdaptArgs& args, int64_t token, int64_t row) {
  const ops::AdapterWeights& weights = *args.weights;
  const int64_t in = weights.in();
  const int64_t rank = weights.rank;
  const float* const x = args.x.as<float>() + token * in;
  const float* const a = weights.a.as<float>() + row * weights.mid_width() * in;
  float* const mid = args.mid.as<float>() + token * weights.mid_width();
  each_part(weights, row, [&](int32_t part, int64_t, int64_t, float scale, bool) {
    if (scale == 0) return;
    for (int64_t r = part * rank; r < (part + 1) * rank; ++r) mid[r] = dot(a + r * in, x, in);
  });
}

void expand_row(const ops::AdaptArgs& args, int64_t token, int64_t row) {
  const ops::AdapterWeights& weights = *args.weights;
  const int64_t out = weights.out();
  const int64_t rank = weights.rank;
  const float* const b = weights.b.as<float>() + row * out * rank;
  const float* const mid = args.mid.as<float>() + token * weights.mid_width();
  float* const to = args.out.as<float>() + token * out;
  each_part(weights, row, [&](int32_t part, int64_t begin, int64_t end, float scale, bool gains) {
    if (scale != 0) {
      const float* const own = mid + part * rank;
      for (int64_t o = begin; o < end; ++o) to[o] += scale * dot(b + o * rank, own, rank);
    }
    if (!gains) return;
    const float* const gain = weights.gains.as<float>() + row * out;
    for (int64_t o = begin; o < end; ++o) to[o] *= gain[o];
    if (weights.offsets.empty()) return;
    const float* const offset = weights.offsets.as<float>() + row * out;
    for (int64_t o = begin; o < end; ++o) to[o] += offset[o];
  });
}

}  // namespace

template <typename Run>
void AdapterAdder::each_token(const ops::AdaptArgs& args, Run&& run) {
  const int64_t num_tokens = args.x.num_rows();
  RUDDER_CHECK(args.tokens.rows.num_rows() == num_tokens && args.x.dtype == tensor::DType::kF32 &&
               args.mid.shape.numel() >= num_tokens * args.weights->mid_width());
  const auto of_token = [&](int64_t token) {
    const int64_t row = args.tokens.rows.as<int32_t>()[token];
    if (row >= 0) run(args, token, row);
  };
  if (pool_ != nullptr) return pool_->parallel_for(num_tokens, of_token);
  for (int64_t token = 0; token < num_tokens; ++token) of_token(token);
}

void AdapterAdder::shrink_adapters(const ops::AdaptArgs& args) {
  each_token(args, shrink_row);
}

void AdapterAdder::expand_adapters(const ops::AdaptArgs& args) {
  each_token(args, expand_row);
}

}  // namespace rudder::cpu
