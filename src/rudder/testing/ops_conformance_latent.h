// What the test of latent attention (ops_conformance_latent.cpp) runs it on: one sequence, whole
// and in parts.
#pragma once

#include <algorithm>
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
  bool grows = false;   // queries, by their position
  int64_t tokens = 37;  // the last block is not full
  bool sinks = false;
};

class OpsLatent : public OpsConformance {
 protected:
  struct Model {
    int64_t tokens = 0;
    ops::LatentShape shape;
    Linear up;
    ops::NormSpec norm;
    tensor::View rope;
    tensor::View q_scale;
    bool neighbours = false;
    tensor::View q;
    tensor::View latent;
    float scale = 1;
    tensor::View sinks = {};
  };

  Model model_of(const LatentCase& one) {
    Model model{.tokens = one.tokens,
                .shape = one.shape,
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
                .q = random({one.tokens, one.shape.num_heads * one.shape.query_dim()}),
                .latent = random({one.tokens, one.shape.row()}),
                .scale = 1 / std::sqrt(static_cast<float>(one.shape.query_dim() * one.shape.rank))};
    if (one.turns) {
      std::vector<float> table;
      for (int64_t t = 0; t < one.tokens; ++t) {
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
                                  {one.tokens, 2, one.shape.rope_dim / 2});
    }
    if (one.grows) {
      const std::vector<float> scales = gains(one.tokens);
      model.q_scale =
          device_.put_as(std::span<const float>(scales), tensor::DType::kF32, {one.tokens});
    }
    if (one.sinks) {
      const std::vector<float> sinks = random_values(one.shape.num_heads, 3);
      model.sinks =
          device_.put_as(std::span<const float>(sinks), tensor::DType::kF32, {one.shape.num_heads});
    }
    return model;
  }

  std::vector<float> gains(int64_t count) {
    std::vector<float> values = random_values(count, 0.2);
    for (float& value : values) value += 1;
    return values;
  }

  // Tokens [first, first + count) of a model as a sequence of their own.
  struct Part {
    int64_t first = 0;
    int64_t count = 0;
  };

  // What the tokens of `parts` give, each in its place, in steps; a step says where each part ends.
  // A row of padding is behind every step.
  tensor::View run(const Model& model, const std::vector<Part>& parts,
                   const std::vector<std::vector<int64_t>>& steps) {
    ops::KvLayer kv{
        .num_kv_heads = 1, .head_dim = static_cast<int32_t>(model.shape.row()), .parts = 1};
    const int64_t each = (model.tokens + kv.block_size - 1) / kv.block_size;  // blocks of a part
    const auto num_parts = std::ssize(parts);
    kv = ops::make_kv_layer(ops_, each * num_parts, kv).value();
    std::vector<int32_t> blocks(static_cast<size_t>(each * num_parts));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    const tensor::View table =
        device_.put_as<int32_t>(blocks, tensor::DType::kI32, {num_parts, each});
    const int64_t width = int64_t{model.shape.num_heads} * model.shape.value_dim;
    const tensor::View out = poisoned({model.tokens, width});
    std::vector<int64_t> done(parts.size(), 0);
    for (const std::vector<int64_t>& ends : steps) {
      std::vector<int32_t> rows;
      std::vector<int32_t> positions;
      std::vector<int32_t> slots;
      std::vector<int32_t> q_begin = {0};
      std::vector<int32_t> kv_len;
      std::vector<int32_t> table_row;
      int32_t longest = 1;
      for (size_t i = 0; i < parts.size(); ++i) {
        for (int64_t at = done[i]; at < ends[i]; ++at) {
          rows.push_back(static_cast<int32_t>(parts[i].first + at));
          positions.push_back(static_cast<int32_t>(at));
          const int64_t block = static_cast<int64_t>(i) * each + at / kv.block_size;
          slots.push_back(blocks[static_cast<size_t>(block)] * kv.block_size +
                          static_cast<int32_t>(at % kv.block_size));
        }
        longest = std::max(longest, static_cast<int32_t>(ends[i] - done[i]));
        done[i] = ends[i];
        q_begin.push_back(static_cast<int32_t>(std::ssize(rows)));
        kv_len.push_back(static_cast<int32_t>(ends[i]));
        table_row.push_back(static_cast<int32_t>(i));
      }
      rows.push_back(-1);
      positions.push_back(0);
      slots.push_back(-1);
      q_begin.push_back(static_cast<int32_t>(std::ssize(rows)));
      kv_len.push_back(0);
      table_row.push_back(0);
      const tensor::View read = step(model, kv, rows, positions, slots,
                                     {.q_begin = device_.put(q_begin),
                                      .kv_len = device_.put(kv_len),
                                      .table_row = device_.put(table_row),
                                      .block_table = table,
                                      .max_q_len = longest,
                                      .max_kv_len = static_cast<int32_t>(model.tokens)});
      for (int64_t i = 0; i + 1 < std::ssize(rows); ++i) {
        ops_.copy(out.rows(rows[static_cast<size_t>(i)], 1), read.rows(i, 1));
      }
    }
    return out;
  }
  // One sequence, in steps that end at `ends`.
  tensor::View run(const Model& model, const std::vector<int64_t>& ends) {
    std::vector<std::vector<int64_t>> steps;
    steps.reserve(ends.size());
    for (const int64_t end : ends) steps.push_back({end});
    return run(model, {{0, model.tokens}}, steps);
  }

