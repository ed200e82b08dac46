// The decoder's pass of tiny models whose residual has several streams against the same pass in
// fp64: rows at residual points, the numbers that streams are written by, and what each of a kind's
// weights does.
#include "metamorphic/decoder_reference.h"

#include <string>
#include <utility>

#include "rudder/model/tap_geometry.h"
#include "rudder/testing/reference_gates.h"
#include "rudder/testing/reference_streams.h"

namespace rudder::metamorphic {
namespace {

class DecoderReferenceStreams : public DecoderReference,
                                public ::testing::WithParamInterface<TinyArch> {};

// Rows of residual points have the streams side by side, and a change of one is a change of that:
// of the one with the layer's number at the ends of layers, of all in the middle.
TEST_P(DecoderReferenceStreams, AreReadAndChangedAtEveryResidualPoint) {
  const model::ModelSpec spec = testing::tiny_spec(GetParam());
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const tap::Geometry geometry = model::tap_geometry(spec, tensor::DType::kF32);
  const int32_t count = geometry.residual.streams;
  ASSERT_GT(count, 1);
  const auto is_changed = [&](tap::Point point, int32_t stream) {
    return point.site == tap::Site::kResidMid || point.layer % count == stream;
  };
  tap::Program program;
  tap::CaptureSet set;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (const tap::Site site :
         {tap::Site::kResidPre, tap::Site::kResidMid, tap::Site::kResidPost}) {
      const tap::Point point{layer, site};
      ASSERT_EQ(geometry.width(point), count * spec.hidden);
      set.points.push_back({point, false});
      set.points.push_back({point, true});
      tap::TapOp add;
      add.v1 = static_cast<int32_t>(program.vectors.size());
      for (int32_t stream = 0; stream < count; ++stream) {
        program.vectors.insert(program.vectors.end(), static_cast<size_t>(spec.hidden),
                               is_changed(point, stream) ? 0.25f : 0.0f);
      }
      program.ops.push_back({point, add});
    }
  }
  std::vector<int64_t> offsets;
  const int64_t record = tap::record_elements(set, geometry, &offsets);
  const std::vector<tap::Program> programs = {program};
  const std::vector<tap::CaptureSet> sets = {set};
  const ops::TapTable table =
      testing::put_tap_table(*device_, geometry, programs, sets, 1, kLength * record);

  std::vector<std::vector<Matrix>> rows;  // by point of the set
  const Matrix expected = testing::reference_forward(
      spec, weights, *ops_, ids_, {.residual = [&](tap::Point point, std::vector<Matrix>& streams) {
        rows.push_back(streams);
        for (int32_t stream = 0; stream < count; ++stream) {
          if (!is_changed(point, stream)) continue;
          for (double& value : streams[static_cast<size_t>(stream)].values) value += 0.25;
        }
        rows.push_back(streams);
      }});
  const Matrix got = decoded(spec, weights, &table, record);
  EXPECT_LE(testing::max_difference(got, expected), 2e-5 * testing::max_abs(expected));
  EXPECT_GT(
      testing::max_difference(expected, testing::reference_forward(spec, weights, *ops_, ids_)),
      0.01 * testing::max_abs(expected));
  const Matrix ring = testing::to_matrix(table.ring);
  ASSERT_EQ(rows.size(), set.points.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t k = 0; k < int64_t{count} * spec.hidden; ++k) {
      const Matrix& stream = rows[i][static_cast<size_t>(k / spec.hidden)];
      for (int64_t t = 0; t < kLength; ++t) {
        ASSERT_NEAR(ring.values[static_cast<size_t>(t * record + offsets[i] + k)],
                    stream.at(t, k % spec.hidden), 2e-5 * (1 + testing::max_abs(stream)))
            << "point " << i << ", token " << t << ", element " << k;
      }
    }
  }
}

