// What sample() is called with in the conformance suite: random rows of every kind, alone, in
// chains and in trees.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include "rudder/cpu/sample.h"
#include "rudder/ops/sample_args.h"
#include "rudder/testing/ops_conformance.h"
#include "rudder/testing/sampled_tokens.h"

namespace rudder::testing {

// All that one call reads and writes, on the host.
struct SampleBatch {
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
    return {.logits = memory(logits, tensor::DType::kF32, tensor::Shape{n, vocab}),
            .rows = memory(rows, tensor::DType::kU8, tensor::Shape{n, sizeof(ops::SampleRow)}),
            .lists = memory(lists, tensor::DType::kI32, tensor::Shape{std::ssize(lists)}),
            .masks = memory(masks, tensor::DType::kI32,
                            tensor::Shape{std::ssize(masks) / mask_words(), mask_words()}),
            .state = {.carry = memory(carry, tensor::DType::kI32, tensor::Shape{num_slots + 1}),
                      .carry_position =
                          memory(carry_position, tensor::DType::kI32, tensor::Shape{num_slots + 1}),
                      .ended = memory(ended, tensor::DType::kI32, tensor::Shape{num_slots + 1}),
                      .block_table = {},
                      .output_count = memory(output_count, tensor::DType::kI32,
                                             tensor::Shape{num_slots + 1, vocab}),
                      .prompt_seen = memory(prompt_seen, tensor::DType::kU8,
                                            tensor::Shape{num_slots + 1, vocab})},
            .sampled = memory(sampled, tensor::DType::kI32, tensor::Shape{n, 4}),
            .top = memory(top, tensor::DType::kI32, tensor::Shape{n, kMaxLogprobs, 2}),
            .all_greedy = all_greedy,
            .any_logprobs = any_logprobs,
            .any_changed = any_changed,
            .any_masked = any_masked,
            .any_drafts = any_drafts};
  }
};

inline constexpr auto on_host = [](auto& values, tensor::DType dtype, tensor::Shape shape) {
  return tensor::View{values.data(), dtype, shape};
};

enum class SampleKind { kPlainGreedy, kPlain, kEverything };

class SampleBatchMaker {
 public:
  explicit SampleBatchMaker(std::mt19937_64& random) : random_(random) {}

  // Rows in chains of up to `longest`, by drafts of which many are right.
  SampleBatch make_chains(SampleKind kind, int64_t num_rows, int64_t vocab, int32_t longest,
                          bool has_masks) {
    SampleBatch batch = make(kind, num_rows, vocab, has_masks);
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
  SampleBatch make_trees(SampleKind kind, int64_t num_rows, int64_t vocab, int32_t most,
                         bool has_masks) {
    SampleBatch batch = make(kind, num_rows, vocab, has_masks);
    size_t first = 0;  // of the tree at hand
    for (size_t r = 1; r < batch.rows.size(); ++r) {
      const size_t up = 1 + static_cast<size_t>(below(static_cast<int64_t>(r - first)));
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
  static size_t child_of(const SampleBatch& batch, size_t parent, size_t end, int32_t draft) {
    for (size_t r = parent + 1; r < end; ++r) {
      const auto up = static_cast<size_t>(batch.rows[r].parent_up);
      if (up > 0 && r - up == parent && batch.rows[r].own_draft == draft) return r;
    }
    return end;
  }

  SampleBatch make(SampleKind kind, int64_t num_rows, int64_t vocab, bool has_masks = false) {
    SampleBatch batch;
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
    batch.all_greedy = kind == SampleKind::kPlainGreedy;
    batch.any_logprobs = kind == SampleKind::kEverything;
    batch.any_changed = kind == SampleKind::kEverything;
    batch.any_masked = has_masks;
    return batch;
  }

 private:
  // Of the rows that have `behind` before them in their chain.
  void set_right_drafts(int32_t behind, SampleBatch& batch) {
    SampleBatch sampled = batch;
    cpu::sample_rows(sampled.args(on_host));
    for (size_t r = 0; r < batch.rows.size(); ++r) {
      ops::SampleRow& row = batch.rows[r];
      if (row.draft < 0 || row.num_behind != behind || sampled.sampled[r].token < 0) continue;
      if (below(4) > 0) row.draft = sampled.sampled[r].token;
    }
  }

  // Of each row that is sampled a child, if no other has the token.
  void set_right_children(SampleBatch& batch) {
    SampleBatch sampled = batch;
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

  void fill_logits(int64_t num_rows, SampleBatch& batch) {
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
  int32_t add_mask(SampleBatch& batch) {
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

  ops::SampleRow make_row(SampleKind kind, int32_t slot, SampleBatch& batch) {
    ops::SampleRow row;
    row.seed = random_();
    row.position = below(1000);
    row.slot = below(9) == 0 ? static_cast<int32_t>(batch.num_slots) : slot;
    row.max_len = row.position + 1 + (below(6) == 0 ? 0 : 1 + below(50));
    if (below(9) == 0) batch.ended[static_cast<size_t>(slot)] = 1;
    row.temperature =
        kind == SampleKind::kPlainGreedy ? 0.0f : pick({0.0f, 1e-5f, 0.3f, 1.0f, 1.0f, 2.0f});
    if (kind != SampleKind::kPlainGreedy && row.temperature > 0) {
      row.top_k = pick({0, 0, 1, 5, 40, 2000});
      row.top_p = pick({1.0f, 1.0f, 0.95f, 0.5f, 1e-6f});
      row.min_p = pick({0.0f, 0.0f, 0.05f, 1.0f});
    }
    // Stop ids are looked at in every row; half of these sit where greedy rows end.
    row.stop_begin = static_cast<int32_t>(batch.lists.size());
    row.num_stop_ids = pick({0, 1, 3, 128});
    for (int32_t i = 0; i < row.num_stop_ids; ++i) batch.lists.push_back(below(batch.vocab));
    row.bias_begin = static_cast<int32_t>(batch.lists.size());
    if (kind != SampleKind::kEverything) return row;
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

}  // namespace rudder::testing
