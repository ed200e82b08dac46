#include "metamorphic/feature_reader_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "rudder/features/dictionary_image.h"
#include "rudder/tap/dictionary_head.h"

namespace rudder::metamorphic {

using features::Activation;
using features::Dictionary;
using features::FeatureAsk;
using features::FeatureRow;
using features::FeatureValue;
using tap::FeatureNorm;
using tensor::DType;

namespace {

// Relative to the terms of the sum that a feature is: of bf16 encoders, whose numbers the fp64 form
// has unrounded.
constexpr double kBf16Error = 1.0 / 256;
constexpr double kF32Error = 1e-5;

}  // namespace

void FeatureReaderTest::start(int64_t dictionary_bytes, DType dtype, int32_t widest) {
  std::unique_ptr<ops::Ops> ops = GetParam().make_reader();
  ASSERT_NE(ops, nullptr);
  act_ = ops->act_dtype();
  dtype_ = dtype;
  auto made = exec::DeviceFeatureReader::make(
      std::move(ops), {.dictionary_bytes = dictionary_bytes, .widest = widest, .dtype = dtype});
  ASSERT_TRUE(made) << made.error().to_string();
  reader_ = std::move(*made);
}

FeatureAsk FeatureReaderTest::top_of(const Shared& dictionary, int32_t top) {
  return {.name = "d", .dictionary = dictionary, .top = top, .features = {}};
}
FeatureAsk FeatureReaderTest::list_of(const Shared& dictionary, std::vector<int32_t> features) {
  return {.name = "d", .dictionary = dictionary, .top = 0, .features = std::move(features)};
}

void FeatureReaderTest::make_rows(int64_t count, int32_t width) {
  width_ = width;
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(count * width));
  for (float& value : rows) value = normal(random_);
  put_rows(std::move(rows));
}

void FeatureReaderTest::put_rows(std::vector<float> rows) {
  rows_ = std::move(rows);
  const size_t item = tensor::dtype_bytes(act_);
  bytes_.resize(rows_.size() * item);
  for (size_t i = 0; i < rows_.size(); ++i) {
    const tensor::BF16 rounded = tensor::to_bf16(rows_[i]);
    rows_[i] = tensor::to_float(rounded);
    const void* const from = act_ == DType::kBF16 ? static_cast<const void*>(&rounded) : &rows_[i];
    std::memcpy(bytes_.data() + i * item, from, item);
  }
}

std::span<const float> FeatureReaderTest::row(size_t r) const {
  const auto width = static_cast<size_t>(width_);
  return std::span(rows_).subspan(r * width, width);
}

FeatureReaderTest::Told FeatureReaderTest::read(std::span<const FeatureAsk> asks) {
  const size_t row_bytes = static_cast<size_t>(width_) * tensor::dtype_bytes(act_);
  std::vector<FeatureRow> rows;
  for (size_t r = 0; r * row_bytes < bytes_.size(); ++r) {
    rows.push_back({std::span(bytes_).subspan(r * row_bytes, row_bytes), &asks[r % asks.size()]});
  }
  Told told;
  const Result<void> done = reader_->read(rows, act_, told);
  EXPECT_TRUE(done) << done.error().to_string();
  EXPECT_EQ(told.size(), rows.size());
  return told;
}

void FeatureReaderTest::check(std::span<const FeatureAsk> asks, const Told& told) {
  for (size_t r = 0; r < told.size() && !HasFailure(); ++r) {
    check_row(asks[r % asks.size()], r, told[r]);
  }
}

