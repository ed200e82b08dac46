// sample against the CPU's own sampler, which is held to the definition by cpu/sample_test: random
// rows of every kind, and what each leaves behind in its slot.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "rudder/cpu/sample.h"
#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/sampled_tokens.h"

namespace rudder::testing {
namespace {

using tensor::DType;
using tensor::Shape;
using tensor::View;

// All that one call reads and writes, on the host.
struct Batch {
  int64_t num_slots = 0;
  int64_t vocab = 0;
  std::vector<float> logits;
  std::vector<ops::SampleRow> rows;
  std::vector<int32_t> lists;
  std::vector<int32_t> masks;  // [num_masks, mask_words(vocab)]
  std::vector<int32_t> carry, carry_position, ended, output_count;
  std::vector<uint8_t> prompt_seen;
  std::vector<ops::SampledToken> sampled;
  std::vector<ops::TopLogprob> top;
  bool all_greedy = false;
  bool any_logprobs = true;
  bool any_changed = true;
  bool any_masked = true;
  bool any_drafts = false;

  int64_t num_rows() const { return std::ssize(rows); }
  int64_t mask_words() const { return (vocab + 31) / 32; }

  // The call over memory that `memory(values, dtype, shape)` gives.
  template <typename Memory>
  ops::SampleArgs args(Memory memory) {
    const int64_t n = num_rows();
    return {
        .logits = memory(logits, DType::kF32, Shape{n, vocab}),
        .rows = memory(rows, DType::kU8, Shape{n, sizeof(ops::SampleRow)}),
        .lists = memory(lists, DType::kI32, Shape{std::ssize(lists)}),
        .masks = memory(masks, DType::kI32, Shape{std::ssize(masks) / mask_words(), mask_words()}),
        .state = {.carry = memory(carry, DType::kI32, Shape{num_slots + 1}),
                  .carry_position = memory(carry_position, DType::kI32, Shape{num_slots + 1}),
                  .ended = memory(ended, DType::kI32, Shape{num_slots + 1}),
                  .block_table = {},
                  .output_count = memory(output_count, DType::kI32, Shape{num_slots + 1, vocab}),
                  .prompt_seen = memory(prompt_seen, DType::kU8, Shape{num_slots + 1, vocab})},
        .sampled = memory(sampled, DType::kI32, Shape{n, 4}),
        .top = memory(top, DType::kI32, Shape{n, kMaxLogprobs, 2}),
        .all_greedy = all_greedy,
        .any_logprobs = any_logprobs,
        .any_changed = any_changed,
        .any_masked = any_masked,
        .any_drafts = any_drafts};
  }
};

const auto on_host = [](auto& values, DType dtype, Shape shape) {
  return View{values.data(), dtype, shape};
};

enum class Kind { kPlainGreedy, kPlain, kEverything };

class BatchMaker {
 public:
  explicit BatchMaker(std::mt19937_64& random) : random_(random) {}

  // Rows in chains of up to `longest`, by drafts of which many are right.
  Batch make_chains(Kind kind, int64_t num_rows, int64_t vocab, int32_t longest, bool has_masks) {
    Batch batch = make(kind, num_rows, vocab, has_masks);
    for (size_t r = 1; r < batch.rows.size(); ++r) {
      const ops::SampleRow& before = batch.rows[r - 1];
      if (before.slot == batch.num_slots || before.num_behind + 1 >= longest || below(5) == 0) {
        continue;
      }
      const int32_t mask_row = batch.rows[r].mask_row;
      batch.rows[r] = before;
      batch.rows[r].position += 1;
      batch.rows[r].num_behind += 1;
      batch.rows[r].mask_row = mask_row;
      batch.rows[r - 1].draft = below(vocab);
    }
    batch.any_drafts = true;
    for (int32_t behind = 0; behind + 1 < longest; ++behind) set_right_drafts(behind, batch);
    return batch;
  }

