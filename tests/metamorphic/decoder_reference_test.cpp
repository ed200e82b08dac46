// The decoder's pass of every tiny model against the same pass in fp64: a field of the spec that
// the decoder forgets, or reads twice, shows.
#include "metamorphic/decoder_reference.h"

#include <string>
#include <utility>

#include "rudder/model/tap_geometry.h"

namespace rudder::metamorphic {
namespace {

// Layers that keep a state of a sequence, beside one of attention.
TEST_F(DecoderReference, AToyMixerIsItsFormula) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kRecurrent);
  ASSERT_TRUE(model::keeps_states(spec) && !model::runs_trees(spec));
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix expected = testing::reference_forward(spec, weights, *ops_, ids_);
  EXPECT_LE(testing::max_difference(decoded(spec, weights), expected),
            2e-5 * testing::max_abs(expected));
}

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

// Of some rows, whatever the last layer has: what it makes of the others is not computed.
TEST_P(DecoderReferenceArchs, SomeRowsAreThoseOfAll) {
  const std::vector<int32_t> rows = {0, kLength / 2, kLength - 1};
  model::ModelSpec spec = testing::tiny_spec(GetParam());
  for (; !spec.layers.empty(); spec.layers.pop_back()) {
    if (!std::holds_alternative<model::OneStream>(spec.residual)) break;  // of as many layers
    const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
    const Matrix expected = testing::reference_forward(spec, weights, *ops_, ids_);
    const Matrix got = decoded(spec, weights, nullptr, 0, nullptr, &rows);
    ASSERT_EQ(got.rows, std::ssize(rows));
    for (int64_t i = 0; i < got.rows; ++i) {
      const int64_t row = rows[static_cast<size_t>(i)];
      EXPECT_LE(testing::max_difference(got.slice(i, 1, 0, got.cols),
                                        expected.slice(row, 1, 0, got.cols)),
                2e-5 * testing::max_abs(expected))
          << spec.layers.size() << " layers, row " << row;
    }
  }
}

// attn_z is what attention made, head by head, before the output projection; a change of it is a
// change of that. One head of each layer is turned off, and another made longer.
TEST_P(DecoderReferenceArchs, AttnZIsTheHeadsBeforeTheOutputProjection) {
  const model::ModelSpec spec = testing::tiny_spec(GetParam());
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const tap::Geometry geometry = model::tap_geometry(spec, tensor::DType::kF32);
  tap::Program program;
  tap::CaptureSet set;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    const tap::Point point{layer, tap::Site::kAttnZ};
    ASSERT_EQ(geometry.has(point), spec.layers[static_cast<size_t>(layer)].has_mixer());
    if (!geometry.has(point)) continue;
    const tap::Heads& heads = geometry.heads[static_cast<size_t>(layer)];
    ASSERT_EQ(geometry.width(point), heads.count * heads.dim);
    set.points.push_back({point, false});
    set.points.push_back({point, true});
    const auto vector = [&](int32_t head, float value) {
      const auto begin = static_cast<int32_t>(program.vectors.size());
      program.vectors.resize(program.vectors.size() + static_cast<size_t>(heads.width()));
      std::fill_n(program.vectors.begin() + begin + head * heads.dim, heads.dim, value);
      program.vectors.resize((program.vectors.size() + 15) / 16 * 16);
      return begin;
    };
    tap::TapOp off;
    off.kind = tap::OpKind::kPatch;
    off.v1 = vector(0, 0);
    off.v2 = vector(0, 1);
    program.ops.push_back({point, off});
    tap::TapOp add;
    add.v1 = vector(heads.count - 1, 0.25f);
    program.ops.push_back({point, add});
  }
  std::vector<int64_t> offsets;
  const int64_t record = tap::record_elements(set, geometry, &offsets);
  const std::vector<tap::Program> programs = {program};
  const std::vector<tap::CaptureSet> sets = {set};
  const ops::TapTable table =
      testing::put_tap_table(*device_, geometry, programs, sets, 1, kLength * record);

  std::vector<Matrix> before;
  std::vector<Matrix> after;
  const Matrix expected = testing::reference_forward(
      spec, weights, *ops_, ids_, {.mixed = [&](size_t layer, Matrix& mixed) {
        before.push_back(mixed);
        const tap::Heads& heads = geometry.heads[layer];
        for (int64_t t = 0; t < mixed.rows; ++t) {
          for (int64_t i = 0; i < heads.dim; ++i) {
            mixed.at(t, i) = 0;
            mixed.at(t, (heads.count - 1) * heads.dim + i) += 0.25;
          }
        }
        after.push_back(mixed);
      }});
  const Matrix got = decoded(spec, weights, &table, record);
  EXPECT_LE(testing::max_difference(got, expected), 2e-5 * testing::max_abs(expected));
  EXPECT_GT(
      testing::max_difference(expected, testing::reference_forward(spec, weights, *ops_, ids_)),
      0.01 * testing::max_abs(expected));
  const Matrix ring = testing::to_matrix(table.ring);
  for (size_t i = 0; i < set.points.size(); ++i) {
    const Matrix& rows = (set.points[i].after ? after : before)[i / 2];
    for (int64_t t = 0; t < kLength; ++t) {
      for (int64_t k = 0; k < rows.cols; ++k) {
        ASSERT_NEAR(ring.values[static_cast<size_t>(t * record + offsets[i] + k)], rows.at(t, k),
                    2e-5 * (1 + testing::max_abs(rows)))
            << "layer " << i / 2 << ", token " << t;
      }
    }
  }
}