// A kind that makes numbers of each token: what they are of a row of all streams.
struct MadeNumbers {
  std::vector<double> post;
  std::vector<double> mix;
};
MadeNumbers numbers_of(const model::ModelSpec& spec, const model::LayerWeights& layer, bool is_mlp,
                       const std::vector<Matrix>& streams, int64_t token) {
  if (const auto* const gates = std::get_if<model::GatedStreams::Weights>(&layer.residual)) {
    // What a branch of ones adds to each stream.
    Matrix ones(streams[0].rows, streams[0].cols);
    for (double& value : ones.values) value = 1;
    const std::vector<Matrix> written = testing::reference_gated_write(
        testing::to_reference(is_mlp ? gates->mlp : gates->mixer), streams, ones);
    MadeNumbers made;
    for (size_t i = 0; i < streams.size(); ++i) {
      made.post.push_back(written[i].at(token, 0) - streams[i].at(token, 0));
    }
    return made;
  }
  const auto& maps = std::get<model::HyperConnections::Weights>(layer.residual);
  std::vector<double> row;
  for (const Matrix& stream : streams) {
    for (int64_t k = 0; k < stream.cols; ++k) row.push_back(stream.at(token, k));
  }
  const testing::ReferenceNumbers made =
      testing::reference_numbers(std::get<model::HyperConnections>(spec.residual).rule,
                                 testing::to_reference(is_mlp ? maps.mlp : maps.mixer), row);
  return {made.post, made.mix};
}

class DecoderReferenceNumbers : public DecoderReference,
                                public ::testing::WithParamInterface<TinyArch> {};

// What is captured is what the branch is written by: made of the streams as ops have left them.
TEST_P(DecoderReferenceNumbers, AreCapturedAsTheyAreUsed) {
  const model::ModelSpec spec = testing::tiny_spec(GetParam());
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const tap::Geometry geometry = model::tap_geometry(spec, tensor::DType::kF32);
  tap::Program program;
  tap::CaptureSet set;
  for (int32_t layer = 0; layer < geometry.num_layers; ++layer) {
    for (int32_t site = 0; site < tap::kNumSites; ++site) {
      const tap::Point point{layer, static_cast<tap::Site>(site)};
      if (!geometry.has(point)) continue;
      if (tap::is_mix(point.site)) set.points.push_back({point, site % 2 == 0});
      if (!tap::is_residual(point.site)) continue;
      tap::TapOp add;
      add.v1 = static_cast<int32_t>(program.vectors.size());
      program.vectors.insert(program.vectors.end(), static_cast<size_t>(geometry.width(point)),
                             0.25f);
      program.ops.push_back({point, add});
    }
  }
  ASSERT_FALSE(set.points.empty());
  std::vector<int64_t> offsets;
  const int64_t record = tap::record_elements(set, geometry, &offsets);
  const std::vector<tap::Program> programs = {program};
  const std::vector<tap::CaptureSet> sets = {set};
  const ops::TapTable table =
      testing::put_tap_table(*device_, geometry, programs, sets, 1, kLength * record);
  // What branches read, two a layer.
  std::vector<std::vector<Matrix>> read;
  testing::reference_forward(spec, weights, *ops_, ids_,
                             {.residual = [&](tap::Point point, std::vector<Matrix>& streams) {
                               for (Matrix& stream : streams) {
                                 for (double& value : stream.values) value += 0.25;
                               }
                               if (point.site != tap::Site::kResidPost) read.push_back(streams);
                             }});
  decoded(spec, weights, &table, record);
  const Matrix ring = testing::to_matrix(table.ring);
  for (size_t i = 0; i < set.points.size(); ++i) {
    const tap::Point point = set.points[i].point;
    const auto layer = static_cast<size_t>(point.layer);
    const bool is_post = (tap::site_bit(point.site) & tap::kPostMixSites) != 0;
    const bool is_mlp = point.site > tap::Site::kResidMid;
    for (int64_t t = 0; t < kLength; ++t) {
      const MadeNumbers made =
          numbers_of(spec, weights.layers[layer], is_mlp, read[2 * layer + (is_mlp ? 1 : 0)], t);
      const std::vector<double>& expected = is_post ? made.post : made.mix;
      ASSERT_EQ(std::ssize(expected), geometry.width(point));
      for (size_t k = 0; k < expected.size(); ++k) {
        ASSERT_NEAR(ring.values[static_cast<size_t>(t * record + offsets[i]) + k], expected[k],
                    2e-5)
            << "point " << i << ", token " << t << ", number " << k;
      }
    }
  }
}

