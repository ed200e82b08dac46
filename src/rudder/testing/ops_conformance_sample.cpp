// sample against the CPU's own sampler, which is held to the definition by cpu/sample_test: random
// rows of every kind, and what each leaves behind in its slot.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "rudder/cpu/sample.h"
#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/sample_batch.h"
#include "rudder/testing/sampled_tokens.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::Shape;

std::string describe(const ops::SampleRow& row, int64_t vocab) {
  return "vocabulary " + std::to_string(vocab) + ", temperature " +
         std::to_string(row.temperature) + ", top_k " + std::to_string(row.top_k) + ", top_p " +
         std::to_string(row.top_p) + ", min_p " + std::to_string(row.min_p) + ", penalties " +
         std::to_string(row.has_penalties) + ", biases " + std::to_string(row.num_bias) +
         ", mask " + std::to_string(row.mask_row);
}

void copy_row(size_t r, const SampleBatch& from, SampleBatch& to) {
  const auto slot = static_cast<size_t>(from.rows[r].slot);
  to.carry[slot] = from.carry[slot];
  to.carry_position[slot] = from.carry_position[slot];
  to.ended[slot] = from.ended[slot];
  const auto begin = static_cast<std::ptrdiff_t>(slot) * from.vocab;
  std::copy_n(from.output_count.begin() + begin, from.vocab, to.output_count.begin() + begin);
}

// Runs the batch on the backend and on the CPU and compares; returns how many rows drew another
// token than the CPU's.
int compare_samples(Device& device, SampleBatch batch) {
  SampleBatch expected = batch;
  cpu::sample_rows(expected.args(on_host));
  const auto on_device = [&](auto& values, DType dtype, Shape shape) {
    return device.put_as(
        std::span<const typename std::decay_t<decltype(values)>::value_type>(values), dtype, shape);
  };
  const ops::SampleArgs args = batch.args(on_device);
  device.ops().sample(args);
  batch.sampled = device.values<ops::SampledToken>(args.sampled);
  batch.top = device.values<ops::TopLogprob>(args.top);
  batch.carry = device.values<int32_t>(args.state.carry);
  batch.carry_position = device.values<int32_t>(args.state.carry_position);
  batch.ended = device.values<int32_t>(args.state.ended);
  batch.output_count = device.values<int32_t>(args.state.output_count);
  int differing = 0;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    const ops::SampleRow& row = batch.rows[r];
    if (row.slot == batch.num_slots) continue;
    if (batch.sampled[r].token != expected.sampled[r].token && batch.sampled[r].token >= 0 &&
        expected.sampled[r].token >= 0 && row.temperature > 0) {
      ++differing;
      copy_row(r, expected, batch);  // compared no further
      while (batch.rows[r].draft >= 0) ++r;
      while (r + 1 < batch.rows.size() && batch.rows[r + 1].parent_up > 0) ++r;
      continue;
    }
    SCOPED_TRACE(describe(row, batch.vocab));
    if (row.num_logprobs >= 0 && expected.sampled[r].token >= 0) {
      EXPECT_TRUE(std::isfinite(expected.sampled[r].logprob)) << "of a token that was drawn";
    }
    expect_same_token(r, row.num_logprobs, {batch.sampled, batch.top},
                      {expected.sampled, expected.top});
  }
  EXPECT_EQ(batch.carry, expected.carry);
  EXPECT_EQ(batch.carry_position, expected.carry_position);
  EXPECT_EQ(batch.ended, expected.ended);
  EXPECT_EQ(batch.output_count, expected.output_count);
  return differing;
}

TEST_P(OpsConformance, SampleAgreesWithTheCpu) {
  SampleBatchMaker maker(random_);
  for (const SampleKind kind :
       {SampleKind::kPlainGreedy, SampleKind::kPlain, SampleKind::kEverything}) {
    for (const int64_t vocab : {1, 17, 160})
      EXPECT_EQ(compare_samples(device_, maker.make(kind, 4, vocab)), 0);
  }
}

