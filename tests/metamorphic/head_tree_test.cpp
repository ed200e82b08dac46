// Trees that draft heads and draft models guess: the text of plain decoding, bit for bit
// (step.I11), and each path of a tree is guessed as if it were alone, whatever steps have run the
// tokens before it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "metamorphic/groups.h"
#include "metamorphic/guess_notes.h"
#include "metamorphic/harness.h"
#include "metamorphic/tap_asks.h"
#include "metamorphic/tree_guesser.h"
#include "rudder/draft/token_tree.h"
#include "rudder/testing/async_ops.h"
#include "rudder/testing/forwarding_ops.h"
#include "rudder/testing/tape_ops.h"

namespace rudder::metamorphic {
namespace {

using Tuple = std::vector<int32_t>;

step::RankedTree tree_of(std::string_view text) {
  return value_of(draft::read_token_tree(text));
}

constexpr std::string_view kBushy =
    "[(0,), (1,), (4,), (0, 0), (0, 2), (1, 0), (1, 2), (4, 1), (0, 0, 0), (0, 0, 1), (1, 0, 0), "
    "(4, 1, 3), (0, 0, 0, 0), (1, 0, 0, 2)]";

// Of heads that nobody trained many are right by chance, and few of these are first children.
step::RankedTree wide_tree() {
  std::string text = "[";
  for (int32_t rank = 0; rank < 20; ++rank) text += fmt::format("({}, ), ", rank);
  return tree_of(text +
                 "(0, 0), (5, 0), (5, 1), (11, 3), (17, 3), (0, 0, 0), (5, 0, 1), (11, 3, 0)]");
}

// Not every sequence fits at once.
step::Capacity tight(int32_t num_blocks) {
  step::Capacity capacity = kRoomy;
  capacity.num_blocks = num_blocks;
  capacity.max_tokens_per_step = 96;
  capacity.max_repeat = 4;
  return capacity;
}

class HeadTrees : public ::testing::TestWithParam<Pair> {
 protected:
  static testing::TinyArch arch() { return std::get<1>(GetParam()); }
  static const Backend& backend() { return backends()[std::get<0>(GetParam())]; }
  void SetUp() override {
    if (backend().make()->tree_ops() == nullptr) GTEST_SKIP() << "it keeps no rows beside trees";
    if (!model::runs_trees(testing::tiny_spec(arch()))) GTEST_SKIP() << "it sees no whole paths";
  }

