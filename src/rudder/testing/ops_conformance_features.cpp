// Features that a reader tells of rows: against their formulas in double precision, and against
// those of whole encodes, to the bit.
#include "rudder/testing/ops_conformance_features.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace rudder::testing {
namespace {

using ops::TopFeature;
using tensor::DType;
using tensor::View;

}  // namespace

OpsFeatures::Asked OpsFeatures::asked_of(const Image& image, std::vector<int32_t> listed,
                                         int32_t top) {
  const std::vector<float> floats = laid_out(image);
  Asked asked{.image = device_.put_as(std::span(floats), DType::kF32, {std::ssize(floats)}),
              .head = {},
              .listed = std::move(listed),
              .top = top};
  std::array<float, tap::kDictionaryHeadFloats> words = {};
  std::copy_n(floats.begin(), words.size(), words.begin());
  asked.head = std::bit_cast<tap::DictionaryHead>(words);
  return asked;
}
std::vector<int32_t> OpsFeatures::some_features(const Image& image, int64_t count) {
  std::vector<int32_t> some;
  some.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    some.push_back(static_cast<int32_t>(between(0, image.head.num_features - 1)));
  }
  return some;
}

OpsFeatures::Told OpsFeatures::read_rows(const Asked& asked, const View& x) {
  const int64_t rows = x.shape[0];
  const auto num_listed = std::ssize(asked.listed);
  ops::ReadFeaturesArgs args{.x = x,
                             .image = asked.image,
                             .head = asked.head,
                             .listed = {},
                             .values = {},
                             .top = {},
                             .scratch = {}};
  if (num_listed > 0) {
    args.listed = device_.put(asked.listed);
    args.values = poisoned(DType::kF32, {rows, num_listed});
  }
  if (asked.top > 0) args.top = poisoned(DType::kI32, {rows, asked.top, 2});
  if (args.needs_all()) {
    args.scratch = poisoned(DType::kF32, {rows, tap::feature_row_floats(asked.head.num_features)});
  }
  ops_.feature_ops()->read_features(args);
  Told told;
  if (num_listed > 0) told.values = device_.values<float>(args.values);
  if (asked.top > 0) told.top = device_.values<TopFeature>(args.top);
  return told;
}

void OpsFeatures::check_told(const Asked& asked, const Told& told, const std::vector<double>& exact,
                             size_t r, const std::string& what) {
  const double tolerance = 3e-5 * (1 + *std::max_element(exact.begin(), exact.end()));
  for (size_t i = 0; i < asked.listed.size(); ++i) {
    EXPECT_NEAR(told.values[r * asked.listed.size() + i],
                exact[static_cast<size_t>(asked.listed[i])], tolerance)
        << what << ", feature " << asked.listed[i];
  }
  const auto most = static_cast<size_t>(asked.top);
  std::vector<double> sorted = exact;
  std::ranges::sort(sorted, std::greater());
  std::vector<bool> is_told(exact.size());
  for (size_t i = 0; i < most; ++i) {
    const TopFeature& one = told.top[r * most + i];
    const double expected = i < sorted.size() ? sorted[i] : 0;
    const std::string where = what + ", place " + std::to_string(i);
    if (expected == 0) {
      EXPECT_EQ(one.feature, ops::kNoFeature) << where;
      continue;
    }
    ASSERT_TRUE(one.feature >= 0 && one.feature < std::ssize(exact)) << where;
    const auto feature = static_cast<size_t>(one.feature);
    EXPECT_FALSE(is_told[feature]) << where;
    is_told[feature] = true;
    EXPECT_NEAR(one.value, expected, tolerance) << where;
    EXPECT_NEAR(one.value, exact[feature], tolerance) << where;
    EXPECT_LE(one.value, told.top[r * most + (i > 0 ? i - 1 : 0)].value) << where;
  }
}

void OpsFeatures::check_image(const Image& image, int64_t rows, int32_t num_listed, int32_t top,
                              int& checked) {
  const Asked asked = asked_of(image, some_features(image, num_listed), top);
  const View x = random({rows, image.head.d_in});
  const Told told = read_rows(asked, x);
  const Matrix given = read(x);
  for (int64_t r = 0; r < rows; ++r) {
    bool is_sure = true;
    const std::vector<double> exact = features_of(image, row_of(given, r), is_sure);
    if (!is_sure) continue;
    ++checked;
    check_told(asked, told, exact, static_cast<size_t>(r),
               "row " + std::to_string(r) + " of " + std::to_string(image.head.num_features) +
                   " features, width " + std::to_string(image.head.d_in));
    if (HasFailure()) return;
  }
}

