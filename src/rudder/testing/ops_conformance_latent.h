// What the test of latent attention (ops_conformance_latent.cpp) runs it on: one sequence, whole
// and in parts.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "rudder/ops/make_kv_layer.h"
#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/reference_latent.h"

namespace rudder::testing {

struct LatentCase {
  std::string name;
  ops::LatentShape shape;
  bool turns = true;
  bool neighbours = true;
  bool grows = false;  // queries, by their position
};

class OpsLatent : public OpsConformance {
 protected:
  static constexpr int64_t kTokens = 37;  // the last block is not full

  struct Model {
    ops::LatentShape shape;
    Linear up;
    ops::NormSpec norm;
    tensor::View rope;
    tensor::View q_scale;
    bool neighbours = false;
    tensor::View q;
    tensor::View latent;
    float scale = 1;
  };

  Model model_of(const LatentCase& one) {
    Model model{.shape = one.shape,
                .up = random_linear(
                    std::vector<int64_t>{one.shape.num_heads *
                                         (int64_t{one.shape.nope_dim} + one.shape.value_dim)},
                    one.shape.rank, false),
                .norm = {.weight = device_.put_as(std::span<const float>(gains(one.shape.rank)),
                                                  tensor::DType::kF32, {one.shape.rank}),
                         .eps = 1e-6f},
                .rope = {},
                .q_scale = {},
                .neighbours = one.neighbours,
                .q = random({kTokens, one.shape.num_heads * one.shape.query_dim()}),
                .latent = random({kTokens, one.shape.row()}),
                .scale = 1 / std::sqrt(static_cast<float>(one.shape.query_dim() * one.shape.rank))};
    if (one.turns) {
      std::vector<float> table;
      for (int64_t t = 0; t < kTokens; ++t) {
        for (const bool is_sine : {false, true}) {
          for (int64_t i = 0; i < one.shape.rope_dim / 2; ++i) {
            const double angle =
                static_cast<double>(t) *
                std::pow(10007.3, -2.0 * static_cast<double>(i) / one.shape.rope_dim);
            table.push_back(
                static_cast<float>(1.1 * (is_sine ? std::sin(angle) : std::cos(angle))));
          }
        }
      }
      model.rope = device_.put_as(std::span<const float>(table), tensor::DType::kF32,
                                  {kTokens, 2, one.shape.rope_dim / 2});
    }
    if (one.grows) {
      const std::vector<float> scales = gains(kTokens);
      model.q_scale =
          device_.put_as(std::span<const float>(scales), tensor::DType::kF32, {kTokens});
    }
    return model;
  }

  std::vector<float> gains(int64_t count) {
    std::vector<float> values = random_values(count, 0.2);
    for (float& value : values) value += 1;
    return values;
  }

  // What the tokens give in steps that end at `ends`.
  tensor::View run(const Model& model, const std::vector<int64_t>& ends) {
    ops::KvLayer kv =
        ops::make_kv_layer(
            ops_, 4,
            {.num_kv_heads = 1, .head_dim = static_cast<int32_t>(model.shape.row()), .parts = 1})
            .value();
    const tensor::View out =
        poisoned({kTokens, int64_t{model.shape.num_heads} * model.shape.value_dim});
    const std::vector<int32_t> blocks = {2, 0, 3};
    const tensor::View table = device_.put_as<int32_t>(blocks, tensor::DType::kI32, {1, 3});
    int64_t begin = 0;
    for (const int64_t end : ends) {
      const int64_t count = end - begin;
      std::vector<int32_t> positions(static_cast<size_t>(count));
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(begin));
      std::vector<int32_t> slots;
      slots.reserve(positions.size());
      for (const int32_t p : positions) {
        slots.push_back(blocks[static_cast<size_t>(p / kv.block_size)] * kv.block_size +
                        p % kv.block_size);
      }
      ops::LatentOps& latents = *ops_.state_ops()->latent_ops();
      const tensor::View q = poisoned({count, model.shape.num_heads * model.shape.row()});
      const tensor::View read = poisoned(q.shape);
      latents.latent_prep({.shape = model.shape,
                           .q = model.q.rows(begin, count),
                           .latent = model.latent.rows(begin, count),
                           .up = &model.up.weight,
                           .norm = model.norm,
                           .rope = model.rope,
                           .rope_row = device_.put(positions),
                           .neighbours = model.neighbours,
                           .q_scale = model.q_scale,
                           .kv_slot = device_.put(slots),
                           .kv = kv,
                           .q_out = q});
      ops_.begin_attention(
          {.q_begin = device_.put(std::vector<int32_t>{0, static_cast<int32_t>(count)}),
           .kv_len = device_.put(std::vector<int32_t>{static_cast<int32_t>(end)}),
           .table_row = device_.put(std::vector<int32_t>{0}),
           .block_table = table,
           .max_q_len = static_cast<int32_t>(count),
           .max_kv_len = static_cast<int32_t>(end)});
      ops_.attention({.q = q,
                      .kv = kv,
                      .num_heads = model.shape.num_heads,
                      .scale = model.scale,
                      .out = read});
      latents.latent_values({.shape = model.shape,
                             .read = read,
                             .up = &model.up.weight,
                             .out = out.rows(begin, count)});
      begin = end;
    }
    return out;
  }

  Matrix expected(const Model& model) {
    Matrix q = read(model.q);
    const Matrix grown = model.q_scale.empty() ? Matrix() : read(model.q_scale);
    for (int64_t t = 0; t < kTokens && grown.cols > 0; ++t) {
      for (int64_t i = 0; i < q.cols; ++i) q.at(t, i) *= grown.at(0, t);
    }
    Matrix table;
    if (!model.rope.empty()) {
      table = read(model.rope);
      table.rows = kTokens;
      table.cols = model.shape.rope_dim;
    }
    return reference_latent({.shape = model.shape,
                             .scale = double{model.scale},
                             .neighbours = model.neighbours,
                             .norm = read(model.norm),
                             .up = model.up.reference,
                             .table = table},
                            q, read(model.latent));
  }

  // Relative to the largest output: what rounding the kept rows may change.
  double allowance() const {
    const ops::KvFormat kv = ops_.kv_format();
    if (kv.dtype == tensor::DType::kF8E4M3) return 8e-2;
    if (kv.dtype == tensor::DType::kI8) return 2e-2;
    return kv.dtype == tensor::DType::kBF16 ? 8e-3 : 4e-6;
  }
};

}  // namespace rudder::testing
