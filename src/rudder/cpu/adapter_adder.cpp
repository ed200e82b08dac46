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

void add_to_row(const ops::AddAdaptersArgs& args, int64_t token) {
  const ops::AdapterWeights& weights = *args.weights;
  const int64_t row = args.rows.as<int32_t>()[token];
  if (row < 0) return;
  const int64_t in = weights.in();
  const int64_t out = weights.out();
  const int64_t rank = weights.rank;
  const float* const x = args.x.as<float>() + token * in;
  const float* const a = weights.a.as<float>() + row * weights.mid_width() * in;
  const float* const b = weights.b.as<float>() + row * out * rank;
  float* const mid = args.mid.as<float>() + token * weights.mid_width();
  float* const to = args.out.as<float>() + token * out;
  int64_t begin = 0;
  for (int32_t part = 0; part < weights.num_parts; ++part) {
    const int64_t end = weights.part_end[static_cast<size_t>(part)];
    const float scale = weights.scales.as<float>()[row * weights.num_parts + part];
    if (scale != 0) {
      const float* const a_part = a + part * rank * in;
      for (int64_t r = 0; r < rank; ++r) mid[r] = dot(a_part + r * in, x, in);
      for (int64_t o = begin; o < end; ++o) to[o] += scale * dot(b + o * rank, mid, rank);
    }
    begin = end;
  }
}

}  // namespace

void AdapterAdder::add_adapters(const ops::AddAdaptersArgs& args) {
  const int64_t num_tokens = args.x.num_rows();
  RUDDER_CHECK(args.rows.num_rows() == num_tokens && args.out.num_rows() == num_tokens &&
               args.x.dtype == tensor::DType::kF32);
  if (pool_ == nullptr) {
    for (int64_t token = 0; token < num_tokens; ++token) add_to_row(args, token);
    return;
  }
  pool_->parallel_for(num_tokens, [&](int64_t token) { add_to_row(args, token); });
}

}  // namespace rudder::cpu
