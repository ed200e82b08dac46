// Which rows of the adapter table the tokens of a step have, and the tokens by adapter. Made on the
// host once a step (exec), read by every product of the step. Pure functions; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "rudder/ops/adapter_group.h"
#include "rudder/tensor/view.h"

namespace rudder::ops {

// On the device.
struct AdapterBatch {
  tensor::View rows = {};    // [T] i32: of the adapter table, -1: none
  tensor::View order = {};   // [T] i32: first the tokens that have one, those of one row together
  tensor::View groups = {};  // [most_adapter_groups(T, .), 4] i32: AdapterGroup

  bool empty() const { return rows.empty(); }
};

// Groups that so many tokens of so many adapters can be cut into.
constexpr int64_t most_adapter_groups(int64_t tokens, int64_t adapters) {
  constexpr int64_t kAtOnce = kAdapterGroupTokens;
  return std::min(tokens, (tokens + adapters * (kAtOnce - 1)) / kAtOnce);
}

// Writes `order` and `groups`, both as long as `rows`. Groups of one adapter stand together; within
// it tokens keep their order.
inline void group_tokens(std::span<const int32_t> rows, std::span<int32_t> order,
                         std::span<AdapterGroup> groups) {
  std::ranges::fill(groups, AdapterGroup{});
  const int32_t last = rows.empty() ? -1 : std::ranges::max(rows);
  std::vector<int32_t> next(static_cast<size_t>(last + 2), 0);  // where a row's next token goes
  for (const int32_t row : rows) {
    if (row >= 0) ++next[static_cast<size_t>(row) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  size_t used = 0;
  for (int32_t row = 0; row <= last; ++row) {
    const int32_t end = next[static_cast<size_t>(row) + 1];
    for (int32_t begin = next[static_cast<size_t>(row)]; begin < end;
         begin += kAdapterGroupTokens) {
      groups[used++] = {row, begin, std::min(kAdapterGroupTokens, end - begin), 0};
    }
  }
  for (size_t token = 0; token < rows.size(); ++token) {
    if (rows[token] < 0) continue;
    order[static_cast<size_t>(next[static_cast<size_t>(rows[token])]++)] =
        static_cast<int32_t>(token);
  }
  for (auto at = order.begin() + next[static_cast<size_t>(last < 0 ? 0 : last)]; at < order.end();
       ++at) {
    *at = 0;
  }
}

}  // namespace rudder::ops