  // Rows in trees of up to `most`, by drafts of which many are right; siblings are different ones.
  Batch make_trees(Kind kind, int64_t num_rows, int64_t vocab, int32_t most, bool has_masks) {
    Batch batch = make(kind, num_rows, vocab, has_masks);
    size_t first = 0;  // of the tree at hand
    for (size_t r = 1; r < batch.rows.size(); ++r) {
      const auto up = static_cast<size_t>(1 + below(static_cast<int64_t>(r - first)));
      const int32_t draft = below(vocab);
      const bool grows = batch.rows[first].slot != batch.num_slots && below(12) > 0 &&
                         r - first < static_cast<size_t>(most) &&
                         child_of(batch, r - up, r, draft) == r;
      if (!grows) {
        first = r;
        continue;
      }
      const int32_t mask_row = batch.rows[r].mask_row;
      batch.rows[r] = batch.rows[r - up];
      batch.rows[r].position += 1;
      batch.rows[r].mask_row = mask_row;
      batch.rows[r].parent_up = static_cast<int32_t>(up);
      batch.rows[r].own_draft = draft;
    }
    batch.any_drafts = true;
    for (int32_t round = 0; round < 6; ++round) set_right_children(batch);
    return batch;
  }
  // The row before `end` that follows `parent` by this draft; else `end`.
  static size_t child_of(const Batch& batch, size_t parent, size_t end, int32_t draft) {
    for (size_t r = parent + 1; r < end; ++r) {
      const auto up = static_cast<size_t>(batch.rows[r].parent_up);
      if (up > 0 && r - up == parent && batch.rows[r].own_draft == draft) return r;
    }
    return end;
  }

  Batch make(Kind kind, int64_t num_rows, int64_t vocab, bool has_masks = false) {
    Batch batch;
    batch.vocab = vocab;
    batch.num_slots = num_rows + 2;
    const auto state_rows = static_cast<size_t>(batch.num_slots + 1);
    batch.carry.assign(state_rows, -1);
    batch.carry_position.assign(state_rows, -1);
    batch.ended.assign(state_rows, 0);
    batch.output_count.resize(state_rows * static_cast<size_t>(vocab));
    batch.prompt_seen.resize(batch.output_count.size());
    for (int32_t& count : batch.output_count) count = below(8) == 0 ? 1 + below(3) : 0;
    for (uint8_t& seen : batch.prompt_seen) seen = below(4) == 0 ? 1 : 0;
    fill_logits(num_rows, batch);
    std::vector<int32_t> slots(static_cast<size_t>(batch.num_slots));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    std::shuffle(slots.begin(), slots.end(), random_);
    for (int64_t r = 0; r < num_rows; ++r) {
      batch.rows.push_back(make_row(kind, slots[static_cast<size_t>(r)], batch));
      if (has_masks && below(3) > 0) batch.rows.back().mask_row = add_mask(batch);
    }
    batch.sampled.resize(batch.rows.size());
    batch.top.resize(batch.rows.size() * kMaxLogprobs);
    batch.all_greedy = kind == Kind::kPlainGreedy;
    batch.any_logprobs = kind == Kind::kEverything;
    batch.any_changed = kind == Kind::kEverything;
    batch.any_masked = has_masks;
    return batch;
  }

 private:
  // Of the rows that have `behind` before them in their chain.
  void set_right_drafts(int32_t behind, Batch& batch) {
    Batch sampled = batch;
    cpu::sample_rows(sampled.args(on_host));
    for (size_t r = 0; r < batch.rows.size(); ++r) {
      ops::SampleRow& row = batch.rows[r];
      if (row.draft < 0 || row.num_behind != behind || sampled.sampled[r].token < 0) continue;
      if (below(4) > 0) row.draft = sampled.sampled[r].token;
    }
  }

  // Of each row that is sampled a child, if no other has the token.
  void set_right_children(Batch& batch) {
    Batch sampled = batch;
    cpu::sample_rows(sampled.args(on_host));
    for (size_t r = 0; r < batch.rows.size(); ++r) {
      const int32_t token = sampled.sampled[r].token;
      const size_t end = batch.rows.size();
      if (token < 0 || child_of(batch, r, end, token) != end) continue;
      std::vector<size_t> children;
      for (size_t row = r + 1; row < end && batch.rows[row].parent_up > 0; ++row) {
        if (row - static_cast<size_t>(batch.rows[row].parent_up) == r) children.push_back(row);
      }
      if (children.empty() || below(4) == 0) continue;
      batch.rows[children[static_cast<size_t>(below(std::ssize(children)))]].own_draft = token;
    }
  }

  int32_t below(int64_t n) { return static_cast<int32_t>(random_() % static_cast<uint64_t>(n)); }
  template <typename T>
  T pick(std::initializer_list<T> options) {
    return options.begin()[below(static_cast<int64_t>(options.size()))];
  }

  void fill_logits(int64_t num_rows, Batch& batch) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < num_rows; ++r) {
      const float deviation = pick({0.01f, 1.0f, 4.0f, 20.0f});
      const bool has_ties = below(3) == 0;  // as from a bf16 head
      for (int64_t i = 0; i < batch.vocab; ++i) {
        const float x = deviation * normal(random_);
        batch.logits.push_back(has_ties ? std::round(x * 4) / 4 : x);
      }
      float& spoiled = batch.logits[static_cast<size_t>(r * batch.vocab + below(batch.vocab))];
      if (below(40) == 0) spoiled = std::numeric_limits<float>::quiet_NaN();
      if (below(40) == 0) spoiled = kInfinity;
      if (below(10) == 0) spoiled = -kInfinity;
    }
  }

