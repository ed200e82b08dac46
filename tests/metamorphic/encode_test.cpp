// Dictionaries that are encoded whole inside a step: from the text of a request, through parser,
// program and executor, against the rows that the step captured, encoded, edited and decoded by
// features/dictionary.h in fp64.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "rudder/base/json.h"
#include "rudder/steer/config.h"
#include "rudder/steer/features/test_dictionary.h"
#include "rudder/steer/parse.h"

namespace rudder::metamorphic {
namespace {

using features::Activation;
using features::Dictionary;
using tap::FeatureNorm;
using tap::Point;
using tap::Site;
using testing::TinyArch;

constexpr int32_t kNumFeatures = 24;
// Of the rows of the two clamped features: set to 1.5, and doubled where it is active.
constexpr int32_t kSet = 3;
constexpr int32_t kDoubled = 5;

class OneDictionary final : public steer::Names {
 public:
  explicit OneDictionary(const Dictionary& dictionary) : set_(steer::named_set("d", dictionary)) {}
  std::shared_ptr<const steer::Config> find(std::string_view /*name*/) const override {
    return nullptr;
  }
  std::shared_ptr<const features::DictionarySet> find_dictionary(
      std::string_view /*name*/) const override {
    return set_;
  }

 private:
  std::shared_ptr<const features::DictionarySet> set_;
};

std::string clamps(std::string_view mode) {
  return fmt::format(
      R"({{"steering": [
          {{"op": "feature", "dictionary": "d", "feature": {}, "kind": "set", "value": 1.5, "mode": "{}"}},
          {{"op": "feature", "dictionary": "d", "feature": {}, "kind": "multiply", "value": 2,
            "only_if_active": true, "mode": "{}"}}]}})",
      kSet, mode, kDoubled, mode);
}

struct Case {
  Dictionary dictionary;
  bool full = false;
};

const Backend& any_backend(size_t number) {
  return backends()[number % backends().size()];
}

class Encode : public ::testing::TestWithParam<size_t> {
 protected:
  static const Backend& backend() { return any_backend(GetParam()); }
  static step::Capacity capacity() { return with_encodes(kRoomy, TinyArch::kPreNorm); }
  static const tap::Geometry& geometry() {
    static const tap::Geometry geometry = capacity().geometry;
    return geometry;
  }

  // A prompt under the case's clamps, with the rows of these points captured.
  static Ask ask_of(const Case& one, std::vector<tap::CapturePoint> points) {
    auto model = std::make_shared<steer::Model>();
    model->geometry = geometry();
    model->limits = capacity().taps;
    model->hash_secret = {1, 2};
    const auto body = parse_json(clamps(one.full ? "full" : "delta"), "test");
    auto parsed =
        value_of(steer::parse_steering(body->as_object(), *model, OneDictionary(one.dictionary)));
    const auto config = value_of(steer::Config::build(model, parsed.ops));
    const steer::KeyedProgram program = config->program(1);
    auto taps = std::make_shared<tap::SequenceTaps>();
    taps->segments = {{0, program.key, program.program}};
    auto set = std::make_shared<tap::CaptureSet>();
    set->points = std::move(points);
    taps->capture = set;
    taps->captured = {{0, tap::kNoEnd}};
    Ask ask;
    ask.prompt = {5, 9, 100, 42, 7, 11, 64, 2};
    ask.sampling.temperature = 0;
    ask.max_len = 12;
    ask.taps = taps;
    return ask;
  }

  static Outcome run_cases(const std::vector<Ask>& asks) {
    sched::SchedSettings settings;
    settings.max_num_seqs = 16;
    settings.max_num_batched_tokens = 100;
    const auto executor = tiny_executor(backend(), TinyArch::kPreNorm, capacity());
    return run(*executor, settings, asks);
  }
};

// Values that an edit or a rounding could move over a threshold.
bool is_near_a_threshold(const Dictionary& dictionary, std::span<const float> h,
                         std::span<const float> features) {
  constexpr double kNear = 2e-5;
  const features::NormedRow normed = features::normed_row(dictionary.norm, h);
  for (int32_t j = 0; j < dictionary.num_features; ++j) {
    double y = 0;
    for (size_t i = 0; i < h.size(); ++i) {
      y += normed.values[i] * dictionary.encoder_row(j).values()[i];
    }
    if (std::abs(y - dictionary.form(j).gate) < kNear * (1 + std::abs(y))) return true;
  }
  if (dictionary.activation != Activation::kTopK) return false;
  Dictionary more = dictionary;
  ++more.k;
  std::vector<float> other(features.size());
  features::encode(more, h, other);
  float least = INFINITY;
  float next = 0;
  for (size_t j = 0; j < features.size(); ++j) {
    if (features[j] > 0) least = std::min(least, features[j]);
    if (features[j] == 0) next = std::max(next, other[j]);
  }
  return least - next < kNear * (1 + least);
}

// What the clamps make of the features.
std::vector<float> edited(std::vector<float> features) {
  features[kSet] = 1.5f;
  features[kDoubled] *= 2;
  return features;
}

// Of `to` at the write point; h is the row that was read.
std::vector<float> expected_row(const Case& one, std::span<const float> h,
                                std::span<const float> to) {
  std::vector<float> features(static_cast<size_t>(kNumFeatures));
  features::encode(one.dictionary, h, features);
  const std::vector<float> changed = edited(features);
  std::vector<float> row(to.begin(), to.end());
  if (one.full) {
    features::decode(one.dictionary, changed, h, 0, row);
    return row;
  }
  const double scale = features::normed_row(one.dictionary.norm, h).scale;
  for (const int32_t j : {kSet, kDoubled}) {
    const auto at = static_cast<size_t>(j);
    const double change = scale * (double{changed[at]} - features[at]);
    const auto decoder = one.dictionary.decoder_row(j).values();
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = static_cast<float>(row[i] + change * decoder[i]);
    }
  }
  return row;
}