// A pattern is what attention multiplies the values with: of a softmax the weights and the sink's
// sum to 1, and a key outside of the window has none.
TEST_P(DecoderReferenceArchs, PatternsAreTheWeightsOfAttention) {
  const model::ModelSpec spec = testing::tiny_spec(GetParam());
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const tap::Geometry geometry = model::tap_geometry(spec, tensor::DType::kF32);
  tap::CaptureSet set;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    // The first layers' rows end before the last tokens.
    tap::CapturePattern pattern{.layer = layer, .keys = layer == 0 ? 30 : kLength + 3, .heads = {}};
    const int32_t count = geometry.pattern_heads(layer);
    for (int32_t head = layer % 2; head < count; ++head) pattern.heads.push_back(head);
    if (count > 0) set.patterns.push_back(std::move(pattern));
  }
  std::vector<int64_t> offsets;
  const int64_t record = tap::record_elements(set, geometry, &offsets);
  const std::vector<tap::CaptureSet> sets = {set};
  const ops::TapTable table =
      testing::put_tap_table(*device_, geometry, {}, sets, 1, kLength * record);
  std::vector<std::vector<Matrix>> expected;
  const Matrix logits = testing::reference_forward(spec, weights, *ops_, ids_, {}, &expected);
  const auto tapped = tap::PassageSet::all(tap::kMixerWeights, geometry.num_layers);
  const Matrix got = decoded(spec, weights, &table, record, &tapped);
  EXPECT_LE(testing::max_difference(got, logits), 2e-5 * testing::max_abs(logits));

  const Matrix ring = testing::to_matrix(table.ring);
  for (size_t i = 0; i < set.patterns.size(); ++i) {
    const tap::CapturePattern& pattern = set.patterns[i];
    const auto layer = static_cast<size_t>(pattern.layer);
    const model::Softmax* const softmax = model::softmax_of(spec.layers[layer]);
    for (size_t h = 0; h < pattern.heads.size(); ++h) {
      const Matrix& rows = expected[layer][static_cast<size_t>(pattern.heads[h])];
      for (int32_t t = 0; t < kLength; ++t) {
        SCOPED_TRACE("layer " + std::to_string(layer) + ", head " +
                     std::to_string(pattern.heads[h]) + ", token " + std::to_string(t));
        const int64_t begin = t * record + offsets[i] + static_cast<int64_t>(h) * pattern.keys;
        double sum = 0;
        for (int32_t k = 0; k < pattern.keys; ++k) {
          const double weight = ring.values[static_cast<size_t>(begin + k)];
          const double wanted = t < pattern.keys && k < kLength ? rows.at(t, k) : 0;
          ASSERT_NEAR(weight, wanted, 2e-5) << "key " << k;
          sum += weight;
        }
        if (t >= pattern.keys || softmax == nullptr) continue;
        if (softmax->sinks) {
          EXPECT_LT(sum, 1 - 1e-6);
        } else {
          EXPECT_NEAR(sum, 1, 1e-5);
        }
      }
    }
  }
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
  expect_moves("growth", [](Spec& s, Weights&) { s.query_growth = {}; });
  expect_moves("norms", [](Spec& s, Weights&) {
    for (auto& layer : s.layers) attention_of(layer)->norms_rotated = false;
  });
  expect_moves("rows of the table", [](Spec& s, Weights&) { s.embed_scale = 1; });
  expect_moves("a layer", [](Spec&, Weights& w) { w.layers[1].scale = 1; });
  expect_moves("no rope", [](Spec& s, Weights&) { attention_of(s.layers[1])->rope = 0; });
  expect_moves("rope", [](Spec& s, Weights&) { s.ropes[0].scaling = model::RopeDefault{}; });
  expect_moves("v-norm", [&](Spec&, Weights& w) { of(w.layers[0]).v_norm = {}; });
  expect_moves("sinks", [&](Spec&, Weights& w) { of(w.layers[0]).sinks = {}; });
}