TEST_P(OpsConformance, SampleManyAgreesWithTheCpu) {
  SampleBatchMaker maker(random_);
  int rows = 0;
  int differing = 0;
  for (const SampleKind kind :
       {SampleKind::kPlainGreedy, SampleKind::kPlain, SampleKind::kEverything}) {
    for (const int64_t vocab : {1, 17, 160, 1003, 5000}) {
      for (const int64_t num_rows : {1, 2, 33, 100}) {
        differing += compare_samples(device_, maker.make(kind, num_rows, vocab));
        rows += static_cast<int>(num_rows);
      }
    }
  }
  EXPECT_GE(rows, 2000);
  EXPECT_LE(differing, rows / 2000);  // a draw may fall within rounding of a border
}

TEST_P(OpsConformance, SampleAtFullVocabulary) {
  SampleBatchMaker maker(random_);
  for (const int64_t vocab : {32003, 151936}) {
    EXPECT_EQ(compare_samples(device_, maker.make(SampleKind::kPlainGreedy, 5, vocab)), 0);
    EXPECT_LE(compare_samples(device_, maker.make(SampleKind::kEverything, 9, vocab)), 1);
  }
}

// Vocabularies that end within a word of the mask, rows with and without one side by side, of every
// kind; greedy ones take a kernel of their own where nothing else is asked.
TEST_P(OpsConformance, SampleUnderMasks) {
  SampleBatchMaker maker(random_);
  for (const SampleKind kind :
       {SampleKind::kPlainGreedy, SampleKind::kPlain, SampleKind::kEverything}) {
    for (const int64_t vocab : {1, 31, 32, 33, 160}) {
      EXPECT_EQ(compare_samples(device_, maker.make(kind, 3, vocab, true)), 0);
    }
  }
}

TEST_P(OpsConformance, SampleManyUnderMasks) {
  SampleBatchMaker maker(random_);
  int rows = 0;
  int differing = 0;
  for (const SampleKind kind :
       {SampleKind::kPlainGreedy, SampleKind::kPlain, SampleKind::kEverything}) {
    for (const int64_t vocab : {1, 31, 32, 33, 160, 1003, 5000}) {
      for (const int64_t num_rows : {1, 33, 100, 300}) {
        differing += compare_samples(device_, maker.make(kind, num_rows, vocab, true));
        rows += static_cast<int>(num_rows);
      }
    }
  }
  for (const int64_t vocab : {32003, 151936}) {
    EXPECT_EQ(compare_samples(device_, maker.make(SampleKind::kPlainGreedy, 9, vocab, true)), 0);
    differing += compare_samples(device_, maker.make(SampleKind::kEverything, 9, vocab, true));
  }
  EXPECT_LE(differing, rows / 2000);
}

// Drafts of every sampling, with and without masks; chains longer than a warp too.
TEST_P(OpsConformance, SampleVerifiesDrafts) {
  SampleBatchMaker maker(random_);
  int rows = 0;
  int accepted = 0;
  int rejected = 0;
  int differing = 0;
  for (const SampleKind kind :
       {SampleKind::kPlainGreedy, SampleKind::kPlain, SampleKind::kEverything}) {
    for (const int64_t vocab : {1, 5, 33, 160, 1003}) {
      for (const int32_t longest : {2, 9, 70}) {
        for (const bool has_masks : {false, true}) {
          const SampleBatch batch = maker.make_chains(kind, 80, vocab, longest, has_masks);
          SampleBatch sampled = batch;
          cpu::sample_rows(sampled.args(on_host));
          for (const ops::SampledToken& token : sampled.sampled) {
            rejected += token.end == ops::SampleEnd::kRejected ? 1 : 0;
          }
          for (size_t r = 0; r < batch.rows.size(); ++r) {
            accepted += batch.rows[r].num_behind > 0 && sampled.sampled[r].token >= 0 ? 1 : 0;
          }
          rows += static_cast<int>(batch.num_rows());
          differing += compare_samples(device_, batch);
        }
      }
    }
  }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(rejected, 1000);
  EXPECT_LE(differing, rows / 2000);
}