void expect_near(std::span<const float> got, std::span<const float> expected,
                 const std::string& what) {
  float most = 1;
  for (const float value : expected) most = std::max(most, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], 1e-4 * most) << what << ", element " << i;
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const Point points[] = {{0, Site::kResidPre},  {1, Site::kResidPre}, {1, Site::kAttnIn},
                          {1, Site::kAttnOut},   {1, Site::kResidMid}, {1, Site::kMlpIn},
                          {1, Site::kMlpAct},    {2, Site::kMlpOut},   {1, Site::kResidPost},
                          {2, Site::kResidPost}, {2, Site::kFinalNorm}};
  uint64_t seed = 0;
  for (const Point point : points) {
    for (const auto activation :
         {Activation::kRelu, Activation::kJumpRelu, Activation::kTopK, Activation::kGated}) {
      for (const auto norm :
           {FeatureNorm::kNone, FeatureNorm::kConstantNorm, FeatureNorm::kLayerNorm}) {
        for (const bool full : {false, true}) {
          if (!full && activation != Activation::kTopK) continue;  // columns have those
          Case one;
          one.full = full;
          one.dictionary = steer::random_dictionary(
              {.width =
                   tap::Geometry(with_encodes(kRoomy, TinyArch::kPreNorm).geometry).width(point),
               .num_features = kNumFeatures,
               .read = point,
               .write = point,
               .activation = activation,
               .norm = norm,
               .subtracts_bias = seed % 2 == 0},
              ++seed);
          one.dictionary.k = 6;
          cases.push_back(std::move(one));
        }
      }
    }
  }
  return cases;
}

TEST_P(Encode, ARowIsWhatEncodingEditingAndDecodingMakeOfIt) {
  const std::vector<Case> cases = all_cases();
  int checked = 0;
  int skipped = 0;
  for (size_t begin = 0; begin < cases.size(); begin += 12) {
    std::vector<Ask> asks;
    for (size_t i = begin; i < std::min(begin + 12, cases.size()); ++i) {
      const Point point = cases[i].dictionary.read;
      asks.push_back(ask_of(cases[i], {{point, false}, {point, true}}));
    }
    const Outcome outcome = run_cases(asks);
    for (size_t i = 0; i < asks.size(); ++i) {
      const Case& one = cases[begin + i];
      const auto width = static_cast<size_t>(one.dictionary.d_in);
      ASSERT_EQ(outcome.got[i].captured.size(), 11u);
      for (const auto& [position, rows] : outcome.got[i].captured) {
        const auto before = std::span(rows).first(width);
        std::vector<float> features(static_cast<size_t>(kNumFeatures));
        features::encode(one.dictionary, before, features);
        if (is_near_a_threshold(one.dictionary, before, features)) {
          ++skipped;
          continue;
        }
        expect_near(std::span(rows).subspan(width), expected_row(one, before, before),
                    fmt::format("case {} at {} of layer {}, position {}", begin + i,
                                tap::site_name(one.dictionary.read.site), one.dictionary.read.layer,
                                position));
        if (HasFatalFailure()) return;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 15 * skipped);
}

// What it reads goes to what it writes: changes through relays, whole rows carried.
TEST_P(Encode, ATranscoderIsWrittenWhereItWrites) {
  std::vector<Case> cases;
  std::vector<Ask> asks;
  const Point read{2, Site::kMlpIn};  // of the last layer, which drops rows between the two
  const Point write{2, Site::kMlpOut};
  for (const auto norm :
       {FeatureNorm::kNone, FeatureNorm::kConstantNorm, FeatureNorm::kLayerNorm}) {
    for (const bool full : {false, true}) {
      Case& one = cases.emplace_back();
      one.full = full;
      one.dictionary = steer::random_dictionary({.width = geometry().width(read),
                                                 .num_features = kNumFeatures,
                                                 .read = read,
                                                 .write = write,
                                                 .activation = Activation::kTopK,
                                                 .norm = norm},
                                                40 + cases.size());
      one.dictionary.k = 6;
      if (full) one.dictionary.skip.assign(64 * 64, 0.01f);
      asks.push_back(ask_of(one, {{read, false}, {write, false}, {write, true}}));
    }
  }
  const Outcome outcome = run_cases(asks);
  int checked = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    const auto width = static_cast<size_t>(cases[i].dictionary.d_in);
    for (const auto& [position, rows] : outcome.got[i].captured) {
      const auto h = std::span(rows).first(width);
      std::vector<float> features(static_cast<size_t>(kNumFeatures));
      features::encode(cases[i].dictionary, h, features);
      if (is_near_a_threshold(cases[i].dictionary, h, features)) continue;
      expect_near(std::span(rows).subspan(2 * width),
                  expected_row(cases[i], h, std::span(rows).subspan(width, width)),
                  fmt::format("case {}, position {}", i, position));
      if (HasFatalFailure()) return;
      ++checked;
    }
  }
  EXPECT_GT(checked, 50);
}

INSTANTIATE_TEST_SUITE_P(Backends, Encode, ::testing::Range<size_t>(0, backends().size()),
                         [](const auto& info) { return any_backend(info.param).name; });

}  // namespace
}  // namespace rudder::metamorphic
