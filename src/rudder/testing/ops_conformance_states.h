// What the tests of ops with a state (ops_conformance_states.cpp) run them on: one sequence whole,
// in parts, in company, and behind drafts of which some were right.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "rudder/testing/ops_conformance.h"

namespace rudder::testing {

// Rows of a sequence, side by side: what an op reads, and what it writes.
struct StateRows {
  tensor::View in;
  tensor::View gates;  // empty: the op has none
  tensor::View out;

  StateRows slice(int64_t begin, int64_t count) const {
    return {in.rows(begin, count), gates.empty() ? tensor::View{} : gates.rows(begin, count),
            out.rows(begin, count)};
  }
};

// A part of a step: tokens of one sequence.
struct StatePiece {
  int32_t state = 0;
  int32_t position = 0;
  int32_t count = 0;
  int32_t drafts = 0;
};

struct RecurCase {
  std::string name;
  int32_t key_heads, value_heads, key_dim, value_dim;
  bool a_by_channel, has_b, is_delta, skips;
  float decay_floor = 0;
};

class OpsStates : public OpsConformance {
 protected:
  static constexpr int64_t kTokens = 83;  // longer than a backend's chunks
  static constexpr int64_t kStates = 3;
  static constexpr int32_t kDrafts = 4;

  using Run = std::function<void(const ops::StateAccess&, const StateRows&)>;

  tensor::View floats(int64_t count, double scale, double centre = 0) {
    std::vector<float> values = random_values(count, scale);
    for (float& value : values) value += static_cast<float>(centre);
    return device_.put_as(std::span<const float>(values), tensor::DType::kF32, {count});
  }

  // Memory of states and of kept rows; what lies there before is not read.
  ops::LayerState layer(int64_t state_floats, int64_t row_floats) {
    constexpr int64_t kFloat = sizeof(float);
    const int64_t begin = 2 * ops::kStateLine;
    const int64_t bytes = begin + ops::kStateLine + (state_floats * kFloat + 63) / 64 * 64;
    const int64_t row_begin = 3 * kFloat;
    return {.pool = poisoned(tensor::DType::kU8, {kStates, bytes}),
            .begin = begin,
            .kept = poisoned(tensor::DType::kU8,
                             {kStates + 1, 1 + kDrafts, row_begin + row_floats * kFloat}),
            .kept_begin = row_begin};
  }

  ops::StateAccess access(const std::vector<StatePiece>& pieces, const ops::LayerState& layer) {
    std::vector<int32_t> q_begin = {0};
    std::vector<int32_t> rows;
    std::vector<int32_t> positions;
    std::vector<int32_t> states;
    std::vector<int32_t> drafts;
    for (const StatePiece& piece : pieces) {
      for (int32_t i = 0; i < piece.count; ++i) positions.push_back(piece.position + i);
      q_begin.push_back(static_cast<int32_t>(positions.size()));
      rows.push_back(std::max(piece.state, 0));
      states.push_back(piece.state);
      drafts.push_back(piece.drafts);
    }
    return {.q_begin = device_.put(q_begin),
            .table_row = device_.put(rows),
            .positions = device_.put(positions),
            .batch = {device_.put(states), device_.put(drafts)},
            .layer = layer};
  }

  // One sequence's rows, all at once, in parts, in company and behind drafts: the same bits.
  void expect_one_result(const Run& run, const StateRows& rows, const ops::LayerState& of) {
    const auto total = static_cast<int32_t>(rows.in.num_rows());
    run(access({{.count = total}}, of), rows);
    const tensor::View whole = copy(rows.out);
    for (const int32_t size : {1, 7, 40}) {
      for (int32_t begin = 0; begin < total; begin += size) {
        const int32_t count = std::min(size, total - begin);
        run(access({{.state = 1, .position = begin, .count = count}}, of),
            rows.slice(begin, count));
      }
      expect_same_rows(rows.out, whole, "in parts of " + std::to_string(size));
    }
    expect_same_behind_drafts(run, rows, of, whole);
    expect_same_in_company(run, rows, of, whole);
  }

  // Each part has drafts of which `right` are accepted, those behind them wrong.
  void expect_same_behind_drafts(const Run& run, const StateRows& rows, const ops::LayerState& of,
                                 const tensor::View& whole) {
    const auto total = static_cast<int32_t>(rows.in.num_rows());
    run(access({{.state = 2, .count = 3}}, of), rows.slice(0, 3));
    int32_t position = 3;
    for (int32_t right = 0; position + 1 + kDrafts <= total; right = (right + 1) % (kDrafts + 1)) {
      run(access({{.state = 2, .position = position, .count = 1 + kDrafts, .drafts = kDrafts}}, of),
          rows.slice(position, 1 + kDrafts));
      expect_same_rows(rows.out.rows(position, 1 + right), whole.rows(position, 1 + right),
                       "behind drafts");
      position += 1 + right;
    }
    run(access({{.state = 2, .position = position, .count = total - position}}, of),
        rows.slice(position, total - position));
    expect_same_rows(rows.out.rows(position, total - position),
                     whole.rows(position, total - position), "the rest");
  }

  // A sequence whose parts a step may have, and what each token reads.
  struct LongRun {
    static constexpr int32_t kLength = 293;

    ops::RecurArgs args;  // without state, rows and out of a step
    Matrix qkv;
    Matrix gates;
    Matrix expected;
  };
  LongRun long_run(const RecurCase& one);
  void expect_step(const LongRun& run, const ops::LayerState& of,
                   const std::vector<StatePiece>& pieces);

  // Twice the same sequence and padding between them, in one call.
  void expect_same_in_company(const Run& run, const StateRows& rows, const ops::LayerState& of,
                              const tensor::View& whole) {
    const int64_t total = rows.in.num_rows();
    const auto joined = [&](const tensor::View& view) {
      if (view.empty()) return tensor::View{};
      Matrix twice = read(view);
      const Matrix once = twice;
      twice.values.insert(twice.values.end(), once.values.begin(), once.values.begin() + once.cols);
      twice.values.insert(twice.values.end(), once.values.begin(), once.values.end());
      std::vector<float> values(twice.values.begin(), twice.values.end());
      return device_.put(HostTensor(values, view.dtype, {2 * total + 1, once.cols}));
    };
    const StateRows both{joined(rows.in), joined(rows.gates),
                         poisoned({2 * total + 1, rows.out.shape[1]})};
    const auto count = static_cast<int32_t>(total);
    run(access(
            {{.state = 0, .count = count}, {.state = -1, .count = 1}, {.state = 1, .count = count}},
            of),
        both);
    expect_same_rows(both.out.rows(0, total), whole, "the first of two");
    expect_same_rows(both.out.rows(total + 1, total), whole, "the second of two");
  }
};

}  // namespace rudder::testing
