// AnswerLength: before any answer ended, behind answers of another kind, and where none says much.
#include "rudder/sched/answer_length.h"

#include <gtest/gtest.h>

namespace rudder::sched {
namespace {

TEST(AnswerLengthTest, BeforeAnyEndedItIsWhatTheAnswerMayHave) {
  const AnswerLength answers;
  EXPECT_EQ(answers.expected(128), 128);
}

TEST(AnswerLengthTest, AsLongAsTheLastOnesAndNoLongerThanItMayBe) {
  AnswerLength answers;
  for (int i = 0; i < 8; ++i) answers.note(300, 30'000);
  EXPECT_NEAR(answers.expected(30'000), 300, 1e-6);
  EXPECT_NEAR(answers.expected(1000), 300, 1e-6);
  EXPECT_EQ(answers.expected(100), 100);
  for (int i = 0; i < 2000; ++i) answers.note(600, 30'000);
  EXPECT_NEAR(answers.expected(30'000), 600, 1);
}

// Answers that took all that they might have do not make longer ones short.
TEST(AnswerLengthTest, AsLargeAShareAsTheLastOnes) {
  AnswerLength answers;
  for (int i = 0; i < 32; ++i) answers.note(128, 128);
  EXPECT_NEAR(answers.expected(1000), 1000, 1e-6);
}

TEST(AnswerLengthTest, ItIsNeverNothing) {
  AnswerLength answers;
  answers.note(0, 1000);
  EXPECT_EQ(answers.expected(1000), 1);
}

}  // namespace
}  // namespace rudder::sched
