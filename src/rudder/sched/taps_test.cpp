// Steering and capture as the scheduler carries them out: which blocks are shared, which rows a
// step uses, what is captured and how much at once.
#include <gtest/gtest.h>

#include <memory>

#include "rudder/testing/fake_taps.h"
#include "rudder/testing/sched_loop.h"

namespace rudder::sched {
namespace {

using testing::FakeProgramKind;
using testing::SchedLoop;
using testing::test_prompt;
using testing::test_sequence;

constexpr int32_t kPrompt = 64;   // four blocks
constexpr int32_t kRecord = 128;  // elements of a token's record

testing::FakeOptions tapped_fake() {
  testing::FakeOptions options;
  options.capacity.geometry = {.num_layers = 2,
                               .hidden = 128,
                               .mlp_width = {256, 256},
                               .heads = {{2, 64}, {2, 64}},
                               .sites = {tap::kDenseSites, tap::kDenseSites},
                               .dtype = tensor::DType::kBF16};
  options.capacity.taps = {.num_rows = 4,
                           .num_ops = 8,
                           .num_floats = 64,
                           .num_capture_sets = 1,
                           .capture_elements = 16 * kRecord};
  return options;
}

SchedSettings tapped_settings() {
  SchedSettings settings;
  settings.model_identity = "model";
  return settings;
}

// Row i of the table has program i.
class TapsTest : public ::testing::Test {
 protected:
  explicit TapsTest(const testing::FakeOptions& options = tapped_fake())
      : loop_(options, tapped_settings()) {
    for (int32_t row = 1; row < 4; ++row) {
      const auto kind = row == 3 ? FakeProgramKind::kScheduled : FakeProgramKind::kPlain;
      programs_[row] = testing::fake_program(static_cast<uint64_t>(row), kind);
      loop_.edits().taps.push_back({.tap_row = row,
                                    .first_op = row,
                                    .first_float = row * tap::kVectorAlign,
                                    .program = programs_[row]});
    }
    set_->points = {{.point = {1, tap::Site::kResidPost}}};
    loop_.edits().captures.push_back({.capture_set = 0, .set = set_});
  }

  struct Segment {
    int32_t begin;
    int32_t row;
  };
  NewSequence steered(uint64_t id, int32_t num_output, const std::vector<Segment>& segments,
                      int32_t prompt_len = kPrompt) {
    NewSequence sequence = test_sequence(id, test_prompt(prompt_len, 1), num_output);
    auto taps = std::make_shared<tap::SequenceTaps>();
    for (const auto& [begin, row] : segments) {
      taps->segments.push_back({begin, {static_cast<uint64_t>(row), 0}, programs_[row]});
      sequence.tap_lease.rows.push_back(row);
      taps->is_scheduled = taps->is_scheduled || row == 3;
    }
    sequence.taps = taps;
    return sequence;
  }
  NewSequence capturing(uint64_t id, int32_t num_output,
                        const std::vector<tap::PositionRange>& ranges,
                        int32_t prompt_len = kPrompt) {
    NewSequence sequence = test_sequence(id, test_prompt(prompt_len, 1), num_output);
    auto taps = std::make_shared<tap::SequenceTaps>();
    taps->capture = set_;
    taps->captured = ranges;
    sequence.taps = taps;
    sequence.tap_lease.capture_set = 0;
    return sequence;
  }
  int32_t cached(NewSequence sequence) {
    const uint64_t id = sequence.id.value;
    loop_.add(std::move(sequence));
    EXPECT_EQ(loop_.run(), "");
    return loop_.record(id).cached_tokens;
  }

