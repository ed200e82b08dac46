// Trees of drafts: attention of a token is that of its path as a sequence, and keep_paths leaves
// the cache as if the path that was sampled had been one.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "rudder/ops/sample_row.h"
#include "rudder/testing/ops_conformance_trees.h"

namespace rudder::testing {

using tensor::DType;
using tensor::View;

namespace {

constexpr int64_t kBases[] = {1, 7, 15, 16, 17, 31, 48, 63, 64, 65, 90};
constexpr int64_t kTreeSizes[] = {2, 3, 5, 9, 16, 17, 33, 64};
constexpr int64_t kLongest = 90 + 64;  // of a tree and what is before it

std::vector<int64_t> path_to(const std::vector<int32_t>& parents, int64_t token) {
  std::vector<int64_t> path;
  for (; token >= 0; token = parents[static_cast<size_t>(token)]) path.push_back(token);
  std::ranges::reverse(path);
  return path;
}

}  // namespace

AttentionShape OpsTrees::tree_shape() {
  AttentionShape shape = fuzzed_shape();
  shape.window = 0;
  shape.gate_length = 0;
  return shape;
}

std::vector<int32_t> OpsTrees::random_parents(int64_t count) {
  std::vector<int32_t> parents = {-1};
  const bool is_deep = between(0, 1) == 0;
  for (int64_t i = 1; i < count; ++i) {
    const int64_t first = is_deep ? std::max<int64_t>(0, i - 3) : 0;
    parents.push_back(static_cast<int32_t>(between(first, i - 1)));
  }
  return parents;
}

OpsTrees::Sequence OpsTrees::sequence_of(Layer& layer, const Sequence& from, int64_t base,
                                         const std::vector<int64_t>& path, int64_t more) {
  const int64_t length = base + std::ssize(path);
  Sequence sequence = make_sequence(layer, length + more);
  const auto bytes = static_cast<size_t>(from.qkv.view().shape[1]) * tensor::dtype_bytes(act_);
  std::byte* const to = sequence.qkv.values<std::byte>().data();
  const std::byte* const read = from.qkv.bytes().data();
  for (int64_t i = 0; i < length; ++i) {
    const int64_t at = i < base ? i : base + path[static_cast<size_t>(i - base)];
    std::memcpy(to + static_cast<size_t>(i) * bytes, read + static_cast<size_t>(at) * bytes, bytes);
  }
  return sequence;
}

namespace {

TEST_P(OpsTrees, ATokenSeesItsPath) {
  if (ops_.tree_ops() == nullptr) GTEST_SKIP() << "it takes no trees";
  for (int round = 0; round < 6; ++round) {
    Layer layer = make_layer(tree_shape(), 40 + 20 + 33 + 2 * kLongest);
    const int64_t base = pick(kBases);
    const std::vector<int32_t> parents = random_parents(pick(kTreeSizes));
    const int64_t count = std::ssize(parents);
    // Beside a prompt, a chain of drafts and a lone token.
    std::vector<Sequence> sequences;
    for (const int64_t length : {int64_t{40}, base + count, int64_t{20}, int64_t{33}}) {
      sequences.push_back(make_sequence(layer, length));
    }
    const int64_t history[] = {0, base, 15, 32};
    const int64_t q_lens[] = {40, count, 5, 1};
    run_step(layer, sequences, history);
    const std::vector<int32_t> trees[] = {{}, parents, {}, {}};
    const View out = run_step(layer, sequences, q_lens, round % 2, trees);
    const View q = last_args_.q;
    for (int64_t token = 0; token < count; token += between(1, 4)) {
      const std::vector<int64_t> path = path_to(parents, token);
      const std::string what = "round " + std::to_string(round) + ": token " +
                               std::to_string(token) + " of " + std::to_string(count) + " behind " +
                               std::to_string(base);
      std::vector<Sequence> chain;
      chain.push_back(sequence_of(layer, sequences[1], base, path));
      const int64_t position = base + std::ssize(path) - 1;
      const View row = out.rows(40 + token, 1);
      const View row_q = q.rows(40 + token, 1);
      expect_formula(row, row_q, layer, chain[0], position + 1, what, kOfMany);
      if (token % 2 == 0 || token + 1 == count) {  // as plain decoding
        run_step(layer, chain, std::span(&position, 1));
        const int64_t one = 1;
        expect_same_attention(row, run_step(layer, chain, std::span(&one, 1)), row_q, layer,
                              chain[0], position + 1, what);
      }
      layer.free_blocks.insert(layer.free_blocks.begin(), chain[0].blocks.begin(),
                               chain[0].blocks.end());
    }
    int64_t row = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      const int64_t end = history[s] + q_lens[s];
      if (s != 1) {
        expect_formula(out.rows(row, q_lens[s]), q.rows(row, q_lens[s]), layer, sequences[s], end,
                       "beside it", kOfMany);
      }
      row += q_lens[s];
    }
  }
}

// What lies beside the KV of a tree's tokens, in the blocks of a group of several layers.
TEST_P(OpsTrees, RowsBesideKeptPathsMoveWithThem) {
  if (ops_.tree_ops() == nullptr) GTEST_SKIP() << "it keeps no rows";
  constexpr int32_t kGroupLayers = 3;
  for (int round = 0; round < 6; ++round) {
    Layer layer = make_layer(tree_shape(), 16);
    const int64_t size = layer.kv.block_size;
    const int64_t base = pick(kBases);
    const std::vector<int32_t> parents = random_parents(pick(kTreeSizes));
    const int64_t count = std::ssize(parents);
    const std::vector<int64_t> path = path_to(parents, between(0, count - 1));
    // A chain of drafts in front, whose rows stay where they are.
    constexpr int64_t kChain = 4;
    const int64_t num_blocks = (base + count) / size + 1;
    std::vector<int32_t> tables[2];  // of the group's blocks
    for (int32_t block = 0; block < 2 * num_blocks; ++block) {
      tables[block % 2].insert(tables[block % 2].begin(), block);
    }
    std::vector<int32_t> blocks;
    for (const std::vector<int32_t>& table : tables) {
      for (const int32_t block : table) blocks.push_back(block * kGroupLayers);
    }
    std::vector<uint64_t> ancestors(kChain, 0);
    for (int64_t i = 0; i < count; ++i) {
      uint64_t seen = 0;
      for (const int64_t token : path_to(parents, i)) seen |= uint64_t{1} << token;
      ancestors.push_back(seen);
    }
    std::vector<int32_t> logits_rows;
    std::vector<ops::SampledToken> sampled;
    for (int64_t i = 0; i < kChain + count; ++i) {
      logits_rows.push_back(static_cast<int32_t>(i));
      const bool is_sampled = i < kChain || std::ranges::binary_search(path, i - kChain);
      sampled.push_back(
          {.token = 5, .end = is_sampled ? ops::SampleEnd::kNone : ops::SampleEnd::kRejected});
    }
    constexpr int64_t kWidth = 6;
    std::vector<float> rows(static_cast<size_t>(2 * num_blocks * size * kWidth));
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t row = i / kWidth;
      rows[i] = static_cast<float>(row * 8 + i % 6);
    }
    const View beside =
        device_.put_as(std::span<const float>(rows), DType::kF32, {2 * num_blocks * size, kWidth});
    const std::vector<int32_t> q_begin = {0, kChain, static_cast<int32_t>(kChain + count)};
    const std::vector<int32_t> kv_len = {kChain, static_cast<int32_t>(base + count)};
    const ops::AttentionBatch batch = {
        .q_begin = device_.put(q_begin),
        .kv_len = device_.put(kv_len),
        .table_row = device_.put(std::vector<int32_t>{0, 1}),
        .block_table =
            device_.put_as(std::span<const int32_t>(blocks), DType::kI32, {2, num_blocks}),
        .max_q_len = static_cast<int32_t>(std::max(kChain, count)),
        .max_kv_len = static_cast<int32_t>(base + count),
        .group_rows = 2,
        .ancestors = device_.put_as(std::span<const uint64_t>(ancestors), DType::kI64,
                                    {std::ssize(ancestors)})};
    ops_.tree_ops()->keep_paths(
        {.batch = batch,
         .logits_rows = device_.put(logits_rows),
         .sampled = device_.put_as(std::span<const ops::SampledToken>(sampled), DType::kI32,
                                   {std::ssize(sampled), 4}),
         .layers = {},
         .beside = {.rows = beside,
                    .block_size = static_cast<int32_t>(size),
                    .group_layers = kGroupLayers}});
    const auto row_at = [&](int64_t offset) {
      return tables[1][static_cast<size_t>(offset / size)] * size + offset % size;
    };
    std::vector<float> expected = rows;
    for (size_t i = 0; i < path.size(); ++i) {
      std::copy_n(rows.begin() + row_at(base + path[i]) * kWidth, kWidth,
                  expected.begin() + row_at(base + static_cast<int64_t>(i)) * kWidth);
    }
    const HostTensor got = device_.get(beside);
    EXPECT_EQ(std::memcmp(got.bytes().data(), expected.data(), got.bytes().size()), 0)
        << "round " << round << ": " << path.size() << " of " << count << " behind " << base;
  }
}

