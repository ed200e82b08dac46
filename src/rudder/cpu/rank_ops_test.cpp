// Ops of ranks on a CPU: the sum of ranks in residual_norm is the sum in their order and the op
// alone, and that of sum_ranks, bit for bit; on every rank, with what follows the sum.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "rudder/cpu/fast_ops.h"
#include "rudder/cpu/reference_ops.h"

namespace rudder::cpu {
namespace {

using tensor::DType;
using RankNumbers = std::vector<float>;

constexpr int64_t kWidth = 96;

RankNumbers numbers_of(int32_t rank, int64_t rows) {
  RankNumbers values(static_cast<size_t>(rows * kWidth));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(rank) * 13 + 1)) * 3.0f;
  }
  return values;
}

// Runs `body` on a thread for each rank.
void on_each_rank(int32_t count, bool is_fast,
                  const std::function<void(ops::Ops&, int32_t)>& body) {
  std::vector<std::thread> threads;
  for (const auto& comm : HostComm::make_group(count, 60'000)) {
    threads.emplace_back([&body, comm, is_fast] {
      const std::unique_ptr<ops::Ops> ops =
          is_fast ? make_cpu_ops({DType::kF32, 1, {}, comm}).value() : make_reference_rank(comm);
      ASSERT_TRUE(ops->prepare({.max_tokens = 64, .max_rows = 64, .hidden = kWidth}));
      body(*ops, comm->rank().index);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct NormedRows {
  RankNumbers x, out;
};
NormedRows norm_rows(ops::Ops& ops, RankNumbers branch, int64_t rows, bool has_branch_norm,
                     bool sums_ranks) {
  NormedRows result{numbers_of(100, rows), RankNumbers(static_cast<size_t>(rows * kWidth))};
  RankNumbers weight = numbers_of(101, 1);
  const auto view = [&](RankNumbers& of) {
    return ops::View{of.data(), DType::kF32, {static_cast<int64_t>(of.size()) / kWidth, kWidth}};
  };
  const ops::View norm{weight.data(), DType::kF32, {kWidth}};
  ops::ResidualNormArgs args{.x = view(result.x),
                             .delta = view(branch),
                             .norm = {.weight = norm},
                             .out = view(result.out),
                             .sums_ranks = sums_ranks};
  if (has_branch_norm) args.delta_norm = {.weight = norm};
  ops.residual_norm(args);
  return result;
}

TEST(RankOps, ResidualNormOfASumIsTheSumAndTheOp) {
  for (const bool is_fast : {false, true}) {
    for (const int32_t count : {2, 4}) {
      on_each_rank(count, is_fast, [&](ops::Ops& ops, int32_t rank) {
        for (const int64_t rows : {1, 3, 64}) {
          RankNumbers sum = numbers_of(0, rows);
          for (int32_t i = 1; i < count; ++i) {
            const RankNumbers part = numbers_of(i, rows);
            for (size_t j = 0; j < sum.size(); ++j) sum[j] += part[j];
          }
          RankNumbers summed = numbers_of(rank, rows);
          ops.rank_ops()->sum_ranks({summed.data(), DType::kF32, {rows, kWidth}});
          EXPECT_EQ(summed, sum);
          for (const bool has_branch_norm : {false, true}) {
            const NormedRows whole =
                norm_rows(ops, numbers_of(rank, rows), rows, has_branch_norm, true);
            const NormedRows alone = norm_rows(ops, sum, rows, has_branch_norm, false);
            EXPECT_EQ(whole.x, alone.x);
            EXPECT_EQ(whole.out, alone.out);
          }
        }
        EXPECT_TRUE(ops.status());
      });
    }
  }
}

}  // namespace
}  // namespace rudder::cpu
