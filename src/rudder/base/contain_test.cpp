#include "rudder/base/contain.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>

namespace rudder {
namespace {

TEST(ContainTest, WorkThatEndsWellGivesWhatItGives) {
  int runs = 0;
  EXPECT_TRUE(contain([&] { ++runs; }));
  EXPECT_EQ(contain([&]() -> Result<int> { return ++runs; }).value(), 2);
  EXPECT_EQ(contain([]() -> Result<int> { return fail(ErrorCode::kIo, "no"); }).error().code,
            ErrorCode::kIo);
}

TEST(ContainTest, WhatIsThrownBecomesAnError) {
  const Result<void> logic = contain([] { throw std::logic_error("broken"); });
  ASSERT_FALSE(logic);
  EXPECT_EQ(logic.error().code, ErrorCode::kInternal);
  EXPECT_EQ(logic.error().message, "broken");
  EXPECT_EQ(contain([] { throw std::bad_alloc(); }).error().code, ErrorCode::kOverloaded);
  EXPECT_EQ(contain([]() -> Result<int> { throw 42; }).error().code, ErrorCode::kInternal);
}

TEST(ContainTest, AFailureOfTheTestItselfPasses) {
  struct Failure : Uncontained {};
  EXPECT_THROW(contain([] { throw Failure(); }).has_value(), Failure);
}

}  // namespace
}  // namespace rudder
