// Each seeded bug of kv and sched (base/mutants.h) is found by the stress tests within a few seeds.
// Built with RUDDER_MUTANTS=1 from the rooms' sources.
#include "rudder/base/mutants.h"

#include <gtest/gtest.h>

#include "rudder/testing/overtaking_stress.h"
#include "rudder/testing/prompt_stress.h"
#include "rudder/testing/sched_stress.h"

namespace rudder::sched {
namespace {

constexpr uint64_t kSeeds = 3000;

class MutantTest : public ::testing::TestWithParam<NamedMutant> {
 protected:
  void TearDown() override { active_mutant = Mutant::kNone; }
};

TEST_P(MutantTest, IsFound) {
  active_mutant = GetParam().mutant;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    std::string error = testing::run_stress(seed);
    if (error.empty()) error = testing::run_prompt_stress(seed);
    if (error.empty()) error = testing::run_overtaking_stress(seed);
    if (error.empty()) continue;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                error.substr(0, 200).c_str());
    return;
  }
  FAIL() << GetParam().fault << ": not found in " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(KvAndSched, MutantTest,
                         ::testing::ValuesIn(std::begin(kAllMutants) + 1,
                                             std::begin(kAllMutants) + 1 +
                                                 static_cast<int>(Mutant::kTableEditsLost)),
                         [](const auto& mutant) { return std::string(mutant.param.name); });

}  // namespace
}  // namespace rudder::sched