// What only a model with embeddings by layer, shared KV and experts with norms of their own has.
TEST_F(DecoderReference, EveryPartThatIsByLayerMovesTheLogits) {
  using Spec = model::ModelSpec;
  using Weights = model::Weights;
  const Spec spec = testing::tiny_spec(TinyArch::kByLayer);
  const Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix base = testing::reference_forward(spec, weights, *ops_, ids_);
  const auto expect_moves = [&](std::string_view what, const auto& change) {
    Spec other = spec;
    Weights other_weights = weights;
    change(other, other_weights);
    const Matrix moved = testing::reference_forward(other, other_weights, *ops_, ids_);
    EXPECT_GT(testing::max_difference(moved, base), 0.01 * testing::max_abs(base)) << what;
  };
  const auto experts = [](Weights& w) -> model::Experts::Weights& {
    return std::get<model::Experts::Weights>(w.layers.front().mlp);
  };
  expect_moves("source of KV", [](Spec& s, Weights&) { attention_of(s.layers[2])->kv_layer = 0; });
  expect_moves("norm of rows", [](Spec&, Weights& w) { w.layer_embedding.norm = {}; });
  expect_moves("norm of what a layer adds",
               [](Spec&, Weights& w) { w.layers[1].layer_embedding.post_norm = {}; });
  expect_moves("scales of experts", [&](Spec&, Weights& w) { experts(w).expert_scales = {}; });
  expect_moves("norm of the router", [&](Spec&, Weights& w) { experts(w).router_norm = {}; });
  expect_moves("norm of experts' input", [&](Spec&, Weights& w) { experts(w).pre_norm = {}; });
  expect_moves("norm of their sum", [&](Spec&, Weights& w) { experts(w).post_norm = {}; });
  expect_moves("norm of the MLP", [&](Spec&, Weights& w) { experts(w).shared_post_norm = {}; });
  expect_moves("norms of their own",
               [](Spec& s, Weights&) { experts_of(s.layers[0])->own_norms = false; });
}

INSTANTIATE_TEST_SUITE_P(Tiny, DecoderReferenceArchs, ::testing::ValuesIn(testing::kTinyArchs),
                         arch_name);
INSTANTIATE_TEST_SUITE_P(Streams, DecoderReferenceArchs,
                         ::testing::Values(TinyArch::kTwoStreams, TinyArch::kDelayed,
                                           TinyArch::kGatedStreams, TinyArch::kBlockSums,
                                           TinyArch::kNormedSums, TinyArch::kGatedAdds,
                                           TinyArch::kDepthAdds),
                         arch_name);
INSTANTIATE_TEST_SUITE_P(Experts, DecoderReferenceArchs, ::testing::Values(TinyArch::kSinks),
                         arch_name);
INSTANTIATE_TEST_SUITE_P(ByLayer, DecoderReferenceArchs, ::testing::Values(TinyArch::kByLayer),
                         arch_name);
INSTANTIATE_TEST_SUITE_P(Delta, DecoderReferenceArchs,
                         ::testing::Values(TinyArch::kDelta, TinyArch::kSpaces), arch_name);
INSTANTIATE_TEST_SUITE_P(Latent, DecoderReferenceArchs,
                         ::testing::Values(TinyArch::kLatent, TinyArch::kHyper), arch_name);

}  // namespace
}  // namespace rudder::metamorphic
