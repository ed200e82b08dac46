// An MTP head against plain decoding: the same sequences get the same tokens, logprobs, scores and
// captured rows, bit for bit (step.I11), and what it guesses depends on the tokens alone.
#include <gtest/gtest.h>

#include "metamorphic/guess_checks.h"
#include "metamorphic/guessers.h"
#include "metamorphic/harness.h"

namespace rudder::metamorphic {
namespace {

class MtpDrafts : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  void SetUp() override {
    if (!takes_guesser(arch(), Guesser::kMtp)) GTEST_SKIP() << "no head is of such a model";
    if (backend().make()->draft_ops() == nullptr) GTEST_SKIP() << "it runs no draft heads";
  }
  static std::unique_ptr<exec::DeviceExecutor> make(const GuessWay& way, step::Capacity capacity) {
    exec::DeviceExecutor::Model model;
    model.ops = way.device.make();
    model.spec = testing::tiny_spec(arch());
    model.weights = value_of(testing::random_weights(model.spec, *model.ops, kModelSeed));
    add_guesser(model, model.spec, Guesser::kMtp);
    add_guesser(capacity, Guesser::kMtp);
    return value_of(start_executor(std::move(model), capacity));
  }
};

TEST_P(MtpDrafts, AsPlainDecoding) {
  expect_text_of_plain_decoding(GetParam(), 90, make);
}
TEST_P(MtpDrafts, GuessesDependOnTheTokensAlone) {
  expect_guesses_of_tokens_alone(GetParam(), make);
}

INSTANTIATE_TEST_SUITE_P(Tiny, MtpDrafts,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kThird)), pair_name);
INSTANTIATE_TEST_SUITE_P(Full, MtpDrafts,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kThird)), pair_name);

}  // namespace
}  // namespace rudder::metamorphic
