// open_experts() and close_experts(), of backends that have fewer launches for a token.
#include "rudder/testing/ops_conformance_open_experts.h"

#include <gtest/gtest.h>

#include <string>

namespace rudder::testing {
namespace {

// Of a CPU no backend has them.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpsOpenExperts);

// What the ops that they stand for make, but for rounding, of which an activation that is quantised
// to another step is the most.
TEST_P(OpsOpenExperts, ExpertsOpenedAndClosed) {
  if (ops_.expert_ops() == nullptr) GTEST_SKIP() << "it has no experts";
  using enum ops::Activation;
  bool opens = false;
  using enum SharedExpert;
  for (const OpenCase& c : {OpenCase{128, 8, 208, 96, false, true, false, kNone, kSilu},
                            OpenCase{16, 4, 528, 272, true, true, false, kMade, kClampedSwiglu},
                            OpenCase{200, 10, 144, 48, false, true, false, kIsGated, kSilu},
                            OpenCase{512, 12, 80, 64, false, false, false, kNone, kGeluTanh},
                            OpenCase{32, 4, 416, 224, true, true, true, kNone, kClampedSwiglu},
                            OpenCase{9, 1, 1120, 96, false, false, true, kIsGated, kSilu},
                            OpenCase{40, 9, 64, 608, true, true, true, kMade, kSilu},
                            OpenCase{130, 8, 144, 80, false, true, false, kIsGated, kSilu},
                            OpenCase{40, 6, 1040, 272, true, true, false, kJoins, kSilu},
                            OpenCase{64, 2, 96, 32, false, false, false, kMade, kGeluTanh},
                            OpenCase{48, 4, 288, 96, true, true, true, kJoins, kClampedSwiglu}}) {
    SCOPED_TRACE(std::to_string(c.chosen) + " of " + std::to_string(c.experts));
    if (c.is_coded && !ops_.format_for(ops::kMxfp4, ops::ProductUse::kExperts)) continue;
    const auto mixture = make_mixture(c);
    ASSERT_TRUE(mixture) << mixture.error().to_string();
    const Made expected = run_apart(*mixture);
    const Made got = run_together(*mixture);
    if (got.out.empty()) continue;
    opens = true;
    EXPECT_EQ(device_.values<int32_t>(got.chosen), device_.values<int32_t>(expected.chosen));
    EXPECT_EQ(device_.values<float>(got.weights), device_.values<float>(expected.weights));
    expect_near(got.activated, expected.activated, 0.01, "activated");
    expect_near(got.out, expected.out, stores_fp8() ? 0.05 : 0.02, "sums");
    expect_same_rows(run_together(*mixture).out, got.out, "again");
  }
  if (!opens) GTEST_SKIP() << "it has no fewer launches for a token";
}

}  // namespace
}  // namespace rudder::testing