void FeatureReaderTest::check_row(const FeatureAsk& ask, size_t r,
                                  const std::vector<FeatureValue>& told) {
  const Dictionary& dictionary = *ask.dictionary;
  const auto count = static_cast<size_t>(dictionary.num_features);
  const features::NormedRow normed = features::normed_row(dictionary.norm, row(r));
  const double relative = dtype_ == DType::kBF16 ? kBf16Error : kF32Error;
  std::vector<double> values(count);
  std::vector<double> errors(count);  // that a value may have
  std::vector<bool> is_near(count);   // it may be active or not
  for (size_t j = 0; j < count; ++j) {
    const auto feature = static_cast<int32_t>(j);
    const std::span<const float> weights = dictionary.encoder_row(feature).values();
    double y = 0;
    double squares = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      y += normed.values[i] * double{weights[i]};
      squares += std::pow(normed.values[i] * double{weights[i]}, 2);
    }
    // Roundings of terms are independent: their sum is seldom several times its deviation.
    const features::FeatureForm form = dictionary.form(feature);
    const double error = 4 * relative * (std::sqrt(squares) + 1e-2);
    values[j] = form.value(y);
    errors[j] = form.scale * error + 1e-5;
    is_near[j] = std::abs(y - form.gate) < error;
  }
  if (dictionary.activation == Activation::kTopK) {
    std::vector<double> sorted = values;
    std::ranges::sort(sorted, std::greater());
    const double least = sorted[static_cast<size_t>(dictionary.k) - 1];
    for (size_t j = 0; j < count; ++j) {
      if (std::abs(values[j] - least) < 2 * errors[j] && values[j] != least) is_near[j] = true;
    }
    if (std::ranges::count(is_near, true) > 0) {
      ++near_;
      return;  // one more or less changes which others are kept
    }
    for (double& value : values) value = value >= least ? value : 0;
  }
  std::vector<bool> is_told(count);
  for (size_t i = 0; i < told.size(); ++i) {
    const auto feature = static_cast<size_t>(told[i].feature);
    ASSERT_LT(feature, count);
    if (ask.top > 0) {
      EXPECT_GT(told[i].value, 0);
      EXPECT_LE(told[i].value, told[i > 0 ? i - 1 : 0].value);
      EXPECT_FALSE(is_told[feature]);
    } else {
      EXPECT_EQ(told[i].feature, ask.features[i]);
    }
    is_told[feature] = true;
    if (is_near[feature]) {
      ++near_;
      continue;
    }
    ++checked_;
    EXPECT_NEAR(told[i].value, values[feature], errors[feature])
        << "feature " << feature << " of row " << r << ", width " << width_;
  }
  if (ask.top == 0) {
    EXPECT_EQ(told.size(), ask.features.size());
    return;
  }
  ASSERT_LE(told.size(), static_cast<size_t>(ask.top));
  const bool is_full = told.size() == static_cast<size_t>(ask.top);
  const double last = is_full ? double{told.back().value} : 0;
  for (size_t j = 0; j < count; ++j) {
    if (is_told[j] || is_near[j]) continue;
    EXPECT_LE(values[j], last + 2 * errors[j]) << "feature " << j << " of row " << r;
  }
}

namespace {

TEST_P(FeatureReaderTest, TellsTheFeaturesOfEveryKindOfDictionary) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    start(int64_t{8} << 20, dtype);
    for (const int32_t width : {8, 29, 256}) {
      for (const Activation activation :
           {Activation::kRelu, Activation::kJumpRelu, Activation::kTopK, Activation::kGated}) {
        for (const FeatureNorm norm :
             {FeatureNorm::kNone, FeatureNorm::kConstantNorm, FeatureNorm::kLayerNorm}) {
          const Shared dictionary = share(steer::random_dictionary({.width = width,
                                                                    .num_features = 300,
                                                                    .activation = activation,
                                                                    .norm = norm,
                                                                    .subtracts_bias = true},
                                                                   7));
          make_rows(150, width);
          // Together in a batch, and lists alone.
          const std::vector<FeatureAsk> mixed = {top_of(dictionary, 8), list_of(dictionary, {7, 2}),
                                                 top_of(dictionary, 1024),
                                                 list_of(dictionary, {299, 2, 2, 0})};
          check(mixed, read(mixed));
          const std::vector<FeatureAsk> lists = {list_of(dictionary, {7, 2}),
                                                 list_of(dictionary, {299, 2, 2, 0})};
          check(lists, read(lists));
          if (HasFailure()) return;
        }
      }
    }
    EXPECT_EQ(reader_->stats().batches, 3 * 4 * 3 * 2 * 3u);  // of 64, 64 and 22 rows
    EXPECT_EQ(reader_->stats().rows, 3 * 4 * 3 * 2 * 150u);
  }
  EXPECT_GT(checked_, 100000);
  EXPECT_LT(near_ * 20, checked_);
}

