#include "rudder/exec/kv_layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "rudder/exec/memory_budget.h"
#include "rudder/model/archs/archs.h"
#include "rudder/model/make_model.h"
#include "rudder/testing/tiny_model.h"

namespace rudder::exec {
namespace {

using tensor::DType;

// `pattern` windowed layers to each one without a window, as Gemma 3.
model::ModelSpec windowed_spec(int32_t num_layers, int32_t pattern, int32_t kv_heads,
                               int32_t head_dim, int32_t window) {
  model::ModelSpec spec = testing::tiny_spec(testing::TinyArch::kSandwich);
  model::LayerSpec layer = spec.layers[0];
  model::Attention& attention = *model::attention_of(layer);
  attention.num_heads = 2 * kv_heads;
  attention.num_kv_heads = kv_heads;
  attention.head_dim = head_dim;
  spec.layers.clear();
  for (int32_t i = 0; i < num_layers; ++i) {
    attention.window = (i + 1) % (pattern + 1) == 0 ? 0 : window;
    spec.layers.push_back(layer);
  }
  spec.max_positions = 131072;
  return spec;
}

KvLayoutAsk ask_of(int32_t max_seq_len, int32_t lookback = 0) {
  return {.kv = {DType::kBF16}, .block_size = 16, .max_seq_len = max_seq_len, .lookback = lookback};
}

std::vector<step::KvGroup> groups_of(const model::ModelSpec& spec, const KvLayoutAsk& ask) {
  const KvLayout layout = make_kv_layout(spec, ask).value();
  return {layout.groups.begin(), layout.groups.end()};
}

TEST(KvLayout, LayersThatAreAlikeMakeOneGroup) {
  const model::ModelSpec spec = testing::tiny_spec(testing::TinyArch::kPreNorm);
  const KvLayout layout = make_kv_layout(spec, ask_of(512)).value();
  EXPECT_EQ(layout.groups, step::KvGroups(std::vector<step::KvGroup>{{.window = 0, .layers = 3}}));
  EXPECT_EQ(layout.block_bytes, 3 * 2 * 2 * 16 * 16 * 2);  // layers, k+v, heads, dim, block, bf16
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(layout.layers[static_cast<size_t>(i)].group, 0);
    EXPECT_EQ(layout.layers[static_cast<size_t>(i)].index, i);
  }
}

TEST(KvLayout, GroupsAreThoseThatTakeTheFewestBytes) {
  // Gemma 3 4B: 29 layers with a window, 5 without.
  const std::vector<step::KvGroup> small =
      groups_of(windowed_spec(34, 5, 4, 256, 1024), ask_of(131072));
  ASSERT_EQ(small.size(), 7u);
  EXPECT_EQ(small[0], (step::KvGroup{.window = 1024, .layers = 5}));
  EXPECT_EQ(small[5], small[0]);
  EXPECT_EQ(small[6], (step::KvGroup{.window = 0, .layers = 5}));
  // 27B: 52 and 10.
  const std::vector<step::KvGroup> large =
      groups_of(windowed_spec(62, 5, 16, 128, 1024), ask_of(131072));
  ASSERT_EQ(large.size(), 7u);
  EXPECT_EQ(large[6], (step::KvGroup{.window = 0, .layers = 10}));
  // Gemma 2: every other layer.
  EXPECT_EQ(groups_of(windowed_spec(26, 1, 4, 256, 4096), ask_of(8192)),
            (std::vector<step::KvGroup>{{4096, 13}, {0, 13}}));
  // Mistral: all of them.
  EXPECT_EQ(groups_of(windowed_spec(32, 1000, 8, 128, 4096), ask_of(32768)),
            (std::vector<step::KvGroup>{{4096, 32}}));
  // A window that no sequence is longer than is none.
  EXPECT_EQ(groups_of(windowed_spec(34, 5, 4, 256, 1024), ask_of(1024)),
            (std::vector<step::KvGroup>{{0, 34}}));
  // A backend that reads before the window.
  EXPECT_EQ(groups_of(windowed_spec(26, 1, 4, 256, 4096), ask_of(8192, 128))[0].window, 4224);
}

// A block holds twice as many layers of half the bytes.
TEST(KvLayout, BlocksOfAllGroupsHaveTheSameBytes) {
  model::ModelSpec spec = windowed_spec(12, 2, 4, 64, 100);
  for (size_t i = 0; i < spec.layers.size(); i += 2)
    model::attention_of(spec.layers[i])->num_kv_heads = 2;
  for (size_t i = 0; i < spec.layers.size(); i += 5)
    model::attention_of(spec.layers[i])->head_dim = 192;
  const KvLayout layout = make_kv_layout(spec, ask_of(4096)).value();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const model::KvGeometry a = model::kv_geometry(spec.layers[i]);
    const KvLayerIndex& at = layout.layers[i];
    const step::KvGroup& group = layout.groups[static_cast<size_t>(at.group)];
    EXPECT_EQ(group.window, a.window);
    EXPECT_LT(at.index, group.layers);
    EXPECT_EQ(layout.block_bytes, int64_t{group.layers} * 2 * a.num_kv_heads * a.head_dim * 16 * 2);
  }
}

