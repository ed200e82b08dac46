// WeightMaker: random weights of described tensors, for tiny models (tiny_model.h). One thread; the
// same seed and order of calls give the same weights on every backend and rank. Tests only.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

#include "rudder/base/check.h"
#include "rudder/base/philox.h"
#include "rudder/base/result.h"
#include "rudder/model/shard.h"
#include "rudder/model/tensors.h"
#include "rudder/ops/ops.h"

namespace rudder::testing {

class WeightMaker {
 public:
  WeightMaker(ops::Ops& ops, uint64_t seed) : ops_(ops), seed_(seed) {}

  // Gains around 1: a forgotten norm shows.
  Result<ops::NormSpec> norm(const model::NormTensor& tensor, float eps) {
    ops::NormSpec norm{.weight = {}, .eps = tensor.eps > 0 ? tensor.eps : eps};
    RUDDER_TRY(norm.weight, gains(tensor.width));
    if (tensor.alpha.count > 0) {
      RUDDER_TRY(norm.alpha, gains(tensor.width));
    }
    return norm;
  }

  Result<tensor::View> gains(const model::Extent& count) {
    std::vector<float> values(static_cast<size_t>(count.stored));
    for (float& value : values) value = gain();
    return upload_share(values, count);
  }

  // Around 1.
  float gain() { return static_cast<float>(0.5 + uniform()); }

  // One that is multiplied with whole rows is as long as a number elsewhere is large, so that a
  // softmax over what comes of it is of several.
  Result<tensor::View> vector(const model::Extent& count) {
    constexpr int64_t kFewNumbers = 16;
    const double deviation =
        count.stored <= kFewNumbers ? 1 : 1 / std::sqrt(static_cast<double>(count.stored));
    return upload_share(normal(count.stored, deviation), count);
  }

  Result<tensor::View> matrix(int64_t rows, int64_t columns) {
    RUDDER_TRY(
        tensor::View out,
        upload_share(normal(rows * columns, 1 / std::sqrt(double(columns))), {rows * columns}));
    out.shape = {rows, columns};
    return out;
  }

  Result<tensor::View> filters(const model::FilterTensor& filter) {
    int64_t stored = 0;
    for (size_t i = 0; i < filter.names.size(); ++i) stored += filter.stored(i).numel();
    const std::vector<float> values =
        filter.share_of(normal(stored, 1 / std::sqrt(double(filter.length))));
    const auto count = static_cast<int64_t>(values.size());
    return upload_share(values, {count});
  }

  // `table`, where it is given, gets the whole weight as an embedding table.
  Result<ops::LinearWeight> linear(const model::LinearModule& module, double gain,
                                   tensor::View* table = nullptr) {
    const int64_t in = module.in.stored;
    std::vector<std::vector<float>> memory;
    std::vector<std::vector<std::byte>> cuts;
    std::vector<ops::LinearPart> parts;
    std::vector<ops::LinearPart> stored;  // by part
    for (size_t i = 0; i < module.parts.size(); ++i) {
      const int64_t out = module.parts[i].stored_rows();
      if (const size_t first = module.first_of(i); first != i) {
        RUDDER_TRY_VOID(
            model::cut_part(stored.emplace_back(stored[first]), module, i, cuts, parts));
        continue;
      }
      memory.push_back(normal(out * in, gain / std::sqrt(static_cast<double>(in))));
      ops::LinearPart& part = stored.emplace_back(
          ops::wide_part({memory.back().data(), tensor::DType::kF32, {out, in}}));
      if (module.bias) {
        memory.push_back(normal(out, 0.3));
        part.bias = {memory.back().data(), tensor::DType::kF32, {out}};
      }
      RUDDER_TRY_VOID(model::cut_part(part, module, i, cuts, parts));
      if (table != nullptr) {
        RUDDER_TRY(*table, upload_table(part.codes));
      }
    }
    RUDDER_TRY(ops::LinearWeight weight,
               module.experts == 0 ? ops_.make_linear(parts)
                                   : ops_.expert_ops()->make_experts(parts, module.experts));
    bytes_ += weight.bytes;
    return weight;
  }

  Result<tensor::View> table(int64_t rows, int64_t width) {
    std::vector<float> values = normal(rows * width, 1);
    return upload_table({values.data(), tensor::DType::kF32, {rows, width}});
  }

  int64_t bytes() const { return bytes_; }

 private:
  Result<tensor::View> upload_table(const tensor::View& host) {
    const bool wide = ops_.act_dtype() == tensor::DType::kF32;
    RUDDER_TRY(const tensor::View table,
               ops_.upload(host, wide ? tensor::DType::kF32 : tensor::DType::kBF16));
    bytes_ += static_cast<int64_t>(table.bytes());
    return table;
  }

  Result<tensor::View> upload_share(std::vector<float> values, const model::Extent& count) {
    const tensor::View whole{values.data(), tensor::DType::kF32, {count.stored}};
    RUDDER_TRY(const tensor::View device,
               ops_.upload(whole.rows(count.share.begin, count.count()), tensor::DType::kF32));
    bytes_ += static_cast<int64_t>(device.bytes());
    return device;
  }

  double uniform() { return philox_uniform(seed_, next_++); }

  // Box-Muller; rounded to bf16, which every backend can store.
  std::vector<float> normal(int64_t count, double deviation) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      const double radius = std::sqrt(-2 * std::log(1 - uniform()));
      const double x = deviation * radius * std::cos(2 * std::numbers::pi * uniform());
      value = tensor::to_float(tensor::to_bf16(static_cast<float>(x)));
    }
    return values;
  }

  ops::Ops& ops_;
  const uint64_t seed_;
  uint64_t next_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace rudder::testing
