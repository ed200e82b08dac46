#include "rudder/step/draft_tree.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace rudder::step {
namespace {

DraftTree tree_of(std::initializer_list<int32_t> parents) {
  DraftTree tree;
  for (const int32_t parent : parents) tree.add(parent);
  return tree;
}

// Rows 1 and 2 follow the carried token, 3 and 4 row 1, 5 row 2, 6 row 5.
TEST(DraftTree, SaysWhatARowFollows) {
  const DraftTree tree = tree_of({0, 0, 1, 1, 2, 5});
  EXPECT_EQ(tree.size(), 6);
  EXPECT_EQ(tree.depth(), 3);
  EXPECT_EQ(tree.depth(0), 0);
  EXPECT_EQ(tree.depth(4), 2);
  EXPECT_EQ(tree.ancestors(0), 0b1u);
  EXPECT_EQ(tree.ancestors(4), 0b10011u);
  EXPECT_EQ(tree.ancestors(6), 0b1100101u);
  EXPECT_EQ(tree.first_chain(), 0b1011u);
  EXPECT_EQ(tree.parents(), 0b100111u);
  EXPECT_EQ(tree.down_to(1), 0b111u);
  EXPECT_EQ(tree.down_to(2), 0b111111u);
  EXPECT_FALSE(tree.is_chain());
}

TEST(DraftTree, PartsAreTrees) {
  const DraftTree tree = tree_of({0, 0, 1, 1, 2, 5});
  EXPECT_EQ(tree.part(tree.first_chain()), tree_of({0, 1}));
  EXPECT_TRUE(tree.part(tree.first_chain()).is_chain());
  EXPECT_EQ(tree.part(0b1100111), tree_of({0, 0, 2, 3}));
  EXPECT_EQ(tree.part(0b1), DraftTree());
  EXPECT_EQ(tree.first(3), tree_of({0, 0, 1}));
  EXPECT_EQ(tree.first(9), tree);
  EXPECT_TRUE(tree.first(0).empty());
  EXPECT_EQ(DraftTree().parents(), 0b1u);
}

TEST(DraftTree, AWordHoldsTheLargest) {
  DraftTree chain;
  for (int32_t row = 0; row < kMaxTreeDrafts; ++row) chain.add(row);
  EXPECT_TRUE(chain.is_chain());
  EXPECT_EQ(chain.depth(), kMaxTreeDrafts);
  EXPECT_EQ(chain.ancestors(kMaxTreeDrafts), ~uint64_t{0});
}

}  // namespace
}  // namespace rudder::step