  // As sparse as a grammar's in the middle of a keyword, or as dense as a list of forbidden words;
  // at times with nothing in it. Bits behind the vocabulary are 0.
  int32_t add_mask(Batch& batch) {
    const int64_t one_in = pick({1, 2, 8, 500});
    const bool is_inverted = below(3) == 0;
    const size_t begin = batch.masks.size();
    batch.masks.resize(begin + static_cast<size_t>(batch.mask_words()));
    for (int64_t i = 0; i < batch.vocab; ++i) {
      if ((below(one_in) == 0) == is_inverted) continue;
      batch.masks[begin + static_cast<size_t>(i / 32)] |= static_cast<int32_t>(1u << (i % 32));
    }
    return static_cast<int32_t>(begin / static_cast<size_t>(batch.mask_words()));
  }

  ops::SampleRow make_row(Kind kind, int32_t slot, Batch& batch) {
    ops::SampleRow row;
    row.seed = random_();
    row.position = below(1000);
    row.slot = below(9) == 0 ? static_cast<int32_t>(batch.num_slots) : slot;
    row.max_len = row.position + 1 + (below(6) == 0 ? 0 : 1 + below(50));
    if (below(9) == 0) batch.ended[static_cast<size_t>(slot)] = 1;
    row.temperature =
        kind == Kind::kPlainGreedy ? 0.0f : pick({0.0f, 1e-5f, 0.3f, 1.0f, 1.0f, 2.0f});
    if (kind != Kind::kPlainGreedy && row.temperature > 0) {
      row.top_k = pick({0, 0, 1, 5, 40, 2000});
      row.top_p = pick({1.0f, 1.0f, 0.95f, 0.5f, 1e-6f});
      row.min_p = pick({0.0f, 0.0f, 0.05f, 1.0f});
    }
    // Stop ids are looked at in every row; half of these sit where greedy rows end.
    row.stop_begin = static_cast<int32_t>(batch.lists.size());
    row.num_stop_ids = pick({0, 1, 3, 128});
    for (int32_t i = 0; i < row.num_stop_ids; ++i) batch.lists.push_back(below(batch.vocab));
    row.bias_begin = static_cast<int32_t>(batch.lists.size());
    if (kind != Kind::kEverything) return row;
    row.num_logprobs = pick({-1, -1, 0, 1, 5, 20});
    const bool may_ban = row.num_stop_ids > 0 && row.num_stop_ids < batch.vocab;
    row.stop_from = may_ban ? row.position + below(2) : 0;
    row.num_bias = static_cast<int32_t>(std::min<int64_t>(pick({0, 0, 1, 300}), batch.vocab));
    for (int32_t i = 0; i < row.num_bias; ++i) {
      batch.lists.push_back(i);  // each token once
      batch.lists.push_back(std::bit_cast<int32_t>(pick({-100.0f, 3.0f})));
    }
    row.has_penalties = below(2);
    if (row.has_penalties != 0) {
      row.repetition_penalty = pick({0.8f, 1.0f, 1.5f});
      row.presence_penalty = pick({-1.0f, 0.0f, 1.0f});
      row.frequency_penalty = pick({-1.0f, 0.0f, 1.0f});
    }
    return row;
  }

  std::mt19937_64& random_;
};

std::string describe(const ops::SampleRow& row, int64_t vocab) {
  return "vocabulary " + std::to_string(vocab) + ", temperature " +
         std::to_string(row.temperature) + ", top_k " + std::to_string(row.top_k) + ", top_p " +
         std::to_string(row.top_p) + ", min_p " + std::to_string(row.min_p) + ", penalties " +
         std::to_string(row.has_penalties) + ", biases " + std::to_string(row.num_bias) +
         ", mask " + std::to_string(row.mask_row);
}

void copy_row(size_t r, const Batch& from, Batch& to) {
  const auto slot = static_cast<size_t>(from.rows[r].slot);
  to.carry[slot] = from.carry[slot];
  to.carry_position[slot] = from.carry_position[slot];
  to.ended[slot] = from.ended[slot];
  const auto begin = static_cast<std::ptrdiff_t>(slot) * from.vocab;
  std::copy_n(from.output_count.begin() + begin, from.vocab, to.output_count.begin() + begin);
}

