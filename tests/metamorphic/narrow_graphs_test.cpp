// Which steps get a graph of their own, and which graph a step runs; graphs are numbers here.
#include "rudder/exec/narrow_graphs.h"

#include <gtest/gtest.h>

#include <initializer_list>

#include "rudder/cpu/reference_ops.h"

namespace rudder::exec {
namespace {

using Narrow = NarrowGraphs<int, int>;

constexpr int32_t kAll = 40;  // macro-ops that a wide graph taps

class NarrowGraphsTest : public ::testing::Test {
 protected:
  static Narrow::Key key(int kind, std::initializer_list<int32_t> layers) {
    Narrow::Key key{.kind = kind, .tapped = {}};
    for (const int32_t layer : layers) key.tapped.add({layer, tap::Site::kResidPost});
    return key;
  }

  // What a step runs: 0 is a wide graph, -1 one that is captured now.
  int step(Narrow& narrow, const Narrow::Key& key) {
    narrow.note(key);
    const Narrow::Found found = narrow.find(key, [](int) { return true; });
    if (narrow.is_due(key, found ? found.key->tapped.size() : kAll)) {
      const Narrow::Found made = narrow.make(key, *ops_).value();
      EXPECT_EQ(*made.key, key);
      *made.value = ++num_captured_;
      return -1;
    }
    return found ? *found.value : 0;
  }

  int num_captured_ = 0;

 private:
  const std::unique_ptr<ops::Ops> ops_ = cpu::make_reference_ops();
};

TEST_F(NarrowGraphsTest, AStepHasToComeBack) {
  Narrow narrow({.least_steps = 3, .spacing = 0});
  EXPECT_EQ(step(narrow, key(1, {4})), 0);
  EXPECT_EQ(step(narrow, key(1, {4})), 0);
  EXPECT_EQ(step(narrow, key(2, {4})), 0);  // another kind
  EXPECT_EQ(step(narrow, key(1, {5})), 0);  // another layer
  EXPECT_EQ(step(narrow, key(1, {4})), -1);
  EXPECT_EQ(step(narrow, key(1, {4})), 1);
  EXPECT_EQ(step(narrow, key(2, {4})), 0);
}

TEST_F(NarrowGraphsTest, CapturesLieApart) {
  Narrow narrow({.least_steps = 1, .spacing = 4});
  EXPECT_EQ(step(narrow, key(1, {0})), -1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(narrow, key(1, {9})), 0);
  EXPECT_EQ(step(narrow, key(1, {9})), -1);
  EXPECT_EQ(step(narrow, key(1, {9})), 2);
}

TEST_F(NarrowGraphsTest, AStepRunsTheNarrowestThatTapsWhatItUses) {
  Narrow narrow({.least_steps = 1, .spacing = 0});
  EXPECT_EQ(step(narrow, key(1, {0, 1, 2, 3, 4, 5, 6, 7})), -1);
  EXPECT_EQ(step(narrow, key(1, {1, 2, 3, 4, 5, 6, 7})), 1);  // little narrower
  EXPECT_EQ(step(narrow, key(1, {2, 3})), -1);
  EXPECT_EQ(step(narrow, key(1, {2, 3})), 2);
  EXPECT_EQ(step(narrow, key(1, {})), -1);
  EXPECT_EQ(step(narrow, key(1, {})), 3);
  EXPECT_EQ(step(narrow, key(1, {2, 8})), -1);  // in none of them
  // One that cannot run the step is passed over.
  const Narrow::Found found = narrow.find(key(1, {2}), [](int graph) { return graph != 2; });
  EXPECT_EQ(*found.value, 4);
}

TEST_F(NarrowGraphsTest, WhatTapsNearlyAllRunsAWideGraph) {
  Narrow narrow({.least_steps = 1, .spacing = 0});
  Narrow::Key most{.kind = 1, .tapped = tap::PassageSet::all(tap::kLayerEnd, 30)};
  EXPECT_EQ(most.tapped.size(), 31);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step(narrow, most), 0);
}

// Many sets that take turns: no more graphs than may be, and each of them captured seldom.
TEST_F(NarrowGraphsTest, ThoseUsedLongestAgoGo) {
  Narrow narrow(
      {.least_steps = 2, .spacing = 0, .most_graphs = 2, .idle_steps = 0, .most_counted = 8});
  for (const int32_t layer : {0, 1}) {
    EXPECT_EQ(step(narrow, key(1, {layer})), 0);
    EXPECT_EQ(step(narrow, key(1, {layer})), -1);
  }
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
  EXPECT_EQ(step(narrow, key(1, {2})), 0);
  EXPECT_EQ(step(narrow, key(1, {2})), -1);  // in the place of layer 1's
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
  EXPECT_EQ(step(narrow, key(1, {1})), 0);  // which has to come back as often as at first
  EXPECT_EQ(step(narrow, key(1, {1})), -1);
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
  EXPECT_EQ(step(narrow, key(1, {2})), 0);
  // Of more sets than are counted none comes back in time.
  for (int turn = 0; turn < 4; ++turn) {
    for (int32_t layer = 10; layer < 22; ++layer) EXPECT_EQ(step(narrow, key(1, {layer})), 0);
  }
  EXPECT_EQ(num_captured_, 4);
}

TEST_F(NarrowGraphsTest, NoneGoesThatIsStillRun) {
  Narrow narrow({.least_steps = 1, .spacing = 0, .most_graphs = 2, .idle_steps = 5});
  EXPECT_EQ(step(narrow, key(1, {0})), -1);
  EXPECT_EQ(step(narrow, key(1, {1})), -1);
  for (int turn = 0; turn < 10; ++turn) {
    EXPECT_EQ(step(narrow, key(1, {0})), 1);
    EXPECT_EQ(step(narrow, key(1, {1})), 2);
    EXPECT_EQ(step(narrow, key(1, {2})), 0);
  }
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(step(narrow, key(1, {0})), 1);
    EXPECT_EQ(step(narrow, key(1, {2})), 0);
  }
  EXPECT_EQ(step(narrow, key(1, {2})), -1);  // in the place of layer 1's
  EXPECT_EQ(step(narrow, key(1, {0})), 1);
}

}  // namespace
}  // namespace rudder::exec