  SchedLoop loop_;
  std::shared_ptr<const tap::Program> programs_[4];
  std::shared_ptr<tap::CaptureSet> set_ = std::make_shared<tap::CaptureSet>();
};

// tap.T5.
TEST_F(TapsTest, BlocksBeforeTheSteeringAreShared) {
  EXPECT_EQ(cached(test_sequence(1, test_prompt(kPrompt, 1), 40)), 0);
  // The whole prompt but the block of its last token, as for one that is not steered.
  EXPECT_EQ(cached(test_sequence(2, test_prompt(kPrompt, 1), 40)), 48);
  EXPECT_EQ(cached(steered(3, 40, {{0, 0}, {kPrompt, 1}})), 48);      // decode alone
  EXPECT_EQ(cached(steered(4, 40, {{0, 0}, {kPrompt - 1, 1}})), 48);  // from the last token on
  EXPECT_EQ(cached(steered(5, 40, {{0, 0}, {40, 1}, {41, 0}})), 32);  // one token
  EXPECT_EQ(cached(steered(6, 40, {{0, 1}})), 0);
  EXPECT_EQ(cached(steered(7, 40, {{0, 2}})), 0);
  EXPECT_EQ(cached(steered(8, 40, {{0, 1}})), 48);  // that of 6
  EXPECT_EQ(cached(steered(9, 40, {{0, 1}, {20, 2}})), 16);
  EXPECT_EQ(cached(test_sequence(10, test_prompt(kPrompt, 1), 40)), 48);
}

// tap.T6.
TEST_F(TapsTest, ReuseStopsBeforeTheFirstCapture) {
  EXPECT_EQ(cached(test_sequence(1, test_prompt(kPrompt, 1), 4)), 0);
  EXPECT_EQ(cached(capturing(2, 4, {{kPrompt - 1, kPrompt}})), 48);
  EXPECT_EQ(cached(capturing(3, 4, {{kPrompt, tap::kNoEnd}})), 48);
  EXPECT_EQ(cached(capturing(4, 4, {{32, 33}})), 32);
  EXPECT_EQ(cached(capturing(5, 4, {{31, 33}})), 16);
  EXPECT_EQ(cached(capturing(6, 4, {{0, tap::kNoEnd}})), 0);
  EXPECT_EQ(std::ssize(loop_.record(6).captured), kPrompt + 4 - 1);
  // What it computed is found, though it was captured.
  EXPECT_EQ(cached(test_sequence(7, test_prompt(kPrompt, 1), 4)), 48);
}

TEST_F(TapsTest, ALatchReusesNothing) {
  EXPECT_EQ(cached(test_sequence(1, test_prompt(kPrompt, 1), 4)), 0);
  NewSequence sequence = steered(2, 8, {{0, 1}, {kPrompt, 2}});
  auto taps = std::make_shared<tap::SequenceTaps>(*sequence.taps);
  taps->needs_whole_prompt = true;
  sequence.taps = taps;
  EXPECT_EQ(cached(sequence), 0);
}

// tap.T11: the prompt's last token is computed, and generated tokens run one a step, also when the
// sequence is computed again.
TEST_F(TapsTest, ControlledTokensRunOneByOne) {
  EXPECT_EQ(cached(test_sequence(1, test_prompt(kPrompt, 1), 40)), 0);
  NewSequence sequence = steered(2, 8, {{0, 0}, {kPrompt - 1, 1}});
  auto taps = std::make_shared<tap::SequenceTaps>(*sequence.taps);
  taps->is_controlled = true;
  const TapWork work(taps, sequence.tap_lease, kPrompt, 0);
  EXPECT_EQ(work.max_reused(), kPrompt - 1);
  EXPECT_EQ(work.fit(48, 40, 0), kPrompt - 48);
  EXPECT_EQ(work.fit(kPrompt, 7, 0), 1);
  EXPECT_EQ(work.fit(kPrompt + 3, 1, 0), 1);
  EXPECT_EQ(work.uniform_len(kPrompt, 4), 4);  // a step may be repeated
  EXPECT_FALSE(work.takes_drafts());
  sequence.taps = taps;
  EXPECT_EQ(cached(sequence), 48);
}

TEST_F(TapsTest, AStepNamesTheRowsOfItsTokens) {
  loop_.add(steered(1, 4, {{0, 0}, {10, 1}, {20, 2}, {30, 0}, {50, 0}, {kPrompt, 1}}));
  ASSERT_EQ(loop_.run(), "");
  const step::SeqWork& prompt = loop_.plans()[0]->seqs[0];
  EXPECT_EQ(prompt.tap_row, 0);
  ASSERT_EQ(prompt.tap_spans.size(), 3u);  // none at 50, where nothing changes
  EXPECT_EQ(prompt.tap_spans[1].q_begin, 20);
  EXPECT_EQ(prompt.tap_spans[1].tap_row, 2);
  EXPECT_EQ(prompt.tap_spans[2].tap_row, 0);
  EXPECT_EQ(loop_.plans()[0]->slots[0].prompt_len, kPrompt);
  EXPECT_EQ(loop_.plans()[1]->seqs[0].tap_row, 1);
  EXPECT_TRUE(loop_.plans()[1]->seqs[0].tap_spans.empty());
}

TEST_F(TapsTest, EditsAloneMakeAStep) {
  ASSERT_TRUE(loop_.launch());
  EXPECT_TRUE(loop_.plans()[0]->seqs.empty());
  EXPECT_EQ(loop_.plans()[0]->tap_edits.size(), 3u);
  EXPECT_TRUE(loop_.edits().empty());
  EXPECT_FALSE(loop_.launch());
  EXPECT_EQ(loop_.run(), "");
  EXPECT_EQ(cached(steered(1, 4, {{0, 1}})), 0);
}

// The buffer takes 16 records.
TEST_F(TapsTest, AStepCapturesNoMoreThanItsBufferTakes) {
  loop_.add(capturing(1, 10, {{0, tap::kNoEnd}}));
  ASSERT_TRUE(loop_.launch());
  EXPECT_EQ(loop_.plans()[0]->seqs[0].q_len, 16);
  ASSERT_EQ(loop_.run(), "");
  EXPECT_EQ(std::ssize(loop_.record(1).captured), kPrompt + 10 - 1);

  // Tokens that are not captured cost nothing.
  const size_t before = loop_.plans().size();
  loop_.add(capturing(2, 10, {{40, 50}, {63, 64}}));
  ASSERT_EQ(loop_.run(), "");
  EXPECT_EQ(loop_.plans()[before]->seqs[0].q_len, kPrompt - 32);
}

TEST_F(TapsTest, WhoCapturesWaitsForRoomAndOthersDoNot) {
  for (uint64_t id = 1; id <= 20; ++id) {
    loop_.add(capturing(id, 40, {{kPrompt, tap::kNoEnd}}));
  }
  loop_.add(test_sequence(100, test_prompt(kPrompt, 2), 5));
  size_t most = 0;
  ASSERT_EQ(loop_.run(), "");
  for (const auto& plan : loop_.plans()) {
    size_t num_capturing = 0;
    for (const step::SeqWork& work : plan->seqs) num_capturing += !work.captures.empty();
    most = std::max(most, num_capturing);
  }
  EXPECT_EQ(most, 16u);
  EXPECT_LT(loop_.record(100).last_step, loop_.record(1).last_step);
  EXPECT_GT(loop_.record(17).first_step, loop_.record(1).last_step);
  EXPECT_GE(loop_.record(18).first_step, loop_.record(17).first_step);
}

TEST_F(TapsTest, ARecordThatNoStepHasRoomForIsRefused) {
  set_->points.clear();
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t site = 0; site < tap::kNumSites; ++site) {
      set_->points.push_back({.point = {layer, static_cast<tap::Site>(site)}});
    }
  }
  const auto added = loop_.scheduler().add(capturing(1, 4, {{0, 1}}));
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(added.error().where, "capture");
  EXPECT_FALSE(loop_.scheduler().has_work());
}

}  // namespace
}  // namespace rudder::sched
