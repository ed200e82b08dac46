#include "metamorphic/guess_checks.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "metamorphic/tap_asks.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

const Backend& backend_of(const Pair& pair) {
  return backends()[std::get<0>(pair)];
}
// Windows give blocks back, so that all sequences fit.
bool may_preempt(const Pair& pair) {
  return !testing::has_windows(std::get<1>(pair));
}

constexpr size_t kDifferent = 12;  // sequences; six of them come again

std::vector<Ask> asks_that_come_again() {
  std::vector<Ask> asks = random_asks(kDifferent, 44, 80);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].arrival = static_cast<int32_t>(i / 6 * 12);
    // Different sequences share no block: the last pair of a shared one is of who wrote it last.
    asks[i].prompt[0] = static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < 6; ++i) {  // from what the first ones left
    asks.push_back(asks[i]);
    asks.back().arrival = 60;
  }
  return asks;
}

struct Noted {
  GuessNotes::Notes notes;
  uint64_t preemptions = 0;
  int64_t cached_tokens = 0;
  int64_t ahead_steps = 0;
  bool keeps_guesses = false;
};

Noted run_noting(const GuessWay& way, const step::Capacity& capacity, const std::vector<Ask>& asks,
                 const MakeGuessing& make) {
  const auto executor = make(way, capacity);
  GuessNotes noting(*executor);
  const Outcome outcome = run(noting, guess_settings(way), asks);
  Noted noted = {.notes = noting.notes,
                 .preemptions = outcome.stats.preemptions,
                 .ahead_steps = noting.ahead_steps,
                 .keeps_guesses = executor->capacity().drafts.keeps_guesses};
  for (const Got& got : outcome.got) noted.cached_tokens += got.cached_tokens;
  return noted;
}

}  // namespace

void expect_same_guesses(const GuessNotes::Notes& alone, const GuessNotes::Notes& together,
                         const std::string& what, size_t least) {
  size_t num_compared = 0;
  for (const auto& [behind, guess] : together) {
    const auto found = alone.find(behind);
    if (found == alone.end()) continue;  // another draft was right by chance
    const size_t both = std::min(guess.size(), found->second.size());
    EXPECT_TRUE(
        std::ranges::equal(std::span(guess).first(both), std::span(found->second).first(both)))
        << what << ", sequence " << behind.first << " behind " << behind.second;
    num_compared += both;
  }
  EXPECT_GT(num_compared, least) << what;
}

std::vector<GuessWay> guess_ways(const Backend& backend) {
  const Backend async_taped = {
      "async_tape",
      [backend] { return testing::make_async_ops(testing::make_tape_ops(backend.make())); }};
  return {{backend, 96, 1}, {backend, 40, 3}, {async_taped, 64, 3}};
}

sched::SchedSettings guess_settings(const GuessWay& way) {
  sched::SchedSettings settings;
  settings.max_num_seqs = 16;
  settings.max_num_batched_tokens = way.budget;
  settings.max_in_flight = way.in_flight;
  settings.multi_step = 4;
  return settings;
}

void expect_text_of_plain_decoding(const Pair& pair, uint32_t seed, const MakeGuessing& make) {
  const auto [index, arch] = pair;
  const Backend& backend = backends()[index];
  const step::Capacity roomy = with_encodes(kRoomy, arch);
  std::vector<Ask> asks = random_masked_asks(14, seed, 70);
  add_random_taps(asks, roomy, 4);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend, arch, roomy), asks);
  uint64_t num_preemptions = 0;
  for (const bool is_paced : {false, true}) {
    for (const GuessWay& way : guess_ways(backend)) {
      const auto executor = make(way, with_encodes(kGuessTight, arch));
      sched::SchedSettings drafting = guess_settings(way);
      drafting.pace_drafts = is_paced;
      const Outcome outcome = run(*executor, drafting, asks);
      expect_same(plain, outcome.got, way.device.name);
      num_preemptions += outcome.stats.preemptions;
      if (!is_paced) {
        EXPECT_GT(outcome.stats.draft_tokens, 400u) << way.device.name;
      }
    }
  }
  if (may_preempt(pair)) {
    EXPECT_GT(num_preemptions, 0u);
  }
}

void expect_guesses_of_tokens_alone(const Pair& pair, const MakeGuessing& make) {
  const Backend& backend = backend_of(pair);
  const std::vector<Ask> asks = asks_that_come_again();
  step::Capacity roomy = kRoomy;
  roomy.drafts.max_draft = kGuessTight.drafts.max_draft;
  GuessNotes::Notes alone;
  for (size_t i = 0; i < kDifferent; ++i) {
    Ask first = asks[i];
    first.arrival = 0;
    Noted noted = run_noting({backend, 96, 1}, roomy, {first}, make);
    EXPECT_EQ(noted.preemptions, 0u);
    EXPECT_EQ(noted.cached_tokens, 0);
    alone.merge(noted.notes);
  }
  uint64_t num_preemptions = 0;
  for (const GuessWay& way : guess_ways(backend)) {
    const Noted tight = run_noting(way, kGuessTight, asks, make);
    expect_same_guesses(alone, tight.notes, way.device.name, 300);
    num_preemptions += tight.preemptions;
    if (tight.keeps_guesses && way.in_flight > 1) {
      EXPECT_GT(tight.ahead_steps, 20) << way.device.name;
    }
  }
  if (may_preempt(pair)) {
    EXPECT_GT(num_preemptions, 0u);
  }
  const Noted cached = run_noting({backend, 64, 3}, roomy, asks, make);
  expect_same_guesses(alone, cached.notes, "from cached blocks", 300);
  EXPECT_GT(cached.cached_tokens, 0);
}

}  // namespace rudder::metamorphic