TEST_P(OpsTrees, KeptPathsAreChains) {
  if (ops_.tree_ops() == nullptr) GTEST_SKIP() << "it takes no trees";
  for (int round = 0; round < 12; ++round) {
    Layer layer = make_layer(tree_shape(), 40 + 2 * (kLongest + 3));
    const int64_t base = pick(kBases);
    const std::vector<int32_t> parents = random_parents(pick(kTreeSizes));
    const int64_t count = std::ssize(parents);
    const std::vector<int64_t> path = path_to(parents, between(0, count - 1));
    const auto length = static_cast<int64_t>(path.size());
    std::vector<Sequence> sequences;
    sequences.push_back(make_sequence(layer, 40));
    sequences.push_back(make_sequence(layer, base + count + 3));
    const int64_t history[] = {0, base};
    const int64_t q_lens[] = {37, count};
    run_step(layer, sequences, history);
    const std::vector<int32_t> trees[] = {{}, parents};
    run_step(layer, sequences, q_lens, 0, trees);

    // Of the first sequence the last token alone was sampled; the tree's are behind it.
    std::vector<int32_t> logits_rows = {36};
    std::vector<ops::SampledToken> sampled = {{.token = 5}};
    const bool has_ended = round % 4 == 3;
    for (int64_t i = 0; i < count; ++i) {
      logits_rows.push_back(static_cast<int32_t>(37 + i));
      const bool is_sampled = !has_ended && std::ranges::binary_search(path, i);
      const auto end = i == 0 && has_ended ? ops::SampleEnd::kMasked : ops::SampleEnd::kRejected;
      sampled.push_back({.token = 5, .end = is_sampled ? ops::SampleEnd::kNone : end});
    }
    const HostTensor before = device_.get(layer.kv.storage);
    const ops::KvLayer layers[] = {last_args_.kv};
    ops_.tree_ops()->keep_paths(
        {.batch = last_batch_,
         .logits_rows = device_.put(logits_rows),
         .sampled = device_.put_as(std::span<const ops::SampledToken>(sampled), DType::kI32,
                                   {std::ssize(sampled), 4}),
         .layers = layers});
    if (has_ended) {
      EXPECT_TRUE(std::ranges::equal(before.bytes(), device_.get(layer.kv.storage).bytes()));
      continue;
    }
    // Both go on, the second as its path.
    Sequence chain = sequence_of(layer, sequences[1], base, path, 3);
    sequences[1].qkv = chain.qkv;
    sequences[1].done = base + length;
    std::vector<Sequence> plain;
    plain.push_back(std::move(chain));
    const int64_t all = base + length;
    run_step(layer, plain, std::span(&all, 1));
    const int64_t three = 3;
    const View as_chain = run_step(layer, plain, std::span(&three, 1));
    const int64_t next[] = {3, 3};
    const View out = run_step(layer, sequences, next);
    const std::string what = "round " + std::to_string(round) + ": " + std::to_string(length) +
                             " of " + std::to_string(count) + " behind " + std::to_string(base);
    const View q = last_args_.q;
    const int64_t end = base + length + 3;
    expect_same_attention(out.rows(3, 3), as_chain, q.rows(3, 3), layer, sequences[1], end, what);
    expect_formula(out.rows(0, 3), q.rows(0, 3), layer, sequences[0], 40, what + ", beside it",
                   kOfMany);
    expect_formula(out.rows(3, 3), q.rows(3, 3), layer, sequences[1], end, what, kOfMany);
  }
}

}  // namespace
}  // namespace rudder::testing
