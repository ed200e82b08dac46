// Whole encodes: single cases whose result is known to the bit, and rows in other batches.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance_encode.h"

namespace rudder::testing {
namespace {

using tap::FeatureNorm;
using tensor::View;

// Of equal values those of the lower numbers are kept; also where there are more of them than a
// block of a GPU lists at a time.
TEST_P(OpsEncode, EqualValuesAreKeptInOrder) {
  constexpr int32_t kWidth = 16;
  for (const int32_t num_features : {40, 2000, 5003, 70003}) {
    for (const int32_t k : {1, 3, 17, 3000}) {
      DictionaryFloats image = random_image(kWidth, kWidth, num_features, k);
      image.head.norm = FeatureNorm::kNone;
      const auto fill = [&](int32_t begin, int64_t count, float value) {
        std::fill_n(image.floats.begin() + begin, count, value);
      };
      fill(image.head.encoder, int64_t{num_features} * kWidth, 0);
      fill(image.head.decoder, int64_t{num_features} * kWidth, 0);
      fill(image.head.output_bias, kWidth, 0);
      fill(image.head.bias, num_features, 1);
      fill(image.head.scale, num_features, 1);
      // Number j writes 2^-(j % 8) to column j / 8 % 16; one value is larger than the others.
      for (int32_t j = 0; j < num_features; ++j) {
        image.floats[static_cast<size_t>(int64_t{image.head.decoder} + j * kWidth +
                                         j / 8 % kWidth)] = std::ldexp(1.0f, -(j % 8));
      }
      image.floats[static_cast<size_t>(image.head.bias + num_features - 1)] = 2;
      std::vector<DictionaryFloats> images = {image};
      Scene scene;
      scene.geometry = geometry_of(kWidth);
      tap::Program program;
      add_encode(program, 0, image, true);
      program.ops.resize(1);
      program.ops[0].op.run = 1;
      scene.programs = {program};
      scene.tokens = {{.row = 1}};
      put_with(scene, images, 0);
      const View x = random({1, kWidth});
      ops_.feature_ops()->encode({.x = x, .taps = scene.at(kPost)});
      const Matrix got = read(x);
      Row expected(kWidth);
      const auto add = [&](int32_t j, double value) {  // sums of these are exact in fp32
        expected[static_cast<size_t>(j / 8 % kWidth)] += std::ldexp(value, -(j % 8));
      };
      add(num_features - 1, 2);
      for (int32_t j = 0; j < std::min(k, num_features) - 1; ++j) add(j, 1);
      round_to_act(expected);
      EXPECT_EQ(row_of(got, 0), expected) << num_features << " features, k " << k;
    }
  }
}

// Any share of a large dictionary's features may be active, wherever they are.
TEST_P(OpsEncode, RowsOfManyActiveFeatures) {
  constexpr int32_t kWidth = 24;
  constexpr int32_t kFeatures = 6001;
  for (const int32_t k : {0, 40, 2500}) {
    for (const double share : {0.002, 0.05, 0.5, 1.0}) {
      DictionaryFloats image = random_image(kWidth, kWidth, kFeatures, k);
      image.head.norm = FeatureNorm::kNone;
      std::fill_n(image.floats.begin() + image.head.gate, kFeatures, 0.0f);
      // Values are far apart, so that no rounding decides which are the largest.
      std::fill_n(image.floats.begin() + image.head.encoder, int64_t{kFeatures} * kWidth, 0.0f);
      std::fill_n(image.floats.begin() + image.head.scale, kFeatures, 1.0f);
      std::fill_n(image.floats.begin() + image.head.bias, kFeatures, -1.0f);
      std::fill_n(image.floats.begin() + image.head.gate, kFeatures, -1.0f);
      const auto active = static_cast<int32_t>(share * kFeatures);
      const auto first = static_cast<int32_t>(between(0, kFeatures - active));
      for (int32_t j = first; j < first + active; ++j) {
        const int32_t step = (j * 37 + 11) % kFeatures;  // each once
        image.floats[static_cast<size_t>(int64_t{image.head.bias} + j)] =
            static_cast<float>(step + 1) / 4096;
      }
      std::vector<DictionaryFloats> images = {image};
      Scene scene;
      scene.geometry = geometry_of(kWidth);
      tap::Program program;
      add_encode(program, 0, image, true);
      scene.programs = {program};
      scene.tokens = {{.row = 1}, {.row = 1}};
      put_with(scene, images, 0);
      const View x = random({2, kWidth});
      const Matrix before = read(x);
      ops_.feature_ops()->encode({.x = x, .taps = scene.at(kPost)});
      const Matrix got = read(x);
      for (int64_t t = 0; t < 2; ++t) {
        bool is_sure = true;
        const Row expected = expected_row(images, program, {0}, row_of(before, t), 0, is_sure);
        ASSERT_TRUE(is_sure);
        expect_row(row_of(got, t), expected, 1e-4 * (1 + most(expected)),
                   std::to_string(active) + " active features from " + std::to_string(first) +
                       ", k " + std::to_string(k));
        if (HasFailure()) return;
      }
    }
  }
}

// A row's bits are those that it has alone, and those of a graph that was captured for others.
TEST_P(OpsEncode, ARowDoesNotDependOnItsBatch) {
  constexpr int32_t kWidth = 264;
  constexpr int64_t kRows = 170;  // more of each dictionary than one batch takes
  std::vector<DictionaryFloats> images = {random_image(kWidth, kWidth, 700, 20),
                                          random_image(kWidth, kWidth, 300, 0)};
  round_rows(images[0]);
  Scene scene;
  scene.geometry = geometry_of(kWidth);
  for (const int32_t number : {0, 1}) {
    tap::Program program;
    add_encode(program, number, images[static_cast<size_t>(number)], true);
    scene.programs.push_back(std::move(program));
  }
  scene.tokens.assign(kRows, {.row = 1});  // a step whose programs do not only add vectors
  put_with(scene, images, 0);
  const View x = random({kRows, kWidth});
  const View work = copy(x);
  const ops::EncodeArgs args{.x = work, .taps = scene.at(kPost)};
  ops::BeginStepArgs begin;
  begin.tap_table = &scene.table;
  begin.taps = scene.batch;
  ops::ResidualNormArgs between_them;  // tap.T9
  between_them.x = random({2, kWidth});
  between_them.delta = random({2, kWidth});
  std::unique_ptr<ops::Graph> graph;
  const auto run = [&] {
    ops_.begin_step(begin);
    ops_.residual_norm(between_them);
    ops_.feature_ops()->encode(args);
  };
  if (ops_.graph_ops() != nullptr) {
    run();
    ops_.graph_ops()->begin_capture();
    run();
    graph = std::move(ops_.graph_ops()->end_capture().value());
  }
  const auto encode = [&](const std::vector<int32_t>& rows) {
    device_.write(work, device_.get(x).bytes());
    device_.write(scene.batch.row, std::as_bytes(std::span(rows)));
    if (graph != nullptr) {
      ops_.graph_ops()->replay(*graph);
    } else {
      run();
    }
    return device_.values<uint8_t>(work);
  };
  std::vector<int32_t> all;
  all.reserve(static_cast<size_t>(kRows));
  for (int64_t t = 0; t < kRows; ++t)
    all.push_back(static_cast<int32_t>(t % 5 == 4 ? 0 : t % 2 + 1));
  const std::vector<uint8_t> together = encode(all);
  const size_t bytes = together.size() / kRows;
  const std::vector<uint8_t> untouched = device_.values<uint8_t>(x);
  for (size_t t = 0; t < kRows; t += 11) {
    std::vector<int32_t> one(kRows);
    one[t] = all[t];
    const std::vector<uint8_t> alone = encode(one);
    for (size_t i = 0; i < kRows; ++i) {
      const std::vector<uint8_t>& expected = i == t ? together : untouched;
      EXPECT_TRUE(std::equal(alone.begin() + static_cast<int64_t>(i * bytes),
                             alone.begin() + static_cast<int64_t>((i + 1) * bytes),
                             expected.begin() + static_cast<int64_t>(i * bytes)))
          << "row " << i << ", " << t << " alone";
    }
  }
}

// Backends may encode few rows in another way than many.
TEST_P(OpsEncode, FewRowsHaveTheBitsOfMany) {
  constexpr int64_t kMany = 37;
  for (const auto& [width, num_features, k] :
       {std::array{264, 700, 20}, std::array{1024, 2300, 600}, std::array{520, 5000, 0},
        std::array{100, 300, 9}}) {
    std::vector<DictionaryFloats> images = {random_image(width, width, num_features, k)};
    round_rows(images[0]);
    std::vector<tap::Program> programs(2);
    for (size_t i = 0; i < programs.size(); ++i) add_encode(programs[i], 0, images[0], i == 0);
    const View x = random({kMany, width});
    const auto encode = [&](int64_t first, int64_t count) {
      Scene scene;
      scene.geometry = geometry_of(x.shape[1]);
      scene.programs = programs;
      for (int64_t t = first; t < first + count; ++t) {
        scene.tokens.push_back({.row = static_cast<int32_t>(t % 3)});
      }
      put_with(scene, images, 0);
      const View rows = copy(x.rows(first, count));
      ops_.feature_ops()->encode({.x = rows, .taps = scene.at(kPost)});
      return device_.values<uint8_t>(rows);
    };
    const std::vector<uint8_t> all = encode(0, kMany);
    const size_t bytes = all.size() / kMany;
    for (const auto& [first, count] :
         {std::array<int64_t, 2>{0, 1}, {1, 1}, {5, 1}, {3, 8}, {2, 9}, {20, 16}, {19, 17}}) {
      const auto begin = all.begin() + static_cast<int64_t>(static_cast<size_t>(first) * bytes);
      const std::vector<uint8_t> few = encode(first, count);
      EXPECT_TRUE(std::equal(few.begin(), few.end(), begin))
          << count << " rows from " << first << ", width " << width;
    }
  }
}

// Rows that some features make, as dictionaries are trained to find: what is active, and how much,
// is what the unrounded encoder gives in double precision, but for features nearer to their
// threshold than a rounding of the encoder can move them.
TEST_P(OpsEncode, ARoundedEncoderKeepsValuesToAThousandth) {
  constexpr int32_t kWidth = 1024;
  constexpr int32_t kFeatures = 500;
  constexpr int64_t kRows = 90;
  constexpr int kPlanted = 4;  // features of a row; few others reach the threshold by chance
  constexpr float kThreshold = 6;
  constexpr double kRounding = 1.0 / 256;  // of bf16, both ways
  DictionaryFloats image = random_image(kWidth, kWidth, kFeatures, 0);
  image.head.norm = FeatureNorm::kNone;
  std::fill_n(image.floats.begin() + image.head.scale, kFeatures, 1.0f);
  std::fill_n(image.floats.begin() + image.head.bias, kFeatures, 0.0f);
  std::fill_n(image.floats.begin() + image.head.gate, kFeatures, kThreshold);
  const DictionaryFloats exact = image;
  round_rows(image);
  std::vector<float> values = random_values(kRows * kWidth, 0.1);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int i = 0; i < kPlanted; ++i) {
      const int64_t feature = between(0, kFeatures - 1);
      const auto by = static_cast<float>(between(10, 30));
      for (int64_t c = 0; c < kWidth; ++c) {
        values[static_cast<size_t>(t * kWidth + c)] +=
            by * exact.floats[static_cast<size_t>(exact.head.encoder + feature * kWidth + c)];
      }
    }
  }
  Scene scene;
  scene.geometry = geometry_of(kWidth);
  tap::Program program;
  add_encode(program, 0, image, true);
  program.ops.resize(1);
  program.ops[0].op.run = 1;
  scene.programs = {program};
  int64_t active = 0;
  int64_t near = 0;
  // Batch by batch: the table has the features of the last.
  for (int64_t begin = 0; begin < kRows; begin += tap::kEncodedRows) {
    const int64_t count = std::min(tap::kEncodedRows, kRows - begin);
    scene.tokens.assign(static_cast<size_t>(count), {.row = 1});
    std::vector<DictionaryFloats> images = {image};
    scene.programs = {program};
    put_with(scene, images, 0);
    const auto own = std::span(values).subspan(static_cast<size_t>(begin * kWidth),
                                               static_cast<size_t>(count * kWidth));
    const View x = device_.put(HostTensor(own, act_, {count, kWidth}));
    const Matrix rows = read(x);
    ops_.feature_ops()->encode({.x = x, .taps = scene.at(kPost)});
    const Matrix features = read(scene.table.features);
    for (int64_t t = 0; t < count; ++t) {
      const Row h = row_of(rows, t);
      for (int64_t j = 0; j < kFeatures; ++j) {
        double y = 0;
        for (size_t c = 0; c < h.size(); ++c) {
          y += h[c] * exact.at(exact.head.encoder, j * kWidth + static_cast<int64_t>(c));
        }
        const double expected = y > double{kThreshold} ? y : 0;
        active += expected > 0 ? 1 : 0;
        const bool is_near = std::abs(y - double{kThreshold}) < kRounding * double{kThreshold};
        near += is_near ? 1 : 0;
        if (is_near) continue;
        EXPECT_NEAR(features.at(t, j), expected, 1e-3 * expected)
            << "feature " << j << " of row " << begin + t;
      }
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(active, 3 * kRows);
  EXPECT_LT(near * 1000, kRows * kFeatures);
}

}  // namespace
}  // namespace rudder::testing