namespace {

TEST_P(OpsFeatures, AreThoseOfTheFormulas) {
  constexpr int32_t kWidths[] = {8, 64, 17, 136, 1, 256, 100, 320};
  constexpr int32_t kCounts[] = {31, 64, 1, 500, 7, 1000, 200, 130};
  constexpr int64_t kRows[] = {1, 40, 16, 64, 7};
  constexpr int32_t kTops[] = {0, 8, 1, 1024, 0, 100, 33};
  constexpr int32_t kListed[] = {5, 0, 1, 90, 300};
  int checked = 0;
  for (int round = 0; round < 35; ++round) {
    const int32_t width = kWidths[round % 8];
    const int32_t num_features = kCounts[between(0, 7)];
    const auto k = static_cast<int32_t>(
        between(0, 2) > 0 ? 0 : between(1, std::min<int64_t>(num_features + 1, 128)));
    Image image = random_image(width, width, num_features, k);
    if (between(0, 1) == 0) round_rows(image);
    const int32_t top = kTops[round % 7];
    const int32_t listed = kListed[round % 5];
    check_image(image, kRows[between(0, 4)], top + listed == 0 ? 3 : listed, top, checked);
    if (HasFailure()) return;
  }
  EXPECT_GT(checked, 300);
}

// Of the sizes that are published.
TEST_P(OpsFeatures, OfLargeDictionaries) {
  if (!GetParam().takes_large_shapes) GTEST_SKIP() << "minutes on this backend";
  int checked = 0;
  for (const auto& [width, num_features, k] :
       {std::array{2304, 16384, 0}, std::array{2304, 16384, 64}, std::array{1024, 65536, 128}}) {
    for (const bool is_bf16 : {false, true}) {
      Image image = random_image(width, width, num_features, k);
      if (is_bf16) round_rows(image);
      check_image(image, 64, 0, 8, checked);
      check_image(image, 9, 40, 0, checked);
      if (HasFailure()) return;
    }
  }
  EXPECT_GT(checked, 100);
}

// Of equal values those of the lower numbers come first, and are kept.
TEST_P(OpsFeatures, EqualValuesAreToldInOrder) {
  constexpr int32_t kWidth = 16;
  for (const int32_t num_features : {40, 2000, 5003}) {
    for (const int32_t k : {0, 3, 17}) {
      Image image = random_image(kWidth, kWidth, num_features, k);
      image.head.norm = tap::FeatureNorm::kNone;
      const auto fill = [&](int32_t begin, int64_t count, float value) {
        std::fill_n(image.floats.begin() + begin, count, value);
      };
      fill(image.head.encoder, int64_t{num_features} * kWidth, 0);
      fill(image.head.bias, num_features, 1);
      fill(image.head.scale, num_features, 1);
      fill(image.head.gate, num_features, -1e30f);
      image.floats[static_cast<size_t>(image.head.bias + num_features - 1)] = 2;
      const Asked asked = asked_of(image, {num_features - 1, 0, 1, 2, 30}, 12);
      const Told told = read_rows(asked, random({2, kWidth}));
      const int32_t kept = k > 0 ? std::min(k, 12) : 12;
      for (size_t r = 0; r < 2; ++r) {
        for (int32_t i = 0; i < 12; ++i) {
          const TopFeature& one = told.top[r * 12 + static_cast<size_t>(i)];
          const int32_t expected = i == 0 ? num_features - 1 : i < kept ? i - 1 : ops::kNoFeature;
          EXPECT_EQ(one.feature, expected) << num_features << " features, k " << k << ", " << i;
        }
        const bool keeps_all = k == 0;
        const std::vector<float> values(told.values.begin() + static_cast<int64_t>(r * 5),
                                        told.values.begin() + static_cast<int64_t>(r * 5 + 5));
        const float third = keeps_all || k > 3 ? 1.0f : 0.0f;
        EXPECT_EQ(values, (std::vector<float>{2, 1, 1, third, keeps_all ? 1.0f : 0.0f}));
      }
    }
  }
}

// The same numbers, to the bit, in any company, by a list and among all, and in a step's encode.
TEST_P(OpsFeatures, AreThoseOfAWholeEncode) {
  for (const int32_t width : {264, 33}) {
    for (const bool is_bf16 : {false, true}) {
      constexpr int64_t kRows = 64;
      Image image = random_image(width, width, 700, 0);
      if (is_bf16) round_rows(image);
      std::vector<Image> images = {image};
      Scene scene;
      scene.geometry = geometry_of(width);
      tap::Program program;
      add_encode(program, 0, image, true);
      scene.programs = {std::move(program)};
      scene.tokens.assign(kRows, {.row = 1});
      put_with(scene, images, 0);
      const View x = random({kRows, width});
      ops_.feature_ops()->encode({.x = copy(x), .taps = scene.at(kPost)});
      const std::vector<float> of_step = device_.values<float>(scene.table.features);
      const auto stride = static_cast<size_t>(scene.table.features.shape[1]);
      const Told together = read_rows(asked_of(image, some_features(image, 21), 30), x);
      const Asked listed = asked_of(image, some_features(image, 21), 0);
      const Told alone = read_rows(listed, x);
      const Told one = read_rows(listed, x.rows(13, 1));
      int64_t active = 0;
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t i = 0; i < listed.listed.size(); ++i) {
          const size_t at = r * listed.listed.size() + i;
          EXPECT_EQ(alone.values[at], of_step[r * stride + static_cast<size_t>(listed.listed[i])]);
          if (r == 13) {
            EXPECT_EQ(one.values[i], alone.values[at]);
          }
        }
        for (size_t i = 0; i < 30; ++i) {
          const TopFeature& told = together.top[r * 30 + i];
          if (told.feature == ops::kNoFeature) continue;
          ++active;
          EXPECT_EQ(told.value, of_step[r * stride + static_cast<size_t>(told.feature)]);
        }
      }
      EXPECT_GT(active, 20 * kRows);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace rudder::testing
