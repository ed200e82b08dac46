// A proposer that the executor has never heard of (toy_proposer.h) is served like any other: what
// holds of all proposers holds of it, and its guesses are verified.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "metamorphic/guess_checks.h"
#include "metamorphic/harness.h"
#include "metamorphic/toy_proposer.h"

namespace rudder::metamorphic {
namespace {

std::unique_ptr<exec::DeviceExecutor> toy_executor(const GuessWay& way, testing::TinyArch arch,
                                                   step::Capacity capacity) {
  exec::DeviceExecutor::Model model;
  model.ops = way.device.make();
  model.spec = testing::tiny_spec(arch);
  model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
  model.draft = std::make_unique<ToyProposer>();
  capacity.drafts.guesses = capacity.drafts.guesses_from_rows = true;
  return value_of(start_executor(std::move(model), capacity));
}

class ToyDrafts : public ::testing::TestWithParam<Pair> {
 protected:
  static std::unique_ptr<exec::DeviceExecutor> make(const GuessWay& way,
                                                    const step::Capacity& capacity) {
    return toy_executor(way, std::get<1>(GetParam()), capacity);
  }
};

TEST_P(ToyDrafts, AsPlainDecoding) {
  expect_text_of_plain_decoding(GetParam(), 88, make);
}

TEST_P(ToyDrafts, GuessesDependOnTheTokensAlone) {
  expect_guesses_of_tokens_alone(GetParam(), make);
}

INSTANTIATE_TEST_SUITE_P(Tiny, ToyDrafts,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kThird)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, ToyDrafts,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kThird)), pair_name);

// The executor asks at its start.
TEST(DraftSources, OneThatGuessesInAnotherWayThanTheCapacitySaysIsFound) {
  const ToyProposer toy;
  step::DraftCaps caps = {.max_draft = 3, .guesses = true, .guesses_from_rows = true};
  EXPECT_TRUE(exec::guesses_as(toy, caps));
  caps.guess_tree.add(0);
  EXPECT_FALSE(exec::guesses_as(toy, caps));
  EXPECT_FALSE(exec::guesses_as(toy, {.max_draft = 3, .guesses = true}));
}

}  // namespace
}  // namespace rudder::metamorphic
