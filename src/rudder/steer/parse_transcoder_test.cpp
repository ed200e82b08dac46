// Clamps of features that are read at one point and written at others: transcoders, of one layer
// and of several.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/segments.h"
#include "rudder/testing/reference_taps.h"

namespace rudder::steer {
namespace {

constexpr tap::Point kReadPoint = {0, tap::Site::kMlpIn};
constexpr tap::Point kWritePoint = {0, tap::Site::kMlpOut};

OneName transcoder(DictionaryAsk ask, uint64_t seed = 5) {
  ask.read = kReadPoint;
  ask.write = kWritePoint;
  OneName names;
  names.set_dictionary(named_set("d", random_dictionary(ask, seed)));
  return names;
}

std::string clamp_of(int32_t feature, std::string_view kind, double value,
                     std::string_view more = "") {
  return fmt::format(
      R"({{"op": "feature", "dictionary": "d", "feature": {}, "kind": "{}", "value": {}{}}})",
      feature, kind, value, more);
}

// As what decoding the edited features gives beyond what decoding the features gives.
TEST(ParseTranscoder, ClampsMoveWhatIsWrittenByTheDifferenceOfTwoDecodings) {
  Random random(23);
  int checked = 0;
  for (int round = 0; round < 600; ++round) {
    const auto activation = static_cast<features::Activation>(std::array{0, 1, 3}[round % 3]);
    const auto norm = static_cast<tap::FeatureNorm>(round / 3 % 3);
    const int32_t writes = 1 + random.below(2);
    const OneName names = transcoder({.num_writes = writes, .activation = activation, .norm = norm},
                                     60 + static_cast<uint64_t>(round) % 7);
    const features::Dictionary& dictionary = *names.find_dictionary("d")->layers[0];
    const std::vector<float> x = random.vector(4);
    std::vector<float> features(6);
    encode(dictionary, x, features);
    std::vector<float> edited = features;
    std::string elements;
    for (int32_t j = random.below(3); j < 6; j += 1 + random.below(3)) {
      const double value = 0.25 * (1 + random.below(12));
      const bool sets = random.one_in(2);
      float& f = edited[static_cast<size_t>(j)];
      f = sets ? static_cast<float>(value) : f * static_cast<float>(value);
      elements += elements.empty() ? "" : ", ";
      elements += clamp_of(j, sets ? "set" : "multiply", value);
    }
    const auto config = config_of(fmt::format(R"({{"steering": [{}]}})", elements), names);
    ASSERT_TRUE(config) << elements << config.error().to_string();
    const auto program = (*config)->program(1).program;
    if (program == nullptr) continue;
    testing::ReferenceLatches latches;
    testing::ReferenceRelays relays = {};
    const auto run = [&](tap::Point point, std::vector<double> h) {
      return testing::reference_program(*program, point, std::move(h), 0, latches, &relays);
    };
    const std::vector<double> read(x.begin(), x.end());
    EXPECT_EQ(run(kReadPoint, read), read);
    for (int32_t w = 0; w < writes; ++w) {
      std::vector<float> before(4);
      std::vector<float> after(4);
      decode(dictionary, features, x, w, before);
      decode(dictionary, edited, x, w, after);
      const auto got = run(dictionary.write_point(w), {1, -2, 3, 0.5});
      const std::array<double, 4> row = {1, -2, 3, 0.5};
      for (size_t i = 0; i < 4; ++i) {
        ASSERT_NEAR(got[i] - row[i], double{after[i]} - before[i], 1e-4) << round << elements;
      }
    }
    ++checked;
  }
  EXPECT_GT(checked, 500);
}

// A gate and a schedule are those of the writes: what they read is no matter of where it is read.
TEST(ParseTranscoder, GatesAndSchedulesAreOfTheWrites) {
  const auto config = config_of(
      fmt::format(R"({{"steering": {}}})",
                  clamp_of(1, "set", 2,
                           R"(, "gate": {"probe": {"vector": [1, 0, 0, 0], "threshold": 0.5},
                               "schedule": {"kind": "ramp", "begin": 0, "end": 4,
                                            "from": 0, "to": 1}})")),
      transcoder({}));
  ASSERT_TRUE(config) << config.error().to_string();
  std::map<int32_t, int> gated;
  for (uint64_t active = 1; active < 16; ++active) {
    const auto program = (*config)->program(active).program;
    if (program == nullptr) continue;
    for (const tap::ProgramOp& op : program->ops) {
      const bool reads = op.op.v1 == tap::kNoVector;
      EXPECT_EQ(op.point, reads ? kReadPoint : kWritePoint);
      EXPECT_EQ(op.op.gate, reads ? tap::GateKind::kNone : tap::GateKind::kHard);
      EXPECT_EQ(op.op.v2 == tap::kNoVector, !reads);
      EXPECT_TRUE(!reads || op.op.schedule == tap::ScheduleKind::kConstant);
      ++gated[op.point.index()];
    }
  }
  EXPECT_EQ(gated.size(), 2u);
}

TEST(ParseTranscoder, AClampThatChangesNothingIsNoSteering) {
  for (const auto& [kind, value] : {std::pair("multiply", 1.0), std::pair("add", 0.0)}) {
    const auto config =
        config_of(fmt::format(R"({{"steering": {}}})",
                              clamp_of(1, kind, value, R"(, "only_if_active": true)")),
                  transcoder({}));
    ASSERT_TRUE(config) << config.error().to_string();
    EXPECT_EQ((*config)->program(1).program, nullptr) << kind;
  }
}

TEST(ParseTranscoder, RelaysAreBounded) {
  const auto clamps = [](int32_t count) {
    std::string elements;
    for (int32_t j = 0; j < count; ++j) {
      elements += (j == 0 ? "" : ", ") + clamp_of(j % 70, "set", 2);
    }
    return fmt::format(R"({{"steering": [{}]}})", elements);
  };
  const OneName names = transcoder({.num_features = 70});
  EXPECT_TRUE(config_of(clamps(tap::kNumRelays), names));
  const auto refused = config_of(clamps(tap::kNumRelays + 1), names);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().where, fmt::format("steering[{}]", tap::kNumRelays));
  // The same clamp at other tokens needs none of its own.
  std::string again = clamps(tap::kNumRelays);
  again.resize(again.size() - 2);
  again += ", " + clamp_of(3, "set", 2, R"(, "select": {"phase": "decode"})") + "]}";
  EXPECT_TRUE(config_of(again, names));
}

TEST(ParseTranscoder, WhatIsReadBehindItsWriteIsRefused) {
  DictionaryAsk ask;
  ask.read = kWritePoint;
  ask.write = kReadPoint;
  OneName names;
  names.set_dictionary(named_set("d", random_dictionary(ask, 5)));
  const auto refused =
      config_of(fmt::format(R"({{"steering": {}}})", clamp_of(1, "set", 2)), names);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().where, "steering.kind");
}

}  // namespace
}  // namespace rudder::steer
