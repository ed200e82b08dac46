// The decoder's pass of every tiny model against the same pass in fp64: a field of the spec that
// the decoder forgets, or reads twice, shows.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rudder/model/decoder.h"
#include "rudder/testing/device_tensors.h"
#include "rudder/testing/reference_model.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::metamorphic {
namespace {

using testing::Matrix;
using testing::TinyArch;

// Longer than the windows of tiny models.
constexpr int32_t kLength = 40;

class DecoderReference : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ops = std::make_unique<testing::RememberingOps>();
    ops_ = ops.get();
    device_ = std::make_unique<testing::Device>(std::move(ops));
    for (int32_t t = 0; t < kLength; ++t) ids_.push_back((t * 37 + 11) % 160);
  }

  // Logits of all tokens, by the decoder.
  Matrix decoded(const model::ModelSpec& spec, const model::Weights& weights) {
    std::vector<ops::KvLayer> kv;
    for (const model::LayerSpec& layer : spec.layers) {
      const model::KvGeometry g = model::kv_geometry(layer);
      kv.push_back(
          {ops_->allocate(ops_->kv_dtype(), {3, 2, g.num_kv_heads, 16 * g.head_dim}).value(), 16,
           g.num_kv_heads, g.head_dim});
    }
    auto decoder = model::Decoder::make(
        spec, weights, kv, *ops_,
        {.max_tokens = kLength, .max_logits_rows = kLength, .max_seq_len = kLength});
    EXPECT_TRUE(decoder) << decoder.error().to_string();
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < kLength; ++t) positions.push_back(t);
    const auto ints = [&](const std::vector<int32_t>& values) { return device_->put(values); };
    const ops::View table =
        device_->put_as<int32_t>(std::vector<int32_t>{0, 1, 2}, tensor::DType::kI32, {1, 3});
    return testing::to_matrix((*decoder)->forward({.ids = ints(ids_),
                                                   .positions = ints(positions),
                                                   .kv_slot = ints(positions),
                                                   .attention = {.q_begin = ints({0, kLength}),
                                                                 .kv_len = ints({kLength}),
                                                                 .table_row = ints({0}),
                                                                 .block_table = table,
                                                                 .max_q_len = kLength,
                                                                 .max_kv_len = kLength},
                                                   .logits_rows = ints(positions)}));
  }

  testing::RememberingOps* ops_ = nullptr;
  std::unique_ptr<testing::Device> device_;
  std::vector<int32_t> ids_;
};

class DecoderReferenceArchs : public DecoderReference,
                              public ::testing::WithParamInterface<TinyArch> {};

TEST_P(DecoderReferenceArchs, AgreesWithTheFormulas) {
  const model::ModelSpec spec = testing::tiny_spec(GetParam());
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix expected = testing::reference_forward(spec, weights, *ops_, ids_);
  const Matrix got = decoded(spec, weights);
  EXPECT_GT(testing::max_abs(expected), 1);
  EXPECT_LE(testing::max_difference(got, expected), 2e-5 * testing::max_abs(expected));
}

// Each mechanism of kScaled moves the logits: agreement above proves something of each.
TEST_F(DecoderReference, EveryScaleMovesTheLogits) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kScaled);
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix base = testing::reference_forward(spec, weights, *ops_, ids_);
  const auto expect_moves = [&](std::string_view what, const auto& change) {
    model::ModelSpec other = spec;
    model::Weights other_weights = weights;
    change(other, other_weights);
    const Matrix moved = testing::reference_forward(other, other_weights, *ops_, ids_);
    EXPECT_GT(testing::max_difference(moved, base), 0.01 * testing::max_abs(base)) << what;
  };
  using Spec = model::ModelSpec;
  using Weights = model::Weights;
  const auto of = [](model::LayerWeights& layer) -> model::Attention::Weights& {
    return std::get<model::Attention::Weights>(layer.mixer);
  };
  expect_moves("branches", [](Spec& s, Weights&) { s.branch_scale = 1; });
  expect_moves("logits", [](Spec& s, Weights&) { s.logit_scale = 1; });
  expect_moves("rows of the table", [](Spec& s, Weights&) { s.embed_scale = 1; });
  expect_moves("a layer", [](Spec&, Weights& w) { w.layers[1].scale = 1; });
  expect_moves("no rope", [](Spec& s, Weights&) { attention_of(s.layers[1])->rope = 0; });
  expect_moves("rope", [](Spec& s, Weights&) { s.ropes[0].scaling = model::RopeDefault{}; });
  expect_moves("v-norm", [&](Spec&, Weights& w) { of(w.layers[0]).v_norm = {}; });
  expect_moves("sinks", [&](Spec&, Weights& w) { of(w.layers[0]).sinks = {}; });
}

std::string arch_name(const ::testing::TestParamInfo<TinyArch>& test) {
  return std::string(testing::tiny_arch_name(test.param));
}

INSTANTIATE_TEST_SUITE_P(Tiny, DecoderReferenceArchs, ::testing::ValuesIn(testing::kTinyArchs),
                         arch_name);

}  // namespace
}  // namespace rudder::metamorphic