// Rows that some features make, as dictionaries are trained to find: values are what the unrounded
// encoder gives in double precision to a thousandth, but for those that a rounding of the encoder
// may move over their threshold.
TEST_P(FeatureReaderTest, ARoundedEncoderKeepsValuesToAThousandth) {
  constexpr int32_t kWidth = 512;
  constexpr double kThreshold = 6;
  start(int64_t{8} << 20, DType::kBF16);
  Dictionary made = steer::random_dictionary(
      {.width = kWidth, .num_features = 500, .activation = Activation::kJumpRelu}, 3);
  std::ranges::fill(made.threshold, static_cast<float>(kThreshold));
  std::ranges::fill(made.encoder_bias, 0.0f);
  const Shared dictionary = share(std::move(made));
  make_rows(64, kWidth);
  std::vector<float> planted(rows_.size());
  for (size_t r = 0; r < 64; ++r) {
    for (size_t i = 0; i < kWidth; ++i) {
      float value = 0.1f * row(r)[i];
      for (size_t n = 0; n < 4; ++n) {
        const auto feature = static_cast<int32_t>((r * 37 + n * 113) % 500);
        value += static_cast<float>(10 + (r + 5 * n) % 20) *
                 dictionary->encoder_row(feature).values()[i];
      }
      planted[r * kWidth + i] = value;
    }
  }
  put_rows(planted);
  const std::vector<FeatureAsk> asks = {top_of(dictionary, 16)};
  const Told told = read(asks);
  int64_t active = 0;
  int64_t near = 0;
  for (size_t r = 0; r < 64; ++r) {
    std::vector<float> exact(500);
    features::encode(*dictionary, row(r), exact);
    std::vector<float> got(500);
    for (const FeatureValue& one : told[r]) got[static_cast<size_t>(one.feature)] = one.value;
    for (size_t j = 0; j < 500; ++j) {
      const double most = std::max(double{got[j]}, double{exact[j]});
      if (most == 0) continue;
      ++active;
      if (most < kThreshold * (1 + kBf16Error)) {
        ++near;
      } else {
        EXPECT_NEAR(got[j], exact[j], 1e-3 * exact[j]) << "feature " << j << " of row " << r;
      }
    }
  }
  EXPECT_GT(active, 3 * 64);
  EXPECT_LT(near * 50, active);
}

// More than one batch holds, though it would hold the rows.
TEST_P(FeatureReaderTest, LongListsAreReadInSeveralBatches) {
  start(int64_t{8} << 20, DType::kF32);
  const Shared dictionary = share(steer::random_dictionary({.width = 16, .num_features = 6000}, 5));
  make_rows(12, 16);
  std::vector<FeatureAsk> asks;
  for (int32_t i = 0; i < 6; ++i) {
    std::vector<int32_t> features(1000);
    std::iota(features.begin(), features.end(), 1000 * i);
    std::ranges::reverse(features);
    asks.push_back(list_of(dictionary, std::move(features)));
  }
  check(asks, read(asks));
  EXPECT_EQ(reader_->stats().batches, 3u);  // four lists each
  EXPECT_GT(checked_, 11000);
}

TEST_P(FeatureReaderTest, WhoWasAskedForLongestAgoMakesRoom) {
  std::vector<Shared> all;
  for (uint64_t i = 0; i < 3; ++i) {
    all.push_back(share(steer::random_dictionary({.width = 64, .num_features = 256}, i)));
  }
  const int64_t bytes = 4 * (features::encoder_image_floats(*all[0], DType::kF32) +
                             tap::kEncodedRows * tap::feature_row_floats(256));
  start(2 * bytes, DType::kF32);
  const auto ask = [&](size_t i) {
    make_rows(3, 64);
    const std::vector<FeatureAsk> asks = {top_of(all[i], 5)};
    check(asks, read(asks));
  };
  for (const size_t i : {0, 1, 0, 2, 0, 1}) ask(i);
  EXPECT_EQ(reader_->stats().loads, 4u);
  EXPECT_EQ(reader_->stats().evictions, 2u);
  EXPECT_EQ(reader_->stats().held_bytes, 2 * bytes);
  // Who is gone makes room first, and is no eviction.
  all[1].reset();
  ask(2);
  EXPECT_EQ(reader_->stats().evictions, 2u);
  ask(0);
  EXPECT_EQ(reader_->stats().loads, 5u);
}

TEST_P(FeatureReaderTest, WhatDoesNotFitIsRefusedInBytes) {
  const Shared dictionary = share(steer::random_dictionary({.width = 64, .num_features = 256}, 1));
  const int64_t bytes = 4 * (features::encoder_image_floats(*dictionary, DType::kBF16) +
                             tap::kEncodedRows * tap::feature_row_floats(256));
  start(bytes, DType::kBF16);
  EXPECT_TRUE(reader_->check(*dictionary));
  make_rows(2, 64);
  const std::vector<FeatureAsk> asks = {top_of(dictionary, 5)};
  check(asks, read(asks));
  start(bytes - 64, DType::kBF16);
  const Result<void> refused = reader_->check(*dictionary);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find(std::to_string(bytes)), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace rudder::metamorphic
