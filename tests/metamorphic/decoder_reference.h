// The fixture of tests that hold the decoder's pass of a tiny model to the same pass in fp64.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "rudder/model/decoder.h"
#include "rudder/ops/make_kv_layer.h"
#include "rudder/testing/device_tensors.h"
#include "rudder/testing/reference_model.h"
#include "rudder/testing/tap_table.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {

using testing::Matrix;
using testing::TinyArch;

// Longer than the windows of tiny models.
inline constexpr int32_t kLength = 40;

class DecoderReference : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ops = std::make_unique<testing::RememberingOps>();
    ops_ = ops.get();
    device_ = std::make_unique<testing::Device>(std::move(ops));
    for (int32_t t = 0; t < kLength; ++t) ids_.push_back((t * 37 + 11) % 160);
  }

  // Logits of all tokens, by the decoder; with `table` every token runs its first program and is
  // captured by its first set, one record behind another.
  Matrix decoded(const model::ModelSpec& spec, const model::Weights& weights,
                 const ops::TapTable* table = nullptr, int64_t record = 0,
                 const tap::PassageSet* tapped = nullptr,
                 const std::vector<int32_t>* rows = nullptr) {
    std::vector<ops::KvLayer> kv;
    for (const model::LayerSpec& layer : spec.layers) {
      const model::KvGeometry g = model::kv_geometry(layer);
      kv.push_back(
          ops::make_kv_layer(
              *ops_, 3, {.num_kv_heads = g.num_kv_heads, .head_dim = g.head_dim, .parts = g.parts})
              .value());
    }
    for (size_t i = 0; i < kv.size(); ++i) kv[i] = kv[model::kv_layer_of(spec, i)];
    std::vector<model::LayerState> states;
    for (const model::LayerSpec& layer : spec.layers) {
      const int64_t bytes = model::state_bytes(layer).state;
      if (model::keeps_states(spec)) states.emplace_back();
      if (bytes > 0) states.back().pool = ops_->allocate(tensor::DType::kU8, {1, bytes}).value();
    }
    auto decoder = model::Decoder::make(
        spec, weights, kv, *ops_,
        {.max_tokens = kLength, .max_logits_rows = kLength, .max_seq_len = kLength}, {}, {},
        states);
    EXPECT_TRUE(decoder) << decoder.error().to_string();
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < kLength; ++t) positions.push_back(t);
    const auto ints = [&](const std::vector<int32_t>& values) { return device_->put(values); };
    const ops::View blocks =
        device_->put_as<int32_t>(std::vector<int32_t>{0, 1, 2}, tensor::DType::kI32, {1, 3});
    std::vector<testing::TapToken> tokens;
    for (int32_t t = 0; t < kLength && table != nullptr; ++t) {
      tokens.push_back({.row = table->points.shape[0] > 1 ? 1 : 0,
                        .capture_set = 0,
                        .capture_begin = static_cast<int32_t>(t * record / tap::kCaptureAlign)});
    }
    const ops::TapBatch taps =
        table == nullptr ? ops::TapBatch{} : testing::put_tap_batch(*device_, *table, tokens);
    return testing::to_matrix((*decoder)->forward({.ids = ints(ids_),
                                                   .positions = ints(positions),
                                                   .kv_slot = ints(positions),
                                                   .attention = {.q_begin = ints({0, kLength}),
                                                                 .kv_len = ints({kLength}),
                                                                 .table_row = ints({0}),
                                                                 .block_table = blocks,
                                                                 .max_q_len = kLength,
                                                                 .max_kv_len = kLength},
                                                   .logits_rows = ints(rows ? *rows : positions),
                                                   .states = {ints({0}), ints({0})},
                                                   .tap_table = table,
                                                   .tapped = tapped,
                                                   .taps = taps,
                                                   .rows_taps = taps,
                                                   .keep_all_rows = rows == nullptr}));
  }

  testing::RememberingOps* ops_ = nullptr;
  std::unique_ptr<testing::Device> device_;
  std::vector<int32_t> ids_;
};

inline std::string arch_name(const ::testing::TestParamInfo<TinyArch>& test) {
  return std::string(testing::tiny_arch_name(test.param));
}

}  // namespace rudder::metamorphic