  // Of heads; none: a draft model.
  using Kind = std::optional<testing::TinyHead>;
  static std::vector<Kind> kinds() {
    std::vector<Kind> kinds = {testing::TinyHead::kOwnEmbedding, std::nullopt,
                               testing::TinyHead::kProduct, testing::TinyHead::kSharedEmbedding};
    const model::ModelSpec spec = testing::tiny_spec(arch());
    std::erase_if(kinds, [&](Kind kind) { return kind && !testing::takes_head(spec, *kind); });
    return kinds;
  }
  static std::unique_ptr<exec::DeviceExecutor> guessing(const Backend& device, Kind kind,
                                                        const step::Capacity& capacity,
                                                        const step::RankedTree& tree) {
    if (kind) return head_executor(device, arch(), *kind, capacity, tree);
    return guessing_executor(device, arch(), testing::TinyArch::kPreNorm, 8, capacity, tree);
  }
  struct Way {
    Backend device;
    int32_t budget;
    int32_t in_flight;
  };
  static std::vector<Way> ways() {
    const Backend async_taped = {
        "async_tape",
        [] { return testing::make_async_ops(testing::make_tape_ops(backend().make())); }};
    return {{backend(), 96, 1}, {backend(), 40, 3}, {async_taped, 64, 3}};
  }
};

TEST_P(HeadTrees, AsPlainDecoding) {
  const step::Capacity roomy = with_encodes(kRoomy, arch());
  std::vector<Ask> asks = random_masked_asks(14, 83, 70);
  add_random_taps(asks, roomy, 4);
  for (size_t i = 0; i < asks.size(); ++i) asks[i].arrival = static_cast<int32_t>(i / 8 * 10);
  const std::vector<Got> plain = run_alone(*tiny_executor(backend(), arch(), roomy), asks);
  uint64_t num_preemptions = 0;
  uint64_t num_accepted = 0;
  size_t num_runs = 0;
  for (const bool is_paced : {false, true}) {
    for (const Way& way : ways()) {
      const Kind kind = kinds()[num_runs++ % kinds().size()];
      const auto executor =
          guessing(way.device, kind, with_encodes(tight(11), arch()), tree_of(kBushy));
      const Outcome outcome =
          run(*executor, tree_settings(way.budget, way.in_flight, is_paced), asks);
      expect_same(plain, outcome.got,
                  way.device.name + (kind ? " tree of a draft head" : " tree of a draft model"));
      num_preemptions += outcome.stats.preemptions;
      EXPECT_EQ(outcome.lost_tokens, 0);
      if (is_paced) continue;
      EXPECT_GT(outcome.stats.draft_tokens, 500u);
      num_accepted += outcome.stats.accepted_tokens;  // by chance: nobody trained them
    }
  }
  EXPECT_GT(num_accepted, 0u);
  EXPECT_GT(num_preemptions, 0u);
}

// The rows of `tree` along a path of ranks.
std::vector<size_t> rows_along(const step::RankedTree& tree, const Tuple& ranks) {
  std::vector<size_t> rows;
  int32_t last = 0;
  for (const int32_t rank : ranks) {
    int32_t row = last + 1;
    while (tree.tree.parent(row) != last || tree.ranks[static_cast<size_t>(row - 1)] != rank) ++row;
    rows.push_back(static_cast<size_t>(row));
    last = row;
  }
  return rows;
}

step::RankedTree path_tree(const Tuple& ranks) {
  step::RankedTree path;
  for (const int32_t rank : ranks) {
    path.tree.add(path.tree.size());
    path.ranks.push_back(rank);
  }
  return path;
}

// What a path of ranks is guessed to be, of chains of it alone: from KV and rows that never moved.
struct Path {
  Tuple ranks;
  GuessNotes::Notes alone = {};
};

size_t expect_paths(const GuessNotes::Notes& notes, const std::vector<Path>& paths,
                    const std::string& what) {
  const step::RankedTree tree = wide_tree();
  size_t num_compared = 0;  // paths to their ends
  for (const Path& path : paths) {
    const std::vector<size_t> rows = rows_along(tree, path.ranks);
    for (const auto& [behind, guess] : notes) {
      const auto found = path.alone.find(behind);
      if (found == path.alone.end()) continue;
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] > guess.size() || i >= found->second.size()) break;
        EXPECT_EQ(guess[rows[i] - 1], found->second[i])
            << what << ": sequence " << behind.first << " behind " << behind.second << ", depth "
            << i + 1 << " of the path that begins with rank " << path.ranks[0];
        num_compared += i + 1 == rows.size() ? 1 : 0;
      }
    }
  }
  return num_compared;
}