// A kind of several streams may have one.
TEST_F(DecoderReference, OneStreamIsReadAndWrittenAsSeveralAre) {
  for (const TinyArch arch : {TinyArch::kHyper, TinyArch::kDelayed, TinyArch::kGatedStreams}) {
    model::ModelSpec spec = testing::tiny_spec(arch);
    if (auto* const hyper = std::get_if<model::HyperConnections>(&spec.residual)) {
      hyper->rule.streams = 1;
    } else {
      std::get<model::GatedStreams>(spec.residual).count = 1;
    }
    const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
    const Matrix expected = testing::reference_forward(spec, weights, *ops_, ids_);
    EXPECT_LE(testing::max_difference(decoded(spec, weights), expected),
              2e-5 * testing::max_abs(expected))
        << testing::tiny_arch_name(arch);
  }
}

// Every branch's numbers are read by, those of the last by the end; and no branch's own are.
TEST_F(DecoderReference, EveryDelayedNumberMovesTheLogits) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kDelayed);
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix base = testing::reference_forward(spec, weights, *ops_, ids_);
  const int32_t count = form_of(spec.residual).streams;
  for (const model::LayerWeights& layer : weights.layers) {
    const auto& maps = std::get<model::HyperConnections::Weights>(layer.residual);
    EXPECT_TRUE(maps.end.empty());
    for (const ops::StreamMap* const map : {&maps.mixer, &maps.mlp}) {
      for (int32_t i = 0; i < count; ++i) {
        float& number = map->base.as<float>()[i];
        const float kept = std::exchange(number, number + 2);
        const Matrix moved = testing::reference_forward(spec, weights, *ops_, ids_);
        EXPECT_LE(testing::max_difference(decoded(spec, weights), moved),
                  2e-5 * testing::max_abs(moved));
        number = kept;
        EXPECT_GT(testing::max_difference(moved, base), 1e-3 * testing::max_abs(base)) << i;
      }
    }
  }
  model::ModelSpec own = spec;
  own.residual = model::HyperConnections{
      .rule = std::get<model::HyperConnections>(spec.residual).rule, .ends_in_mean = true};
  EXPECT_GT(testing::max_difference(testing::reference_forward(own, weights, *ops_, ids_), base),
            0.01 * testing::max_abs(base));
}

// Likewise of each part of a gate.
TEST_F(DecoderReference, EveryPartOfAGateMovesTheLogits) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kGatedStreams);
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix base = testing::reference_forward(spec, weights, *ops_, ids_);
  const auto expect_moves = [&](const ops::View& numbers, const std::string& what) {
    const int64_t count = numbers.shape.numel();
    for (int64_t i = 0; i < count; i += count / 5 + 1) {
      float& number = numbers.as<float>()[i];
      const float kept = std::exchange(number, 3 * number + 2);
      const Matrix moved = testing::reference_forward(spec, weights, *ops_, ids_);
      number = kept;
      EXPECT_GT(testing::max_difference(moved, base), 1e-5 * testing::max_abs(base))
          << what << " " << i;
    }
  };
  EXPECT_TRUE(weights.final_norm.empty());
  for (const model::LayerWeights& layer : weights.layers) {
    const auto& gates = std::get<model::GatedStreams::Weights>(layer.residual);
    const bool is_last = &layer == &weights.layers.back();
    for (const ops::StreamGate* const gate : {&gates.mixer, &gates.mlp, &gates.end}) {
      const bool is_end = gate == &gates.end;
      EXPECT_EQ(gate->down.empty(), is_end && !is_last);
      EXPECT_EQ(gate->inject.empty(), is_end);
      if (gate->down.empty()) continue;
      expect_moves(gate->norm.weight, "norm");
      expect_moves(gate->down, "down");
      expect_moves(gate->up, "up");
      if (!is_end) expect_moves(gate->inject, "inject");
    }
  }
}

