// open_experts() and close_experts(), of backends that have fewer launches for a token.
#include "rudder/testing/ops_conformance_one_token.h"

#include <gtest/gtest.h>

#include <string>

namespace rudder::testing {
namespace {

// Of a CPU no backend has them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpsOneToken);

// What the ops that they stand for make, but for rounding, of which an activation that is quantised
// to another step is the most.
TEST_P(OpsOneToken, ExpertsOpenedAndClosed) {
  if (ops_.expert_ops() == nullptr) GTEST_SKIP() << "it has no experts";
  using enum ops::Activation;
  bool opens = false;
  for (const OneTokenCase& c :
       {OneTokenCase{128, 8, 208, 96, false, false, true, false, kSilu},
        OneTokenCase{16, 4, 1040, 272, true, true, true, false, kClampedSwiglu},
        OneTokenCase{200, 10, 144, 48, false, true, true, false, kSilu},
        OneTokenCase{512, 12, 80, 64, false, false, false, false, kGeluTanh},
        OneTokenCase{32, 4, 416, 224, true, false, true, true, kClampedSwiglu},
        OneTokenCase{9, 1, 1120, 96, false, true, false, true, kSilu},
        OneTokenCase{40, 9, 64, 608, true, true, true, true, kSilu}}) {
    SCOPED_TRACE(std::to_string(c.chosen) + " of " + std::to_string(c.experts));
    if (c.is_coded && !ops_.format_for(ops::kMxfp4, ops::ProductUse::kExperts)) continue;
    const auto mixture = make_mixture(c);
    ASSERT_TRUE(mixture) << mixture.error().to_string();
    const Made expected = run(*mixture, false);
    const Made got = run(*mixture, true);
    if (got.out.empty()) continue;
    opens = true;
    EXPECT_EQ(device_.values<int32_t>(got.chosen), device_.values<int32_t>(expected.chosen));
    EXPECT_EQ(device_.values<float>(got.weights), device_.values<float>(expected.weights));
    expect_near(got.activated, expected.activated, 0.01, "activated");
    expect_near(got.out, expected.out, 0.02, "sums");
    expect_same_rows(run(*mixture, true).out, got.out, "again");
  }
  if (!opens) GTEST_SKIP() << "it has no fewer launches for a token";
}

}  // namespace
}  // namespace rudder::testing