// Every byte of the pool is of one block of one layer, and those of one block of a group are one
// piece of memory.
TEST(KvLayout, ABlockOfAGroupIsOnePieceOfMemory) {
  const model::ModelSpec spec = windowed_spec(7, 2, 1, 16, 100);
  const KvLayout layout = make_kv_layout(spec, ask_of(4096)).value();
  constexpr int64_t kBlocks = 5;
  std::vector<std::byte> memory(static_cast<size_t>(kBlocks * layout.block_bytes));
  const ops::View pool{memory.data(), DType::kU8, {kBlocks, layout.block_bytes}};
  std::set<std::pair<int32_t, int64_t>> used;  // group, offset in a block
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const ops::KvLayer kv =
        layer_kv(layout, model::kv_geometry(spec.layers[i]), i, 16, {DType::kBF16}, pool);
    const int32_t layers = layout.groups[static_cast<size_t>(kv.group)].layers;
    const auto layer_bytes = static_cast<int64_t>(kv.storage.rows(0, 1).bytes());
    for (int64_t block = 0; block < kBlocks; ++block) {
      const auto* begin = static_cast<const std::byte*>(kv.storage.rows(block * layers, 1).data);
      const int64_t offset = begin - memory.data() - block * layout.block_bytes;
      EXPECT_GE(offset, 0);
      EXPECT_LE(offset + layer_bytes, layout.block_bytes);
      EXPECT_EQ(offset % layer_bytes, 0);
      EXPECT_EQ(used.emplace(kv.group, offset).second, block == 0);
    }
  }
  EXPECT_EQ(used.size(), spec.layers.size());
}

// Scales of tokens lie in front of all blocks, evenly apart for the layers of each group, whose
// shapes may differ; keys and values are laid out as without them.
TEST(KvLayout, ScalesOfTokensOverlapNothing) {
  model::ModelSpec spec = windowed_spec(12, 2, 4, 64, 100);
  for (size_t i = 0; i < spec.layers.size(); i += 2) {
    model::attention_of(spec.layers[i])->head_dim = 128;
  }
  KvLayoutAsk ask = ask_of(4096);
  ask.kv = {DType::kI8};
  const KvLayout plain = make_kv_layout(spec, ask).value();
  ask.kv = ops::kInt8TokenKv;
  const KvLayout layout = make_kv_layout(spec, ask).value();
  EXPECT_EQ(plain.scale_bytes, 0);
  EXPECT_EQ(layout.groups, plain.groups);
  EXPECT_EQ(layout.number_bytes(), plain.block_bytes);
  constexpr int64_t kBlocks = 5;
  std::vector<std::byte> memory(static_cast<size_t>(kBlocks * layout.block_bytes));
  const ops::View pool{memory.data(), DType::kU8, {kBlocks, layout.block_bytes}};
  // Of each group, the bytes that a layer's part of a block has; blocks are shared among groups.
  std::vector<std::map<int64_t, int64_t>> used(static_cast<size_t>(layout.groups.size()));
  int64_t of_rows = 0;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const model::KvGeometry geometry = model::kv_geometry(spec.layers[i]);
    const ops::KvLayer kv = layer_kv(layout, geometry, i, 16, ops::kInt8TokenKv, pool);
    EXPECT_EQ(kv.format(), ops::kInt8TokenKv);
    const step::KvGroup& group = layout.groups[static_cast<size_t>(kv.group)];
    const int64_t scales = int64_t{2} * geometry.num_kv_heads * 16;
    EXPECT_GE(kv.token_scales.shape[1], scales);
    of_rows = std::max(of_rows, group.layers * scales * 4);
    for (int64_t block = 0; block < kBlocks; ++block) {
      const auto note = [&](const ops::View& view, int64_t bytes) {
        const int64_t begin =
            static_cast<const std::byte*>(view.rows(block * group.layers, 1).data) - memory.data();
        EXPECT_EQ(begin % 16, 0);
        const bool is_new = used[static_cast<size_t>(kv.group)].emplace(begin, bytes).second;
        EXPECT_TRUE(is_new);
      };
      note(kv.token_scales, scales * 4);
      note(kv.storage, static_cast<int64_t>(kv.storage.rows(0, 1).bytes()));
    }
  }
  for (const auto& pieces : used) {
    int64_t end = 0;
    for (const auto& [begin, bytes] : pieces) {
      EXPECT_GE(begin, end);
      end = begin + bytes;
    }
    EXPECT_LE(end, std::ssize(memory));
  }
  EXPECT_LE(of_rows, layout.scale_bytes);
  EXPECT_LT(layout.scale_bytes, 2 * of_rows);
  // A stage's part has room for its layers' scales too.
  const KvLayout part =
      stage_kv_layout(layout, {.index = 1, .count = 2, .first_layer = 7, .num_layers = 5});
  EXPECT_GT(part.scale_bytes, 0);
  EXPECT_LT(part.block_bytes, layout.block_bytes);
}