// Each number of the streams moves the logits, but those of the first read: all streams are the
// embedding there, so they change its length, which the norm takes away.
TEST_F(DecoderReference, EveryNumberOfAStreamMovesTheLogits) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kTwoStreams);
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix base = testing::reference_forward(spec, weights, *ops_, ids_);
  using Numbers = model::MixedStreams::Weights;
  const auto expect_moves = [&](const ops::View& numbers, const std::string& what) {
    for (int64_t i = 0; i < numbers.num_rows(); ++i) {
      float& number = numbers.as<float>()[i];
      const float kept = number;
      number = 2 * kept + 1;
      const Matrix moved = testing::reference_forward(spec, weights, *ops_, ids_);
      number = kept;
      EXPECT_GT(testing::max_difference(moved, base), 1e-3 * testing::max_abs(base))
          << what << " " << i;
    }
  };
  for (const model::LayerWeights& layer : weights.layers) {
    const Numbers& numbers = std::get<Numbers>(layer.residual);
    for (const auto* const site : {&numbers.mixer, &numbers.mlp}) {
      const bool is_first = &layer == &weights.layers.front() && site == &numbers.mixer;
      if (!is_first) expect_moves(site->read, "read");
      expect_moves(site->write, "write");
      expect_moves(site->mix, "mix");
    }
  }
  expect_moves(std::get<Numbers>(weights.layers.back().residual).end, "end");
}

// Likewise of the norms and queries by which sums of blocks are read; the first branch has the
// embedding alone to read.
TEST_F(DecoderReference, EveryNumberOfAQueryMovesTheLogits) {
  const model::ModelSpec spec = testing::tiny_spec(TinyArch::kBlockSums);
  const model::Weights weights = testing::random_weights(spec, *ops_, 7).value();
  const Matrix base = testing::reference_forward(spec, weights, *ops_, ids_);
  using Sums = model::BlockSums::Weights;
  const auto expect_moves = [&](const model::BlockSums::Query& query, const std::string& what) {
    for (const ops::View& numbers : {query.norm.weight, query.query}) {
      for (int64_t i = 0; i < numbers.num_rows(); i += 9) {
        float& number = numbers.as<float>()[i];
        const float kept = number;
        number = 2 * kept + 1;
        const Matrix moved = testing::reference_forward(spec, weights, *ops_, ids_);
        number = kept;
        EXPECT_GT(testing::max_difference(moved, base), 1e-4 * testing::max_abs(base))
            << what << " " << i;
      }
    }
  };
  for (const model::LayerWeights& layer : weights.layers) {
    const Sums& sums = std::get<Sums>(layer.residual);
    if (&layer != &weights.layers.front()) expect_moves(sums.mixer, "mixer");
    expect_moves(sums.mlp, "mlp");
  }
  expect_moves(std::get<Sums>(weights.layers.back().residual).end, "end");
}

INSTANTIATE_TEST_SUITE_P(Streams, DecoderReferenceStreams,
                         ::testing::Values(TinyArch::kTwoStreams, TinyArch::kBlockSums,
                                           TinyArch::kHyper, TinyArch::kDelayed,
                                           TinyArch::kGatedStreams),
                         arch_name);
INSTANTIATE_TEST_SUITE_P(Streams, DecoderReferenceNumbers,
                         ::testing::Values(TinyArch::kHyper, TinyArch::kDelayed,
                                           TinyArch::kGatedStreams),
                         arch_name);

}  // namespace
}  // namespace rudder::metamorphic