// Runs the batch on the backend and on the CPU and compares; returns how many rows drew another
// token than the CPU's.
int compare_samples(Device& device, Batch batch) {
  Batch expected = batch;
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
  BatchMaker maker(random_);
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain, Kind::kEverything}) {
    for (const int64_t vocab : {1, 17, 160})
      EXPECT_EQ(compare_samples(device_, maker.make(kind, 4, vocab)), 0);
  }
}

TEST_P(OpsConformance, SampleManyAgreesWithTheCpu) {
  BatchMaker maker(random_);
  int rows = 0;
  int differing = 0;
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain, Kind::kEverything}) {
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
  BatchMaker maker(random_);
  for (const int64_t vocab : {32003, 151936}) {
    EXPECT_EQ(compare_samples(device_, maker.make(Kind::kPlainGreedy, 5, vocab)), 0);
    EXPECT_LE(compare_samples(device_, maker.make(Kind::kEverything, 9, vocab)), 1);
  }
}

// Vocabularies that end within a word of the mask, rows with and without one side by side, of every
// kind; greedy ones take a kernel of their own where nothing else is asked.
TEST_P(OpsConformance, SampleUnderMasks) {
  BatchMaker maker(random_);
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain, Kind::kEverything}) {
    for (const int64_t vocab : {1, 31, 32, 33, 160}) {
      EXPECT_EQ(compare_samples(device_, maker.make(kind, 3, vocab, true)), 0);
    }
  }
}

TEST_P(OpsConformance, SampleManyUnderMasks) {
  BatchMaker maker(random_);
  int rows = 0;
  int differing = 0;
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain, Kind::kEverything}) {
    for (const int64_t vocab : {1, 31, 32, 33, 160, 1003, 5000}) {
      for (const int64_t num_rows : {1, 33, 100, 300}) {
        differing += compare_samples(device_, maker.make(kind, num_rows, vocab, true));
        rows += static_cast<int>(num_rows);
      }
    }
  }
  for (const int64_t vocab : {32003, 151936}) {
    EXPECT_EQ(compare_samples(device_, maker.make(Kind::kPlainGreedy, 9, vocab, true)), 0);
    differing += compare_samples(device_, maker.make(Kind::kEverything, 9, vocab, true));
  }
  EXPECT_LE(differing, rows / 2000);
}

// Drafts of every sampling, with and without masks; chains longer than a warp too.
TEST_P(OpsConformance, SampleVerifiesDrafts) {
  BatchMaker maker(random_);
  int rows = 0;
  int accepted = 0;
  int rejected = 0;
  int differing = 0;
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain, Kind::kEverything}) {
    for (const int64_t vocab : {1, 5, 33, 160, 1003}) {
      for (const int32_t longest : {2, 9, 70}) {
        for (const bool has_masks : {false, true}) {
          const Batch batch = maker.make_chains(kind, 80, vocab, longest, has_masks);
          Batch sampled = batch;
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
Batch chain_to(const Batch& tree, size_t leaf, std::vector<size_t>* path) {
  path->assign(1, leaf);
  while (tree.rows[path->back()].parent_up > 0) {
    path->push_back(path->back() - static_cast<size_t>(tree.rows[path->back()].parent_up));
  }
  std::ranges::reverse(*path);
  Batch chain = tree;
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

// Rows of a tree give what the chains of its paths give, on the CPU bit for bit, and no others.
TEST_P(OpsConformance, SampleVerifiesTrees) {
  if (!ops_.takes_trees()) GTEST_SKIP() << "it takes no trees";
  BatchMaker maker(random_);
  int rows = 0;
  int differing = 0;
  int accepted = 0;
  int branched = 0;  // of them, those that are no first child
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain, Kind::kEverything}) {
    for (const int64_t vocab : {2, 5, 33, 160}) {
      for (const bool has_masks : {false, true}) {
        const Batch batch = maker.make_trees(kind, 240, vocab, 63, has_masks);
        rows += static_cast<int>(batch.num_rows());
        differing += compare_samples(device_, batch);
        Batch tree = batch;
        cpu::sample_rows(tree.args(on_host));
        std::vector<bool> is_on_path(batch.rows.size(), false);
        for (size_t leaf = 0; leaf < batch.rows.size(); ++leaf) {
          if (batch.rows[leaf].slot == batch.num_slots) continue;
          std::vector<size_t> path;
          Batch chain = chain_to(batch, leaf, &path);
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
  BatchMaker maker(random_);
  for (const Kind kind : {Kind::kPlainGreedy, Kind::kPlain}) {
    Batch batch = maker.make(kind, 33, 1003);
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