TEST(KvLayout, MoreKindsThanGroupsAreRefused) {
  model::ModelSpec spec = windowed_spec(9, 1000, 1, 16, 100);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    model::attention_of(spec.layers[i])->window = 100 + static_cast<int32_t>(i);
  }
  const auto layout = make_kv_layout(spec, ask_of(4096));
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(layout.error().where, "config.json");
}

// What a sequence takes, with a table for each group and with one for all layers.
TEST(KvLayout, BytesOfASequence) {
  struct Case {
    const char* name;
    model::ModelSpec spec;
    double before_8k, after_8k, before_32k, after_32k;  // MiB
  };
  const Case cases[] = {
      {"Gemma 3 4B", windowed_spec(34, 5, 4, 256, 1024), 1088, 282, 4352, 762},
      {"Gemma 3 27B", windowed_spec(62, 5, 16, 128, 1024), 3968, 1128, 15872, 3047},
  };
  for (const Case& c : cases) {
    MemoryBudget grouped;
    grouped.block_size = 16;
    grouped.kv = make_kv_layout(c.spec, ask_of(c.spec.max_positions)).value();
    model::ModelSpec all = c.spec;
    for (model::LayerSpec& layer : all.layers) model::attention_of(layer)->window = 0;
    MemoryBudget plain;
    plain.block_size = 16;
    plain.kv = make_kv_layout(all, ask_of(all.max_positions)).value();
    const auto mib = [](const MemoryBudget& budget, int64_t tokens) {
      return static_cast<double>(budget.kv_bytes_of(tokens)) / (1 << 20);
    };
    fmt::print("{}: 8k {:.1f} -> {:.1f} MiB, 32k {:.1f} -> {:.1f} MiB\n", c.name, mib(plain, 8192),
               mib(grouped, 8192), mib(plain, 32768), mib(grouped, 32768));
    EXPECT_NEAR(mib(plain, 8192), c.before_8k, 1);
    EXPECT_NEAR(mib(grouped, 8192), c.after_8k, 1);
    EXPECT_NEAR(mib(plain, 32768), c.before_32k, 1);
    EXPECT_NEAR(mib(grouped, 32768), c.after_32k, 1);
  }
}

// Gemma 4 E2B: 15 of 35 layers have KV, each fifth without a window.
TEST(KvLayout, LayersThatShareKvAreCountedOnce) {
  const auto config =
      weights::HfConfig::parse(*model::make_model_config("gemma-4-e2b"), "config.json");
  const model::ModelSpec spec = *model::read_config(*config);
  MemoryBudget budget;
  budget.block_size = 16;
  budget.kv = *make_kv_layout(spec, ask_of(131072));
  for (size_t i = 15; i < 35; ++i) {
    const size_t source = (i + 1) % 5 == 0 ? 14 : 13;
    EXPECT_EQ(budget.kv.layers[i].group, budget.kv.layers[source].group) << i;
    EXPECT_EQ(budget.kv.layers[i].index, budget.kv.layers[source].index) << i;
  }
  for (const int64_t tokens : {300, 1024, 8192, 131072}) {
    const int64_t of_window = std::min<int64_t>(tokens, 512) * 2 * 256 * 2;
    const int64_t of_all = tokens * 2 * 512 * 2;
    EXPECT_EQ(budget.kept_bytes_of(tokens), 12 * of_window + 3 * of_all) << tokens;
    EXPECT_GE(budget.kv_bytes_of(tokens), budget.kept_bytes_of(tokens));
  }
}

}  // namespace
}  // namespace rudder::exec
