// Trees that the host makes, and lookahead decoding, on a GPU whose bits do not depend on the
// batch, against plain decoding, token for token and bit for bit: from graphs, and op by op. The
// random proposer checks what it is told of rows.
#include <gtest/gtest.h>

#include "metamorphic/small_gpu_model.h"
#include "rudder/draft/lookahead_proposer.h"
#include "rudder/testing/random_proposer.h"

namespace rudder::metamorphic {
namespace {

class LookaheadOnAGpu : public ::testing::TestWithParam<tensor::DType> {
 protected:
  static constexpr auto kArch = testing::TinyArch::kPreNorm;

  static std::unique_ptr<step::Executor> executor(const step::Capacity& capacity,
                                                  bool enforce_eager) {
    exec::DeviceExecutor::Model model = small_gpu_model(GetParam(), kArch);
    return value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
  }
};

TEST_P(LookaheadOnAGpu, AsPlainDecoding) {
  std::vector<Ask> asks = random_masked_asks(16, 45, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    if (i % 3 == 1) asks[i].mask = nullptr;
    // Few tokens to choose from: what was said comes again.
    if (i % 2 == 0 && asks[i].mask == nullptr) {
      asks[i].sampling.logit_bias = {{7, 40.0f}, {9, 40.5f}, {11, 39.5f}};
    }
  }
  const std::vector<Got> plain = run_alone(*executor(kRoomy, true), asks);
  const auto all = wholes(asks, plain);
  for (const bool enforce_eager : {true, false}) {
    const auto whole = [&](sched::SequenceId id) {
      return std::span<const int32_t>(all[id.value]);
    };
    testing::RandomProposer random(11, 160, whole, testing::RandomDrafts::kTreesThatLearn);
    draft::LookaheadProposer lookahead({}, 1 << 20);
    for (sched::DraftProposer* const proposer :
         std::initializer_list<sched::DraftProposer*>{&random, &lookahead}) {
      step::Capacity capacity = kRoomy;
      capacity.num_blocks = 40;
      capacity.drafts.max_draft = draft::LookaheadSettings().num_drafts();
      capacity.drafts.takes_trees = capacity.drafts.tells_rows = true;
      sched::SchedSettings settings = plain_settings();
      settings.max_in_flight = 2;
      settings.enable_prefix_caching = true;
      const Outcome outcome = run(*executor(capacity, enforce_eager), settings, asks, proposer);
      expect_same(plain, outcome.got, proposer == &random ? "random trees" : "lookahead");
      EXPECT_GT(outcome.stats.accepted_tokens, 50u);
      EXPECT_GT(outcome.masked_trees, 10);
      EXPECT_EQ(outcome.graph_steps > 0, !enforce_eager);
    }
    EXPECT_GT(random.num_told(), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, LookaheadOnAGpu,
                         ::testing::Values(tensor::DType::kBF16, tensor::DType::kF8E4M3),
                         [](const auto& test) {
                           return std::string(tensor::dtype_name(test.param));
                         });

}  // namespace
}  // namespace rudder::metamorphic
