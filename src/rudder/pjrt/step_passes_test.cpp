#include "rudder/pjrt/step_passes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace rudder::pjrt {
namespace {

// Sequences with so many tokens behind as many; each has the blocks seq, seq + n, seq + 2 n ... of
// blocks of three layers.
std::vector<StepPass> cut(const std::vector<std::pair<int32_t, int32_t>>& seqs,
                          int32_t max_len = 4096) {
  constexpr int32_t kLayers = 3;
  const int32_t num_seqs = static_cast<int32_t>(seqs.size());
  const int32_t max_blocks = (max_len + 15) / 16;
  std::vector<int32_t> ids;
  std::vector<int32_t> positions;
  std::vector<int32_t> slots;
  std::vector<int32_t> begins = {0};
  std::vector<int32_t> kv_len;
  std::vector<int32_t> table;
  for (int32_t seq = 0; seq < num_seqs; ++seq) {
    const auto [before, count] = seqs[static_cast<size_t>(seq)];
    for (int32_t b = 0; b < max_blocks; ++b) table.push_back((b * num_seqs + seq) * kLayers);
    for (int32_t p = before; p < before + count; ++p) {
      ids.push_back(1000 * seq + p);
      positions.push_back(p);
      slots.push_back((p / 16 * num_seqs + seq) * kLayers * 16 + p % 16);
    }
    begins.push_back(static_cast<int32_t>(ids.size()));
    kv_len.push_back(before + count);
  }
  std::vector<int32_t> rows(seqs.size());
  std::iota(rows.begin(), rows.end(), 0);
  tensor::View block_table = tensor::host_view(table);
  block_table.shape = {num_seqs, max_blocks};
  const model::ForwardBatch batch = {.ids = tensor::host_view(ids),
                                     .positions = tensor::host_view(positions),
                                     .kv_slot = tensor::host_view(slots),
                                     .attention = {.q_begin = tensor::host_view(begins),
                                                   .kv_len = tensor::host_view(kv_len),
                                                   .table_row = tensor::host_view(rows),
                                                   .block_table = block_table},
                                     .logits_rows = {}};
  return cut_step(batch, {.block_size = 16, .max_pages = max_blocks, .group_layers = {kLayers}});
}

TEST(StepPasses, SinglesGoTogetherAndPromptsAlone) {
  const auto passes = cut({{20, 1}, {0, 40}, {300, 1}});
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[0].shape, (PassShape{.rows = 256, .pages = 16, .is_chunk = true}));
  EXPECT_EQ(passes[0].tokens.size(), 40u);
  EXPECT_EQ(passes[0].tokens.front(), 1);
  EXPECT_EQ(passes[0].groups[0].pages[1], 4);  // block 1 of sequence 1 of three
  // The last token of the prompt lies in its third block; padding is written nowhere.
  EXPECT_EQ(passes[0].groups[0].slots[2 * 39], 7);
  EXPECT_EQ(passes[0].groups[0].slots[2 * 39 + 1], 7);
  EXPECT_EQ(passes[0].groups[0].slots[2 * 40], -1);
  EXPECT_EQ(passes[1].shape, (PassShape{.rows = 8, .pages = 64, .is_chunk = false}));
  EXPECT_EQ(passes[1].tokens, (std::vector<int32_t>{0, 41}));
  EXPECT_EQ(passes[1].ids[1], 2300);
  EXPECT_EQ(passes[1].groups[0].pages.size(), size_t{8 * 64});
  EXPECT_EQ(passes[1].groups[0].pages[64], 2);
}

TEST(StepPasses, LongPromptsAreCutIntoChunks) {
  const auto passes = cut({{10, 600}});
  ASSERT_EQ(passes.size(), 3u);
  EXPECT_EQ(passes[0].positions.front(), 10);
  EXPECT_EQ(passes[2].positions.front(), 522);
  EXPECT_EQ(passes[2].tokens.size(), 88u);
  EXPECT_EQ(passes[0].shape.pages, 64);
}

TEST(StepPasses, ManySinglesTakeSeveralPasses) {
  const auto passes = cut(std::vector<std::pair<int32_t, int32_t>>(130, {5, 1}), 64);
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_EQ(passes[0].shape.rows, 128);
  EXPECT_EQ(passes[1].shape.rows, 8);
  EXPECT_EQ(passes[1].shape.pages, 4);  // no more than a sequence may have
}

}  // namespace
}  // namespace rudder::pjrt