// Row `leaf` of a tree and those that it follows, as a chain in a call of its own.
SampleBatch chain_to(const SampleBatch& tree, size_t leaf, std::vector<size_t>* path) {
  path->assign(1, leaf);
  while (tree.rows[path->back()].parent_up > 0) {
    path->push_back(path->back() - static_cast<size_t>(tree.rows[path->back()].parent_up));
  }
  std::ranges::reverse(*path);
  SampleBatch chain = tree;
  chain.rows.clear();
  chain.logits.clear();
  for (size_t i = 0; i < path->size(); ++i) {
    const size_t r = (*path)[i];
    const auto begin = tree.logits.begin() + static_cast<std::ptrdiff_t>(r) * tree.vocab;
    chain.logits.insert(chain.logits.end(), begin, begin + tree.vocab);
    ops::SampleRow& row = chain.rows.emplace_back(tree.rows[r]);
    row.parent_up = 0;
    row.own_draft = -1;
    row.num_behind = static_cast<int32_t>(i);
    if (i > 0) chain.rows[i - 1].draft = tree.rows[r].own_draft;
  }
  chain.sampled.resize(chain.rows.size());
  chain.top.resize(chain.rows.size() * kMaxLogprobs);
  return chain;
}

// Rows of a tree give what the chains of its paths give, on the CPU bit for bit, and no others give
// a token.
TEST_P(OpsConformance, SampleVerifiesTrees) {
  if (ops_.tree_ops() == nullptr) GTEST_SKIP() << "it takes no trees";
  SampleBatchMaker maker(random_);
  int rows = 0;
  int differing = 0;
  int accepted = 0;
  int branched = 0;  // of them, those that are no first child
  for (const SampleKind kind :
       {SampleKind::kPlainGreedy, SampleKind::kPlain, SampleKind::kEverything}) {
    for (const int64_t vocab : {2, 5, 33, 160}) {
      for (const bool has_masks : {false, true}) {
        SampleBatch batch = maker.make_trees(kind, 240, vocab, 63, has_masks);
        rows += static_cast<int>(batch.num_rows());
        differing += compare_samples(device_, batch);
        SampleBatch tree = batch;
        cpu::sample_rows(tree.args(on_host));
        std::vector<bool> is_on_path(batch.rows.size(), false);
        for (size_t leaf = 0; leaf < batch.rows.size(); ++leaf) {
          if (batch.rows[leaf].slot == batch.num_slots) continue;
          std::vector<size_t> path;
          SampleBatch chain = chain_to(batch, leaf, &path);
          cpu::sample_rows(chain.args(on_host));
          for (size_t i = 0; i < path.size(); ++i) {
            if (chain.sampled[i].end == ops::SampleEnd::kRejected) break;
            is_on_path[path[i]] = true;
            const int32_t num_logprobs = batch.rows[path[i]].num_logprobs;
            EXPECT_EQ(tree.sampled[path[i]].token, chain.sampled[i].token);
            EXPECT_EQ(tree.sampled[path[i]].end, chain.sampled[i].end);
            if (num_logprobs >= 0 && chain.sampled[i].token >= 0) {
              EXPECT_EQ(tree.sampled[path[i]].logprob, chain.sampled[i].logprob);
            }
          }
        }
        for (size_t r = 0; r < batch.rows.size(); ++r) {
          if (batch.rows[r].slot == batch.num_slots) continue;
          EXPECT_EQ(tree.sampled[r].end != ops::SampleEnd::kRejected, is_on_path[r]) << r;
          const bool has_token = tree.sampled[r].token >= 0;
          EXPECT_TRUE(is_on_path[r] || !has_token) << r;
          const bool is_draft = is_on_path[r] && batch.rows[r].parent_up > 0;
          accepted += is_draft ? 1 : 0;
          branched += is_draft && batch.rows[r].parent_up > 1 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(branched, 100);
  EXPECT_LE(differing, rows / 2000);
}

// As from a captured step: the flags say that anything may come.
TEST_P(OpsConformance, SampleFlagsAreNoMoreThanHints) {
  SampleBatchMaker maker(random_);
  for (const SampleKind kind : {SampleKind::kPlainGreedy, SampleKind::kPlain}) {
    SampleBatch batch = maker.make(kind, 33, 1003);
    batch.all_greedy = false;
    batch.any_logprobs = true;
    batch.any_changed = true;
    batch.any_masked = true;
    batch.any_drafts = true;
    EXPECT_LE(compare_samples(device_, batch), 1);
  }
}

}  // namespace
}  // namespace rudder::testing