// Through chunks, preemption, cached prefixes, accepted paths and passes that hold few sequences.
TEST_P(HeadTrees, EachPathIsGuessedAsIfAlone) {
  std::vector<Ask> asks = random_asks(10, 84, 90);
  for (size_t i = 0; i < asks.size(); ++i) {
    asks[i].arrival = static_cast<int32_t>(i / 5 * 2);
    asks[i].prompt[0] = static_cast<int32_t>(i);  // no block is shared by different sequences
    asks[i].sampling.stop_ids.clear();
    for (int32_t token = 3; token < 160; token += 15) {
      asks[i].sampling.logit_bias.emplace_back(token, 30.0f);  // of those that a head knows
    }
  }
  for (size_t i = 0; i < 5; ++i) {  // the same again, from what the first ones left
    asks.push_back(asks[i]);
    asks.back().arrival = 50;
  }
  step::Capacity narrow = tight(10);
  narrow.num_slots = 3;
  narrow.max_tokens_per_step = 5;
  uint64_t preemptions = 0;
  int64_t cached = 0;
  uint64_t accepted = 0;
  for (const Kind kind : kinds()) {
    if (kind == testing::TinyHead::kSharedEmbedding) continue;  // its passes are those of the first
    // Which rows lie where is the same on every backend, and the reference is slow.
    if (kind == testing::TinyHead::kProduct && backend().name == "reference") continue;
    const auto guesses_of = [&](const Way& way, const step::Capacity& capacity,
                                const step::RankedTree& tree) {
      const auto executor = guessing(way.device, kind, capacity, tree);
      GuessNotes noting(*executor);
      sched::SchedSettings how = tree_settings(way.budget, way.in_flight);
      how.max_num_seqs = capacity.num_slots;
      const Outcome outcome = run(noting, how, asks);
      preemptions += outcome.stats.preemptions;
      accepted += outcome.stats.accepted_tokens;
      for (const Got& got : outcome.got) cached += got.cached_tokens;
      return noting.notes;
    };
    step::Capacity chains = kRoomy;
    chains.drafts.max_draft = 3;
    std::vector<Path> paths = {{{0, 0, 0}}, {{5, 0, 1}}, {{11, 3, 0}}, {{17, 3}}};
    for (Path& path : paths) {
      const bool is_likeliest = path.ranks == Tuple(3, 0);  // which a chain without ranks is
      path.alone = guesses_of({backend(), 96, 1}, is_likeliest ? chains : kRoomy,
                              is_likeliest ? step::RankedTree() : path_tree(path.ranks));
    }
    accepted = 0;
    for (const Way& way : ways()) {
      EXPECT_GT(expect_paths(guesses_of(way, tight(10), wide_tree()), paths, way.device.name),
                100u);
    }
    EXPECT_GT(accepted, 15u);
    const Way few = {backend(), 5, 2};
    EXPECT_GT(expect_paths(guesses_of(few, narrow, wide_tree()), paths, "few at once"), 300u);
  }
  EXPECT_GT(preemptions, 0u);
  EXPECT_GT(cached, 0);
}

INSTANTIATE_TEST_SUITE_P(Tiny, HeadTrees,
                         ::testing::ValuesIn(daily_pairs(all_backends(), Turn::kSecond)),
                         pair_name);
INSTANTIATE_TEST_SUITE_P(Full, HeadTrees,
                         ::testing::ValuesIn(other_pairs(all_backends(), Turn::kSecond)),
                         pair_name);

// A device with graphs that counts their replays.
class CountedReplays final : public testing::PassingOps, public ops::GraphOps {
 public:
  CountedReplays(std::unique_ptr<ops::Ops> inner, int64_t* count)
      : PassingOps(std::move(inner)), count_(count) {}
  ops::GraphOps* graph_ops() override { return this_if<ops::GraphOps>(inner_->graph_ops(), this); }
  void begin_capture() override { inner_->graph_ops()->begin_capture(); }
  Result<std::unique_ptr<ops::Graph>> end_capture() override {
    return inner_->graph_ops()->end_capture();
  }
  void replay(ops::Graph& graph) override {
    ++*count_;
    inner_->graph_ops()->replay(graph);
  }

 private:
  int64_t* const count_;
};