 private:
  // `rows`: of the model's tokens; -1: padding.
  tensor::View step(const Model& model, const ops::KvLayer& kv, const std::vector<int32_t>& rows,
                    const std::vector<int32_t>& positions, const std::vector<int32_t>& slots,
                    const ops::AttentionBatch& batch) {
    const int64_t count = std::ssize(rows);
    const auto rows_of = [&](const tensor::View& x) {
      const tensor::View some = poisoned({count, x.shape[1]});
      ops_.gather_rows({.x = x, .rows = device_.put(rows), .out = some});
      return some;
    };
    const tensor::View rope_row = device_.put(positions);
    const tensor::View kv_slot = device_.put(slots);
    const tensor::View q = poisoned({count, model.shape.num_heads * model.shape.row()});
    const tensor::View read = poisoned(q.shape);
    const tensor::View out =
        poisoned({count, int64_t{model.shape.num_heads} * model.shape.value_dim});
    ops::LatentOps& latents = *ops_.state_ops()->latent_ops();
    latents.latent_prep({.shape = model.shape,
                         .q = rows_of(model.q),
                         .latent = rows_of(model.latent),
                         .up = &model.up.weight,
                         .norm = model.norm,
                         .rope = model.rope,
                         .rope_row = rope_row,
                         .neighbours = model.neighbours,
                         .q_scale = model.q_scale,
                         .kv_slot = kv_slot,
                         .kv = kv,
                         .q_out = q});
    ops_.begin_attention(batch);
    ops_.attention({.q = q,
                    .kv = kv,
                    .num_heads = model.shape.num_heads,
                    .scale = model.scale,
                    .out = read,
                    .sinks = model.sinks,
                    .value_dim = model.shape.rank});
    latents.latent_values({.shape = model.shape, .read = read, .up = &model.up.weight, .out = out});
    return out;
  }

 protected:
  Matrix expected(const Model& model) { return expected(model, {0, model.tokens}); }
  Matrix expected(const Model& model, const Part& part) {
    Matrix q = read(model.q.rows(part.first, part.count));
    const Matrix grown = model.q_scale.empty() ? Matrix() : read(model.q_scale);
    for (int64_t t = 0; t < part.count && grown.cols > 0; ++t) {
      for (int64_t i = 0; i < q.cols; ++i) q.at(t, i) *= grown.at(0, t);
    }
    Matrix table;
    if (!model.rope.empty()) {
      table = read(model.rope);
      table.rows = model.tokens;
      table.cols = model.shape.rope_dim;
    }
    return reference_latent(
        {.shape = model.shape,
         .scale = double{model.scale},
         .neighbours = model.neighbours,
         .norm = read(model.norm),
         .up = model.up.reference,
         .sinks = model.sinks.empty() ? std::vector<double>() : read(model.sinks).values,
         .table = table},
        q, read(model.latent.rows(part.first, part.count)));
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
