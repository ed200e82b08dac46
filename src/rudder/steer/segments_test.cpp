#include "rudder/steer/segments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rudder/steer/test_support.h"

namespace rudder::steer {
namespace {

std::shared_ptr<const Config> config_of_specs(std::vector<OpSpec> specs) {
  auto config = Config::build(shared_test_model(), std::move(specs));
  EXPECT_TRUE(config.has_value()) << config.error().to_string();
  return *config;
}

PromptShape prompt_of(int32_t length) {
  PromptShape shape;
  shape.prompt_len = length;
  return shape;
}

OpSpec selected(OpSpec spec, Selector select) {
  spec.select = std::move(select);
  return spec;
}

// Written from docs/steering.md, token by token, without ranges.
bool is_selected(const Selector& select, const PromptShape& shape, int32_t position) {
  const bool in_prompt = position < shape.prompt_len;
  if (select.phase == Phase::kPrefill && !in_prompt) return false;
  if (select.phase == Phase::kDecode && in_prompt) return false;
  if (select.from_last_prompt && position < shape.prompt_len - 1) return false;
  if (!select.prompt.empty() || !select.generation.empty()) {
    bool inside = false;
    for (const Window& window : in_prompt ? select.prompt : select.generation) {
      const int32_t at = in_prompt ? position : position - shape.prompt_len;
      const int32_t begin = window.begin < 0 ? shape.prompt_len + window.begin : window.begin;
      const int32_t end = window.end < 0 ? shape.prompt_len + window.end : window.end;
      inside = inside || (begin <= at && at < end);
    }
    if (!inside) return false;
  }
  const auto in = [&](const std::vector<int32_t>& list, int32_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  if (!select.token_ids.empty() &&
      (!in_prompt || !in(select.token_ids, shape.tokens[static_cast<size_t>(position)]))) {
    return false;
  }
  if (select.without_special && in_prompt && in(shape.special_at, position)) return false;
  if (select.roles == 0) return true;
  if (!in_prompt) return (select.roles >> static_cast<int>(Role::kAssistant) & 1) != 0;
  for (const RoleSpan& span : shape.roles) {
    if (span.tokens.begin <= position && position < span.tokens.end) {
      return (select.roles >> static_cast<int>(span.role) & 1) != 0;
    }
  }
  return false;
}

Selector random_selector(Random& random) {
  Selector select;
  select.phase = static_cast<Phase>(random.below(3));
  for (int i = random.one_in(2) ? random.below(3) : 0; i > 0; --i) {
    const int32_t begin = random.below(30) - 15;
    select.prompt.push_back({begin, random.one_in(3) ? tap::kNoEnd : random.below(30) - 10});
  }
  for (int i = random.one_in(2) ? random.below(3) : 0; i > 0; --i) {
    const int32_t begin = random.below(12);
    select.generation.push_back({begin, random.one_in(3) ? tap::kNoEnd : begin + random.below(8)});
  }
  if (random.one_in(3)) select.roles = static_cast<uint8_t>(random.below(16));
  select.from_last_prompt = random.one_in(5);
  for (int32_t id = 0; id < 6 && random.one_in(3); ++id) select.token_ids.push_back(id);
  select.without_special = random.one_in(3);
  return select;
}

PromptShape random_shape(Random& random) {
  PromptShape shape = prompt_of(1 + random.below(25));
  shape.has_roles = true;
  for (int32_t at = 0; at < shape.prompt_len;) {
    const int32_t begin = at + random.below(3);
    const int32_t end = std::min(begin + random.below(6), shape.prompt_len);
    if (begin < end) {
      shape.roles.push_back({static_cast<Role>(random.below(kNumRoles)), {begin, end}});
    }
    at = std::max(end, at + 1);
  }
  for (int32_t i = 0; i < shape.prompt_len; ++i) {
    shape.tokens.push_back(random.below(8));
    if (random.one_in(4)) shape.special_at.push_back(i);
  }
  return shape;
}

const tap::TapSegment* segment_at(const tap::SequenceTaps& taps, int32_t position) {
  const tap::TapSegment* found = nullptr;
  for (const tap::TapSegment& segment : taps.segments) {
    if (segment.begin <= position) found = &segment;
  }
  return found;
}

TEST(Segments, SegmentsAreWhatEachTokenWouldGetAlone) {
  Random random(1);
  int steered = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<OpSpec> specs;
    for (int i = 1 + random.below(6); i > 0; --i) {
      const tap::Point point = {random.below(kTestLayers), tap::Site::kResidPost};
      specs.push_back(
          selected(add_spec(point, test_row(random.vector(kTestHidden))), random_selector(random)));
    }
    const auto config = config_of_specs(specs);
    const PromptShape shape = random_shape(random);
    const auto taps = make_taps(*config, shape);
    ASSERT_TRUE(taps.has_value());
    for (size_t i = 1; i < taps->segments.size(); ++i) {
      ASSERT_LT(taps->segments[i - 1].begin, taps->segments[i].begin);
      ASSERT_FALSE(taps->segments[i - 1].content == taps->segments[i].content);
    }
    ASSERT_TRUE(taps->segments.empty() || taps->segments[0].begin == 0);
    for (int32_t position = 0; position < shape.prompt_len + 25; ++position) {
      std::vector<OpSpec> active;
      for (const OpSpec& spec : specs) {
        if (is_selected(spec.select, shape, position)) active.push_back(selected(spec, {}));
      }
      const KeyedProgram alone = config_of_specs(active)->program(1);
      const tap::TapSegment* segment = segment_at(*taps, position);
      ASSERT_EQ(segment == nullptr ? tap::ContentKey{} : segment->content, alone.key)
          << "position " << position << " of a prompt of " << shape.prompt_len;
      ASSERT_EQ(segment == nullptr || segment->program == nullptr, alone.program == nullptr);
      steered += alone.program != nullptr ? 1 : 0;
    }
  }
  EXPECT_GT(steered, 1000);
}

TEST(Segments, ThoughtsHaveProgramsOfTheirOwnWhereSelectorsTellThem) {
  const auto taps_for = [](uint8_t roles, std::optional<ThoughtMarks> marks) {
    Selector select;
    select.roles = roles;
    Random random(3);
    const auto config = config_of_specs({selected(
        add_spec({1, tap::Site::kResidPost}, test_row(random.vector(kTestHidden))), select)});
    PromptShape shape = prompt_of(10);
    shape.has_roles = true;
    shape.thoughts = marks;
    const auto taps = make_taps(*config, shape);
    EXPECT_TRUE(taps.has_value());
    return *taps;
  };
  const auto role = [](Role of) { return static_cast<uint8_t>(1U << static_cast<unsigned>(of)); };
  constexpr ThoughtMarks kMarks = {.begin_token = 5, .end_token = 6, .open = true};

  const tap::SequenceTaps thoughts = taps_for(role(Role::kReasoning), kMarks);
  ASSERT_TRUE(thoughts.thoughts);
  EXPECT_EQ(thoughts.thoughts->begin_token, 5);
  EXPECT_EQ(thoughts.thoughts->end_token, 6);
  EXPECT_TRUE(thoughts.thoughts->open);
  ASSERT_EQ(thoughts.segments.size(), 1u);
  EXPECT_EQ(thoughts.segments[0].program, nullptr);
  ASSERT_EQ(thoughts.thoughts->segments.size(), 2u);
  EXPECT_EQ(thoughts.thoughts->segments[0].program, nullptr);
  EXPECT_EQ(thoughts.thoughts->segments[1].begin, 10);
  EXPECT_NE(thoughts.thoughts->segments[1].program, nullptr);

  const tap::SequenceTaps answer = taps_for(role(Role::kAssistant), kMarks);
  ASSERT_TRUE(answer.thoughts);
  ASSERT_EQ(answer.segments.size(), 2u);
  EXPECT_NE(answer.segments[1].program, nullptr);
  ASSERT_EQ(answer.thoughts->segments.size(), 1u);
  EXPECT_EQ(answer.thoughts->segments[0].program, nullptr);

  // Nothing waits for a token where it makes no difference.
  const auto both = static_cast<uint8_t>(role(Role::kAssistant) | role(Role::kReasoning));
  EXPECT_FALSE(taps_for(both, kMarks).thoughts);
  EXPECT_EQ(taps_for(both, kMarks).segments.size(), 2u);
  EXPECT_FALSE(taps_for(role(Role::kUser), kMarks).thoughts);
  EXPECT_TRUE(taps_for(role(Role::kReasoning), std::nullopt).segments.empty());
}

TEST(Segments, EqualSegmentsShareTheirProgram) {
  Selector ends;
  ends.prompt = {{0, 2}, {-2, tap::kNoEnd}};
  const auto config = config_of_specs(
      {selected(add_spec(kTestPoint, test_row(Random(2).vector(kTestHidden))), ends)});
  const auto taps = make_taps(*config, prompt_of(10));
  ASSERT_EQ(taps->segments.size(), 4U);
  EXPECT_EQ(taps->segments[0].program, taps->segments[2].program);
  EXPECT_EQ(taps->segments[1].program, nullptr);
  EXPECT_TRUE(taps->segments[3].content.none());
  EXPECT_EQ(taps->segments[2].begin, 8);
  EXPECT_EQ(taps->segments[3].begin, 10);
}

TEST(Segments, TiersCostOneAddAPointAndPhase) {
  Random random(3);
  const auto base = random.vector(kTestHidden);
  const auto prefill = random.vector(kTestHidden);
  Selector in_prompt;
  in_prompt.phase = Phase::kPrefill;
  Selector generated;
  generated.phase = Phase::kDecode;
  const auto config =
      config_of_specs({add_spec(kTestPoint, test_row(base), 0.3),
                       selected(add_spec(kTestPoint, test_row(prefill), -7), in_prompt),
                       selected(add_spec(kTestPoint, test_row(base), -0.3), generated)});
  const auto taps = make_taps(*config, prompt_of(5));
  ASSERT_EQ(taps->segments.size(), 2U);
  ASSERT_EQ(taps->segments[0].program->ops.size(), 1U);
  EXPECT_EQ(taps->segments[0].program->ops[0].op.strength, 1.0f);
  for (size_t i = 0; i < kTestHidden; ++i) {
    EXPECT_EQ(taps->segments[0].program->vectors[i],
              static_cast<float>(0.3 * double{base[i]} + -7.0 * double{prefill[i]}));
  }
  // Base and decode cancel: nothing is left to do.
  EXPECT_TRUE(taps->segments[1].content.none());
}

TEST(Segments, NothingIsNothing) {
  for (const auto& specs : std::vector<std::vector<OpSpec>>{
           {},
           {add_spec(kTestPoint, test_row(std::vector<float>(kTestHidden, 0.0f)))},
           {add_spec(kTestPoint, test_row(std::vector<float>(kTestHidden, -0.0f)), 3)},
           {add_spec(kTestPoint, test_row(Random(4).vector(kTestHidden)), 0)}}) {
    const auto taps = make_taps(*config_of_specs(specs), prompt_of(7));
    ASSERT_TRUE(taps.has_value());
    EXPECT_TRUE(taps->segments.empty());
  }
}

TEST(Segments, RolesAreNeverGuessed) {
  Selector user;
  user.roles = 1 << static_cast<int>(Role::kUser);
  const auto config = config_of_specs(
      {selected(add_spec(kTestPoint, test_row(Random(5).vector(kTestHidden))), user)});
  const auto taps = make_taps(*config, prompt_of(7));
  ASSERT_FALSE(taps.has_value());
  EXPECT_EQ(taps.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(taps.error().where, "steering");
}

TEST(Segments, ARampIsConstantOverThePromptAndKeyedByItsLengthAfterIt) {
  OpSpec spec = add_spec(kTestPoint, test_row(Random(6).vector(kTestHidden)), 2);
  OpSpec constant = spec;
  constant.scale = 1;
  spec.schedule = {tap::ScheduleKind::kRamp, 0, 16, 0.5, 1.5};
  const auto config = config_of_specs({spec});
  const auto short_taps = make_taps(*config, prompt_of(5));
  const auto long_taps = make_taps(*config, prompt_of(9));
  ASSERT_EQ(short_taps->segments.size(), 2U);
  EXPECT_TRUE(short_taps->is_scheduled);
  EXPECT_EQ(short_taps->segments[0].content, config_of_specs({constant})->program(1).key);
  EXPECT_EQ(short_taps->segments[0].content, long_taps->segments[0].content);
  EXPECT_FALSE(short_taps->segments[1].content == long_taps->segments[1].content);
  const tap::TapOp& op = short_taps->segments[1].program->ops[0].op;
  EXPECT_EQ(op.schedule, tap::ScheduleKind::kRamp);
  EXPECT_EQ(op.strength, 2.0f);
  EXPECT_EQ(op.end, 16);
  EXPECT_EQ(usual_programs(*config).size(), 1U);
}

TEST(Segments, AWindowOfTheScheduleIsOneOfTheSelector) {
  OpSpec spec = add_spec(kTestPoint, test_row(Random(7).vector(kTestHidden)));
  spec.schedule.kind = tap::ScheduleKind::kWindow;
  spec.schedule.begin = 3;
  spec.schedule.end = 6;
  const auto taps = make_taps(*config_of_specs({spec}), prompt_of(10));
  ASSERT_EQ(taps->segments.size(), 3U);
  EXPECT_EQ(taps->segments[1].begin, 13);
  EXPECT_EQ(taps->segments[2].begin, 16);
  EXPECT_FALSE(taps->is_scheduled);
}

TEST(Segments, AScoreIsTakenOfThePromptAndGatesFromItsLastTokenOn) {
  OpSpec spec = add_spec({2, tap::Site::kResidPost}, test_row(Random(8).vector(kTestHidden)));
  spec.gate.kind = Gate::Kind::kPromptScore;
  spec.gate.vector = test_row(Random(9).vector(kTestHidden));
  spec.gate.point = {1, tap::Site::kResidPost};
  const auto taps = make_taps(*config_of_specs({spec}), prompt_of(6));
  EXPECT_TRUE(taps->needs_whole_prompt);
  ASSERT_EQ(taps->segments.size(), 3U);
  EXPECT_EQ(taps->segments[0].program->ops.size(), 1U);
  EXPECT_EQ(taps->segments[0].program->ops[0].op.kind, tap::OpKind::kScore);
  EXPECT_EQ(taps->segments[1].begin, 5);
  EXPECT_EQ(taps->segments[1].program->ops.size(), 2U);
  EXPECT_EQ(taps->segments[2].begin, 6);
  EXPECT_EQ(taps->segments[2].program->ops[0].op.gate, tap::GateKind::kScoreHard);

  // The next layer's input is tapped in the same op as this layer's output: too early.
  spec.point = {2, tap::Site::kResidPre};
  EXPECT_EQ(make_taps(*config_of_specs({spec}), prompt_of(6))->segments.size(), 2U);
  spec.select.phase = Phase::kPrefill;
  EXPECT_FALSE(Config::build(shared_test_model(), {spec}).has_value());
}

// A latch takes samples up to 2^18 in magnitude: a score is scaled by a power of two so that none
// is larger than the row's norm, and its gate with it. Nothing else about the gate changes.
TEST(Segments, ScoresOfVectorsOfAnyLengthFitALatch) {
  Random random(11);
  const std::vector<float> direction = random.vector(kTestHidden);
  for (const float length : {1e-6f, 1e-3f, 1.0f, 3.0f, 1e4f, 1e5f}) {
    std::vector<float> probe = direction;
    for (float& value : probe) value *= length;
    OpSpec spec = add_spec({2, tap::Site::kResidPost}, test_row(random.vector(kTestHidden)));
    spec.gate.kind = Gate::Kind::kPromptScore;
    spec.gate.vector = test_row(probe);
    spec.gate.point = {1, tap::Site::kResidPost};
    spec.gate.threshold = 0.75 * length;
    spec.gate.sharpness = 2 / length;
    const auto taps = make_taps(*config_of_specs({spec}), prompt_of(6));
    const tap::Program& program = *taps->segments[1].program;
    ASSERT_EQ(program.ops.size(), 2U);
    const tap::TapOp& score = program.ops[0].op;
    const tap::TapOp& gated = program.ops[1].op;
    const float* taken = program.vectors.data() + score.v1;
    double squares = 0;
    for (int32_t i = 0; i < kTestHidden; ++i) squares += double{taken[i]} * taken[i];
    EXPECT_GE(std::sqrt(squares), 0.499) << length;
    EXPECT_LT(std::sqrt(squares), 1.001) << length;
    const float factor = taken[0] / probe[0];
    int exponent = 0;
    EXPECT_EQ(std::frexp(factor, &exponent), 0.5f) << "no power of two: " << factor;
    for (int32_t i = 0; i < kTestHidden; ++i) EXPECT_EQ(taken[i], probe[i] * factor) << i;
    EXPECT_EQ(gated.threshold, static_cast<float>(0.75 * length) * factor) << length;
    EXPECT_EQ(gated.sharpness, static_cast<float>(2 / length) / factor) << length;
  }
}

TEST(Segments, UsualProgramsAreThoseOfBothPhases) {
  Selector generated;
  generated.phase = Phase::kDecode;
  Random random(10);
  const auto config = config_of_specs(
      {add_spec(kTestPoint, test_row(random.vector(kTestHidden))),
       selected(add_spec(kTestPoint, test_row(random.vector(kTestHidden))), generated)});
  const auto programs = usual_programs(*config);
  const auto taps = make_taps(*config, prompt_of(3));
  ASSERT_EQ(programs.size(), 2U);
  EXPECT_EQ(programs[0].program, taps->segments[0].program);
  EXPECT_EQ(programs[1].key, taps->segments[1].content);
}

}  // namespace
}  // namespace rudder::steer
