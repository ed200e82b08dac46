// Which of several clamps of one feature count, and in which order the ops of a point run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "rudder/steer/parse_test_support.h"
#include "rudder/steer/segments.h"
#include "rudder/testing/reference_taps.h"

namespace rudder::steer {
namespace {

std::string clamp(int feature, std::string_view kind, double value, std::string_view more = "") {
  return fmt::format(
      R"({{"op": "feature", "dictionary": "d", "feature": {}, "kind": "{}", "value": {}{}}})",
      feature, kind, value, more);
}

OneName dictionary_of(const DictionaryAsk& ask) {
  OneName names;
  names.set_dictionary(named_set("d", random_dictionary(ask, 3)));
  return names;
}

// Of the server's steering with the request's behind it, as the library joins them.
std::shared_ptr<const Config> config_of_both(std::string_view server, std::string_view request,
                                             const OneName& names, const Model& model) {
  std::vector<OpSpec> specs;
  for (const std::string_view elements : {server, request}) {
    const auto parsed = parse(fmt::format(R"({{"steering": [{}]}})", elements), names, model);
    EXPECT_TRUE(parsed) << elements << parsed.error().to_string();
    std::ranges::copy(parsed->ops, std::back_inserter(specs));
  }
  auto built = Config::build(std::make_shared<const Model>(model), std::move(specs));
  EXPECT_TRUE(built) << built.error().to_string();
  return *built;
}

// What one token of a prompt gets, and a generated one.
std::pair<tap::ContentKey, tap::ContentKey> keys_of(const Config& config) {
  PromptShape shape;
  shape.prompt_len = 4;
  const auto taps = make_taps(config, shape);
  EXPECT_TRUE(taps);
  const auto at = [&](int32_t position) {
    tap::ContentKey key;
    for (const tap::TapSegment& segment : taps->segments) {
      if (segment.begin <= position) key = segment.content;
    }
    return key;
  };
  return {at(1), at(5)};
}

struct Case {
  std::string server;
  std::string request;
  std::string same_as;  // alone
};

void expect_cases(const std::vector<Case>& cases, const OneName& names, const Model& model) {
  for (const Case& one : cases) {
    const auto both = config_of_both(one.server, one.request, names, model);
    const auto alone = config_of_both("", one.same_as, names, model);
    EXPECT_EQ(keys_of(*both), keys_of(*alone)) << one.server << " + " << one.request;
  }
}

std::vector<Case> clamp_cases() {
  const std::string set5 = clamp(1, "set", 5);
  const std::string set8 = clamp(1, "set", 8);
  const std::string add3 = clamp(1, "add", 3);
  const std::string other = clamp(2, "set", 1);
  return {
      {set5, set8, set8},
      {"", set5 + "," + set8, set8},
      {set8 + "," + other, set5, other + "," + set5},
      {add3, clamp(1, "add", 4), clamp(1, "add", 4)},
      {add3, set5, set5},
      {set5, add3, add3},
      {set5, clamp(1, "multiply", 0), clamp(1, "multiply", 0)},
      // What changes nothing counts too: the request turns the server's clamp off.
      {set5, clamp(1, "multiply", 1), ""},
      {add3, clamp(1, "add", 0), ""},
      {"", clamp(1, "add", 0), ""},
      // Bounds that leave a range.
      {clamp(1, "min", 2), clamp(1, "max", 8), clamp(1, "min", 2) + "," + clamp(1, "max", 8)},
      {clamp(1, "min", 9), clamp(1, "max", 8), clamp(1, "max", 8)},
      {clamp(1, "min", 2) + "," + clamp(1, "max", 8), clamp(1, "min", 3),
       clamp(1, "max", 8) + "," + clamp(1, "min", 3)},
      {set5, clamp(1, "max", 8), clamp(1, "max", 8)},
  };
}

TEST(ClampOrder, TheLastClampOfAFeatureCounts) {
  expect_cases(clamp_cases(), dictionary_of({}), small_model());
}

TEST(ClampOrder, TheSameOfWholeEncodes) {
  expect_cases(clamp_cases(), dictionary_of({.activation = features::Activation::kTopK}),
               encoding_model());
}

TEST(ClampOrder, TheSameOfATranscoder) {
  const OneName names = dictionary_of(
      {.read = {3, tap::Site::kMlpIn}, .write = {3, tap::Site::kMlpOut}, .num_writes = 2});
  const auto both = config_of_both(clamp(1, "set", 5), clamp(1, "set", 8), names, small_model());
  const auto& ops = both->program(1).program->ops;
  const auto writes = std::ranges::count_if(
      ops, [](const tap::ProgramOp& op) { return op.point.site == tap::Site::kMlpOut; });
  EXPECT_EQ(writes, 2);  // one for each layer that it writes
}

// The server's steering holds a dictionary that is loaded anew, or lies under another name too.
TEST(ClampOrder, OfADictionaryThatIsLoadedTwiceTheLastClampCounts) {
  for (const Case& one : clamp_cases()) {
    const auto parsed =
        parse(fmt::format(R"({{"steering": [{}]}})", one.server), dictionary_of({}));
    ASSERT_TRUE(parsed);
    std::vector<OpSpec> specs = parsed->ops;
    const auto own = parse(fmt::format(R"({{"steering": [{}]}})", one.request), dictionary_of({}));
    ASSERT_TRUE(own);
    std::ranges::copy(own->ops, std::back_inserter(specs));
    const auto both = Config::build(std::make_shared<const Model>(small_model()), specs);
    ASSERT_TRUE(both);
    const auto alone = config_of_both("", one.same_as, dictionary_of({}), small_model());
    EXPECT_EQ(keys_of(**both), keys_of(*alone)) << one.server << " + " << one.request;
  }
}

// Token by token: a clamp that is not selected there does not count.
TEST(ClampOrder, WhereTheLastOneIsNotSelectedTheOneBeforeCounts) {
  const OneName names = dictionary_of({});
  const auto both =
      config_of_both(clamp(1, "set", 5), clamp(1, "set", 8, R"(, "select": {"phase": "decode"})"),
                     names, small_model());
  const auto five = keys_of(*config_of_both("", clamp(1, "set", 5), names, small_model()));
  const auto eight = keys_of(*config_of_both("", clamp(1, "set", 8), names, small_model()));
  EXPECT_EQ(keys_of(*both), std::pair(five.first, eight.second));
}

// docs/steering.md: group by group, and within a group in the order of the request.
TEST(ClampOrder, OpsOfAPointRunGroupByGroupInTheirOrder) {
  const std::vector<std::string> ops = {
      R"({"op": "patch", "site": "resid_post", "layers": 1, "source": [3, 1, -2, 0.5]})",
      R"({"op": "ablate", "site": "resid_post", "layers": 1, "vector": [1, 2, 0, 0]})",
      R"({"op": "orthogonal", "site": "resid_post", "layers": 1, "vector": [0, 1, 1, 0], "coefficient": 3})",
      R"({"op": "rotate", "site": "resid_post", "layers": 1, "vector": [1, 0, 0, 1], "target": [0, 1, 0, 1], "angle": 40})",
      R"({"op": "add", "site": "resid_post", "layers": 1, "vector": [0.5, -1, 0.25, 2]})",
      R"({"op": "add_norm", "site": "resid_post", "layers": 1, "vector": [0, 0, 3, 1], "scale": 0.5})",
      R"({"op": "add_renorm", "site": "resid_post", "layers": 1, "vector": [1, 1, 1, -1]})",
      R"({"op": "clamp", "site": "resid_post", "layers": 1, "vector": [1, 0, 2, 0], "lo": -0.5, "hi": 0.75})",
      R"({"op": "set", "site": "resid_post", "layers": 1, "vector": [0, 1, 0, 1], "value": 2})"};
  const std::vector<int> group = {0, 1, 1, 1, 2, 2, 2, 3, 3};
  std::mt19937_64 rng(5);
  const auto run = [&](const std::vector<size_t>& order, std::vector<double> row, bool one_by_one) {
    std::string elements;
    testing::ReferenceLatches latches;
    for (const size_t i : order) {
      elements = one_by_one || elements.empty() ? ops[i] : elements + ", " + ops[i];
      if (!one_by_one && i != order.back()) continue;
      const auto config = config_of(fmt::format(R"({{"steering": [{}]}})", elements));
      EXPECT_TRUE(config) << elements << config.error().to_string();
      row = testing::reference_program(*(*config)->program(1).program, {1, tap::Site::kResidPost},
                                       row, 0, latches);
    }
    return row;
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<size_t> order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    std::ranges::shuffle(order, rng);
    std::vector<size_t> sorted = order;
    std::ranges::stable_sort(sorted, {}, [&](size_t i) { return group[i]; });
    const std::vector<double> row = {1, -2, 0.5, 3};
    const auto together = run(order, row, false);
    const auto apart = run(sorted, row, true);
    for (size_t i = 0; i < 4; ++i) ASSERT_NEAR(together[i], apart[i], 1e-5) << round;
  }
}

}  // namespace
}  // namespace rudder::steer