// Passes over tokens, over single guesses and over trees, padded where there are other numbers of
// them, guess what passes op by op do.
TEST(PassGraphs, GuessAsOpByOp) {
  using enum testing::TinyHead;
  const auto arch = testing::TinyArch::kPreNorm;
  std::vector<Ask> asks = random_masked_asks(11, 86, 60);
  // No block is shared by different sequences: its last pair is of the one that wrote it last.
  for (size_t i = 0; i < asks.size(); ++i) asks[i].prompt[0] = static_cast<int32_t>(i);
  step::Capacity capacity = tight(60);
  capacity.num_slots = 11;
  capacity.drafts.max_draft = 5;
  const auto head = [&](testing::TinyHead kind, const step::RankedTree& tree) {
    return [&, kind, tree](const Backend& device) {
      return head_executor(device, arch, kind, capacity, tree);
    };
  };
  const auto model = [&](const step::RankedTree& tree) {
    return [&, tree](const Backend& device) {
      return guessing_executor(device, arch, testing::TinyArch::kPreNorm, 8, capacity, tree);
    };
  };
  struct Way {
    std::string name;
    std::function<std::unique_ptr<exec::DeviceExecutor>(const Backend&)> executor;
  };
  const Way ways[] = {{"tree", head(kOwnEmbedding, tree_of(kBushy))},
                      {"tree of products", head(kProduct, tree_of(kBushy))},
                      {"chain", head(kOwnEmbedding, {})},
                      {"chain of products", head(kProduct, {})},
                      {"draft model", model({})},
                      {"tree of a draft model", model(tree_of(kBushy))}};
  for (const Way& way : ways) {
    const auto run_on = [&](const Backend& device, GuessNotes::Notes* notes, Outcome* outcome,
                            int64_t* num_untimed) {
      const auto executor = way.executor(device);
      GuessNotes noting(*executor);
      *outcome = run(noting, tree_settings(96, 2), asks);
      *notes = noting.notes;
      *num_untimed = noting.untimed_steps;
      EXPECT_EQ(noting.timed_captures, 0) << way.name;
      EXPECT_GT(noting.guess_steps, noting.untimed_steps + 10) << way.name;
    };
    int64_t num_replays = 0;
    const Backend counted = {"counted", [&] {
                               return std::make_unique<CountedReplays>(
                                   testing::make_tape_ops(backends()[1].make()), &num_replays);
                             }};
    Outcome eager;
    Outcome replayed;
    GuessNotes::Notes expected;
    GuessNotes::Notes got;
    int64_t untimed_eager = 0;
    int64_t untimed_replayed = 0;
    run_on(backends()[1], &expected, &eager, &untimed_eager);
    run_on(counted, &got, &replayed, &untimed_replayed);
    expect_same(eager.got, replayed.got, way.name);
    // What is paid once is in no time that is told: first passes of a kind, and captures.
    EXPECT_EQ(untimed_eager, 0) << way.name;
    EXPECT_GT(untimed_replayed, 4) << way.name;
    EXPECT_GT(replayed.captured_graphs, eager.captured_graphs + 4) << way.name;
    EXPECT_EQ(num_different(expected, got), 0u) << way.name;
    EXPECT_GT(got.size(), 100u) << way.name;
    EXPECT_GT(num_replays, replayed.graph_steps + 60) << way.name;
  }
}

// Each rank has the path's rows whole, and a part of the head.
TEST(HeadTreesOnRanks, GuessAsOnOneDevice) {
  const std::vector<Ask> asks = spread_asks(random_masked_asks(8, 85, 30));
  const step::RankedTree tree = tree_of(kBushy);
  for (const Guesser guesser : {Guesser::kOwnEmbedding, Guesser::kProduct}) {
    const auto arch = testing::TinyArch::kPreNorm;
    const auto guess = [&](int32_t num_ranks) {
      step::Capacity capacity = kRoomy;
      capacity.num_blocks = 22;
      const auto executor = tiny_group(rank_backends()[1], arch, capacity,
                                       {.num_ranks = num_ranks, .guesser = guesser, .tree = tree});
      GuessNotes notes(*executor);
      const Outcome outcome = run(notes, busy_settings(), asks);
      EXPECT_GT(outcome.stats.draft_tokens, 150u);
      return std::pair(notes.notes, outcome.got);
    };
    const auto [one, text] = guess(1);
    const auto [two, text_of_two] = guess(2);
    expect_nearly_same(text, text_of_two, kNear);
    EXPECT_EQ(one, two) << guesser_name(guesser);
    const auto plain =
        run_alone(*tiny_group(rank_backends()[1], arch, kRoomy, {.num_ranks = 2}), asks);
    expect_same(plain, text_of_two, "two ranks");
  }
}

}  // namespace
}  // namespace rudder::metamorphic
