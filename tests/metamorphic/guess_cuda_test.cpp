// What reads rows of a step's logits, on a GPU whose bits do not depend on the batch, against plain
// decoding, token for token and bit for bit, and what it guesses: the same beside graphs of steps
// and op by op, in any chunks, behind preemption and cached prefixes.
#include <gtest/gtest.h>

#include <algorithm>

#include "metamorphic/guess_notes.h"
#include "metamorphic/guessers.h"
#include "metamorphic/small_gpu_model.h"
#include "metamorphic/tap_asks.h"

namespace rudder::metamorphic {
namespace {

using Param = std::tuple<tensor::DType, testing::TinyArch, Guesser>;

class GuessesOnAGpu : public ::testing::TestWithParam<Param> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }

  static std::unique_ptr<step::Executor> executor(step::Capacity capacity, Guesser guesser,
                                                  bool enforce_eager) {
    exec::DeviceExecutor::Model model = small_gpu_model(std::get<0>(GetParam()), arch());
    add_guesser(model, model.spec, guesser);
    add_guesser(capacity, guesser);
    return value_of(start_executor(std::move(model), capacity, {.enforce_eager = enforce_eager}));
  }
  static step::Capacity with_taps() {
    step::Capacity capacity = with_encodes(kRoomy, arch());
    const model::ModelSpec spec = small_gpu_model(std::get<0>(GetParam()), arch()).spec;
    capacity.geometry = tapped_geometry(spec, tensor::DType::kBF16);
    return capacity;
  }
};

TEST_P(GuessesOnAGpu, AsPlainDecodingAndGuessesDependOnTheTokensAlone) {
  const step::Capacity roomy = with_taps();
  std::vector<Ask> asks = random_masked_asks(16, 43, 80);
  add_random_taps(asks, roomy, 4);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].arrival = static_cast<int32_t>(i / 7 * 12);
    asks[i].prompt[0] = static_cast<int32_t>(i);
  }
  const std::vector<Got> plain = run_alone(*executor(roomy, Guesser::kNone, false), asks);
  step::Capacity capacity = roomy;
  capacity.num_blocks = 24;
  capacity.drafts.max_draft = 5;
  GuessNotes::Notes first;
  size_t num_compared = 0;
  for (const auto& [budget, enforce_eager] : {std::pair{512, false}, {24, false}, {64, true}}) {
    const auto guessing = executor(capacity, std::get<2>(GetParam()), enforce_eager);
    GuessNotes noting(*guessing);
    sched::SchedSettings settings = plain_settings();
    settings.max_num_batched_tokens = budget;
    settings.max_in_flight = 3;
    settings.enable_prefix_caching = true;
    const Outcome outcome = run(noting, settings, asks);
    expect_same(plain, outcome.got, enforce_eager ? "eager" : "graphs");
    EXPECT_GT(outcome.stats.draft_tokens, 300u);
    EXPECT_EQ(outcome.graph_steps > 0, !enforce_eager);
    if (first.empty()) first = noting.notes;
    for (const auto& [behind, guess] : noting.notes) {
      const auto found = first.find(behind);
      if (found == first.end()) continue;
      const size_t count = std::min(guess.size(), found->second.size());
      EXPECT_TRUE(std::equal(guess.begin(), guess.begin() + static_cast<std::ptrdiff_t>(count),
                             found->second.begin()))
          << "sequence " << behind.first << " behind " << behind.second;
      num_compared += count;
    }
  }
  EXPECT_GT(num_compared, 600u);
}

INSTANTIATE_TEST_SUITE_P(
    Tiny, GuessesOnAGpu,
    ::testing::Combine(::testing::Values(tensor::DType::kBF16, tensor::DType::kF8E4M3),
                       ::testing::Values(testing::TinyArch::kSandwich, testing::TinyArch::kHeadNorm,
                                         testing::TinyArch::kTwoWidths),
                       ::testing::ValuesIn(kGuessersOnAGpu)),
    [](const auto& test) {
      return std::string(tensor::dtype_name(std::get<0>(test.param))) + "_" +
             std::string(testing::tiny_arch_name(std::get<1>(test.param))) + "_" +
             guesser_name(std::get<2>(test.param));
    });

}  // namespace
}  // namespace rudder::metamorphic
