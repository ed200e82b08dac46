// The kernels by which ranks exchange (kernels/peers/peer.h) and the host's part (peer_comm.h):
// bits against sums on the CPU, graphs with ranks that come late, and every way to fail. A group of
// more GPUs than there are is skipped by name.
#include "rudder/cuda/peer_comm.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/peer_test.h"
#include "rudder/tensor/dtype.h"

namespace rudder::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

struct SumCase {
  int64_t rows = 1;
  int64_t cols = 8;
  bool is_two_shot = false;
  bool is_scaled = false;
  int32_t max_blocks = kPeerBlocks;

  int64_t count() const { return rows * cols; }
};

float number_of(uint16_t bits) {
  return tensor::to_float(tensor::BF16{bits});
}
uint16_t rounded(float value) {
  return tensor::to_bf16(value).bits;
}

// Of one rank: its numbers, and what they are multiplied by.
struct Part {
  Bits y;
  std::vector<float> row, column;
};
Part random_part(const SumCase& c, uint32_t seed, int rank) {
  std::mt19937 engine(seed * 31 + static_cast<uint32_t>(rank));
  std::normal_distribution<float> normal(0, 1);
  Part part;
  part.y.resize(static_cast<size_t>(c.count()));
  // A few hundred draws, in another order for each rank: drawing 8 MB would take the test's time.
  Bits draws(509);
  for (uint16_t& draw : draws) draw = rounded(normal(engine) * (engine() % 8 == 0 ? 100.0f : 1.0f));
  for (size_t i = 0; i < part.y.size(); ++i) {
    part.y[i] = draws[(i * (2 * static_cast<size_t>(rank) + 3) + i / 509) % 509];
  }
  for (int64_t i = 0; c.is_scaled && i < c.rows; ++i) part.row.push_back(normal(engine));
  for (int64_t i = 0; c.is_scaled && i < c.cols; ++i) part.column.push_back(normal(engine));
  return part;
}
uint16_t number(const SumCase& c, const Part& part, size_t i) {
  if (!c.is_scaled) return part.y[i];
  const size_t row = i / static_cast<size_t>(c.cols);
  const size_t column = i % static_cast<size_t>(c.cols);
  return rounded(std::fmaf(number_of(part.y[i]), part.row[row] * part.column[column], 0.0f));
}
Bits expected_sum(const SumCase& c, uint32_t seed, int count) {
  std::vector<float> sum(static_cast<size_t>(c.count()));
  for (int rank = 0; rank < count; ++rank) {
    const Part part = random_part(c, seed, rank);
    for (size_t i = 0; i < sum.size(); ++i) {
      const float add = number_of(number(c, part, i));
      sum[i] = rank == 0 ? add : sum[i] + add;
    }
  }
  Bits bits;
  for (const float value : sum) bits.push_back(rounded(value));
  return bits;
}

PeerSumParams sum_params(PeerRank& rank, const SumCase& c, const Part& part) {
  PeerSumParams params;
  params.links = rank.comm.links(false);
  params.y = rank.to_device(part.y);
  if (c.is_scaled) {
    params.scales.row = rank.to_device(part.row);
    params.scales.column = rank.to_device(part.column);
  }
  params.rows = c.rows;
  params.cols = c.cols;
  params.is_two_shot = c.is_two_shot;
  params.max_blocks = c.max_blocks;
  return params;
}

std::vector<SumCase> sum_cases() {
  std::vector<SumCase> cases;
  std::mt19937 engine(5);
  for (const int64_t cols : {3, 8, 64, 250, 1000, 4096, 8192}) {
    for (const int64_t most : {1, 40, 512}) {
      const int64_t rows = most == 1 ? 1 : 1 + static_cast<int64_t>(engine() % most);
      cases.push_back({rows, cols});
    }
  }
  cases.push_back({512, 8192});   // 8 MB
  cases.push_back({1100, 8192});  // more than one piece a block
  // From one piece to six of two shots.
  for (const int64_t rows : {7, 13, 24, 29, 40, 48}) {
    cases.push_back({rows, 4096, false, rows % 2 == 0, 2});
  }
  for (const int64_t cols : {8, 4096}) cases.push_back({33, cols, false, true});
  const std::vector<SumCase> one_shot = cases;
  for (SumCase c : one_shot) {
    c.is_two_shot = true;
    cases.push_back(c);
  }
  return cases;
}

class Peers : public PeerTest {};

TEST_P(Peers, SumsAreThoseInTheOrderOfRanks) {
  const Comms comms = group();
  const std::vector<SumCase> cases = sum_cases();
  std::vector<Bits> expected;
  for (size_t i = 0; i < cases.size(); ++i) {
    expected.push_back(
        expected_sum(cases[i], static_cast<uint32_t>(i), static_cast<int>(comms.size())));
  }
  run_ranks(comms, [&](PeerRank& rank) {
    std::vector<PeerSumParams> sums;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Part part = random_part(cases[i], static_cast<uint32_t>(i), rank.index());
      sums.push_back(sum_params(rank, cases[i], part));
    }
    rank.all_have_allocated();
    for (size_t i = 0; i < cases.size(); ++i) {
      const SumCase& c = cases[i];
      succeed(launch_peer_sum(sums[i], rank.stream));
      const Bits got =
          rank.to_host(static_cast<const uint16_t*>(sums[i].y), static_cast<size_t>(c.count()));
      ASSERT_TRUE(got == expected[i])
          << fmt::format("rank {}: {} rows of {}{}{}", rank.index(), c.rows, c.cols,
                         c.is_two_shot ? ", two-shot" : "", c.is_scaled ? ", scaled" : "");
    }
  });
  EXPECT_TRUE(comms[0]->status());
}

TEST_P(Peers, GatherPutsPartsSideBySide) {
  const Comms comms = group();
  const auto element = [](int64_t row, int64_t column) {
    return static_cast<float>(row * 7 % 1000) + static_cast<float>(column) / 262144.0f;
  };
  run_ranks(comms, [&](PeerRank& rank) {
    for (const int64_t vocab : {160, 1003, 32000, 128256}) {
      for (const int64_t rows : {1, 3, 64}) {
        PeerGatherParams params;
        params.links = rank.comm.links(false);
        params.rows = rows;
        for (int i = 0; i < rank.count(); ++i) {
          params.begin[i] = static_cast<int32_t>(ops::vocab_share(vocab, {i, rank.count()}).begin);
        }
        params.begin[rank.count()] = static_cast<int32_t>(vocab);
        const ops::Share share = ops::vocab_share(vocab, rank.comm.rank());
        std::vector<float> part;
        std::vector<float> whole;
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t i = 0; i < share.count; ++i) part.push_back(element(row, share.begin + i));
          for (int64_t i = 0; i < vocab; ++i) whole.push_back(element(row, i));
        }
        params.part = rank.to_device(part);
        params.out = rank.to_device(std::vector<float>(whole.size(), -1.0f));
        rank.all_have_allocated();
        succeed(launch_peer_gather(params, rank.stream));
        ASSERT_TRUE(rank.to_host(params.out, whole.size()) == whole)
            << fmt::format("rank {}: {} rows of {}", rank.index(), rows, vocab);
      }
    }
  });
  EXPECT_TRUE(comms[0]->status());
}

// A captured graph of sums of many sizes, which every rank launches when it likes. The sums of one
// replay in `check_every` are compared.
void replay_with_late_ranks(const Comms& comms, int num_replays, int check_every) {
  const std::vector<SumCase> cases = {{1, 4096},
                                      {7, 64},
                                      {64, 4096},
                                      {1, 8, true},
                                      {200, 512},
                                      {33, 1000, true},
                                      {1, 4096},
                                      {300, 4096, true},
                                      {2, 8},
                                      {90, 4096, false},
                                      {1, 3},
                                      {40, 4096, true, true, 2},  // five pieces a block
                                      {64, 64},
                                      {24, 4096, true, false, 2},
                                      {16, 4096, true, false, 2},
                                      {1, 4096}};
  std::vector<Bits> expected;
  for (size_t i = 0; i < cases.size(); ++i) {
    expected.push_back(
        expected_sum(cases[i], static_cast<uint32_t>(i), static_cast<int>(comms.size())));
  }
  run_ranks(comms, [&](PeerRank& rank) {
    std::vector<Part> parts;
    std::vector<PeerSumParams> sums;
    std::vector<uint16_t*> sources;
    for (size_t i = 0; i < cases.size(); ++i) {
      parts.push_back(random_part(cases[i], static_cast<uint32_t>(i), rank.index()));
      sources.push_back(rank.to_device(parts.back().y));
      sums.push_back(sum_params(rank, cases[i], parts.back()));
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    succeed(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    for (size_t i = 0; i < cases.size(); ++i) {
      succeed(cudaMemcpyAsync(sums[i].y, sources[i], parts[i].y.size() * 2,
                              cudaMemcpyDeviceToDevice, rank.stream));
      succeed(launch_peer_sum(sums[i], rank.stream));
    }
    succeed(cudaStreamEndCapture(rank.stream, &graph));
    succeed(cudaGraphInstantiate(&exec, graph, 0));
    std::mt19937 engine(static_cast<uint32_t>(rank.index()));
    rank.all_have_allocated();
    for (int replay = 0; replay < num_replays; ++replay) {
      if (engine() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine() % 500));
      succeed(cudaGraphLaunch(exec, rank.stream));
      if (replay % check_every != 0) continue;  // ranks run ahead of each other
      for (size_t i = 0; i < cases.size(); ++i) {
        const Bits got = rank.to_host(static_cast<const uint16_t*>(sums[i].y), parts[i].y.size());
        ASSERT_TRUE(got == expected[i])
            << "rank " << rank.index() << ", replay " << replay << ", sum " << i;
      }
    }
    succeed(cudaStreamSynchronize(rank.stream));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
  EXPECT_TRUE(comms[0]->status());
}

TEST_P(Peers, GraphsReplayWhileRanksComeLate) {
  replay_with_late_ranks(group(), 300, 10);
}

class SlowPeers : public Peers {};

TEST_P(SlowPeers, AMillionReplaysWhileRanksComeLate) {
  replay_with_late_ranks(group(), 1'000'000, 1000);
}

// Before open() a rank does without the others, which may never come.
// As attention patterns come to the first rank's records: a kernel stores there, the next one
// meets.
TEST_P(Peers, WhatRanksStoreInSharedMemoryIsThereWhenTheyHaveMet) {
  const Comms comms = group();
  constexpr int64_t kWidth = 1 << 17;  // of a rank's row, bf16
  run_ranks(comms, [&](PeerRank& rank) {
    const ops::View shared =
        rank.comm.shared_memory(tensor::DType::kBF16, {rank.count(), kWidth}).value();
    std::vector<PlaceRowsParams> stores(50);
    for (size_t round = 0; round < stores.size(); ++round) {
      const auto number = static_cast<uint16_t>(round * 8 + static_cast<size_t>(rank.index()));
      stores[round] = {.x = rank.to_device(Bits(kWidth, number)), .count = 1, .width = kWidth};
      stores[round].out = static_cast<uint16_t*>(shared.data) + rank.index() * kWidth;
      stores[round].out_width = kWidth;
    }
    PeerGatherParams meet{.links = rank.comm.links(false), .part = rank.room<float>(1), .rows = 1};
    meet.out = rank.room<float>(static_cast<size_t>(rank.count()));
    for (int i = 0; i <= rank.count(); ++i) meet.begin[i] = i;
    rank.all_have_allocated();
    for (size_t round = 0; round < stores.size(); ++round) {
      succeed(launch_place_rows(stores[round], rank.stream));
      succeed(launch_peer_gather(meet, rank.stream));
      Bits expected;
      for (int i = 0; i < rank.count(); ++i) {
        expected.insert(expected.end(), kWidth, static_cast<uint16_t>(round * 8 + i));
      }
      if (rank.index() == 0) {
        EXPECT_TRUE(expected == rank.to_host(static_cast<const uint16_t*>(shared.data),
                                             static_cast<size_t>(rank.count() * kWidth)))
            << round;
      }
      succeed(launch_peer_gather(meet, rank.stream));  // the first one has read
    }
    succeed(cudaStreamSynchronize(rank.stream));
  });
  EXPECT_TRUE(comms[0]->status());
}

TEST_P(Peers, ARankThatIsNotOpenWaitsForNobody) {
  const Comms comms = group(60'000);
  std::barrier<> alone(1);
  PeerRank rank(*comms[0], alone);
  const SumCase c = {16, 64};
  const Part part = random_part(c, 1, 0);
  const PeerSumParams params = sum_params(rank, c, part);
  EXPECT_FALSE(params.links.is_open);
  EXPECT_TRUE(comms[0]->links(true).is_open) << "a graph runs when the rank is open";
  succeed(launch_peer_sum(params, rank.stream));
  EXPECT_EQ(rank.to_host(static_cast<const uint16_t*>(params.y), part.y.size()), part.y);
}

TEST_P(Peers, ARankThatDoesNotComeIsAnErrorInTime) {
  const Comms comms = group(PeerComm::kPatienceMs);
  std::barrier<> alone(1);
  PeerRank rank(*comms[1], alone);
  comms[1]->open();
  const SumCase c = {64, 4096};
  const PeerSumParams params = sum_params(rank, c, random_part(c, 1, 1));
  const auto begin = steady_clock::now();
  for (int i = 0; i < 200; ++i) succeed(launch_peer_sum(params, rank.stream));
  succeed(cudaStreamSynchronize(rank.stream));
  EXPECT_LT(steady_clock::now() - begin, milliseconds(3000)) << "one wait, not two hundred";
  const Result<void> status = comms[0]->status();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("did not come to an exchange with rank 1 within 2000 ms"),
            std::string::npos)
      << status.error().message;
}

TEST_P(Peers, RanksAtDifferentRowsFail) {
  const Comms comms = group(2000);
  run_ranks(comms, [&](PeerRank& rank) {
    const SumCase c = {rank.index() == 0 ? 4 : 5, 8};
    const PeerSumParams params = sum_params(rank, c, random_part(c, 1, 0));
    rank.all_have_allocated();
    succeed(launch_peer_sum(params, rank.stream));
    succeed(cudaStreamSynchronize(rank.stream));
  });
  const Result<void> status = comms[0]->status();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message.find("are at different ops or rows"), std::string::npos)
      << status.error().message;
}

TEST_P(Peers, ARankThatFailsEndsTheWaitOfAll) {
  const Comms comms = group(60'000);
  const auto begin = steady_clock::now();
  run_ranks(comms, [&](PeerRank& rank) {
    const SumCase c = {4, 64};
    const PeerSumParams params = sum_params(rank, c, random_part(c, 1, 0));
    rank.all_have_allocated();
    if (rank.index() == 0) {
      std::this_thread::sleep_for(milliseconds(100));
      rank.comm.fail({ErrorCode::kOverloaded, "no memory", "device"});
      return;
    }
    succeed(launch_peer_sum(params, rank.stream));
    succeed(cudaStreamSynchronize(rank.stream));
  });
  EXPECT_LT(steady_clock::now() - begin, milliseconds(20'000));
  const Result<void> status = comms[1]->status();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "no memory");
}

TEST_P(Peers, HostsThatAreAtDifferentStepsOrStayBehindFail) {
  {
    const Comms comms = group();
    comms[0]->meet(4);
    EXPECT_TRUE(comms[0]->status());
    comms[1]->meet(5);
    ASSERT_FALSE(comms[0]->status());
    EXPECT_NE(comms[0]->status().error().message.find("is at step 5, others at step 4"),
              std::string::npos);
  }
  const Comms comms = group(300);
  for (const auto& comm : comms) comm->meet(1);
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_TRUE(comms[0]->status()) << "nobody is behind";
  comms[0]->meet(2);
  const auto begin = steady_clock::now();
  while (comms[1]->status() && steady_clock::now() - begin < milliseconds(20'000)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  ASSERT_FALSE(comms[1]->status());
  EXPECT_GE(steady_clock::now() - begin, milliseconds(250));
  EXPECT_NE(comms[1]->status().error().message.find("did not come to the end of a step"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Gpus, Peers, ::testing::ValuesIn(kGroupsOfTwoAndFour), gpus_of);
INSTANTIATE_TEST_SUITE_P(Eight, Peers, ::testing::ValuesIn(kGroupsOfEight), gpus_of);
INSTANTIATE_TEST_SUITE_P(Slow, SlowPeers, ::testing::ValuesIn(kGroupsOfTwoAndFour), gpus_of);

TEST(PeerGroups, ThatCannotBeMadeAreRefusedByName) {
  const std::vector<int32_t> three = {0, 1, 2};
  const auto odd = PeerComm::make_group(three);
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().message, "a group of GPUs has 2, 4 or 8 ranks, not 3");
  EXPECT_EQ(odd.error().where, "tensor-parallel-size");
  const std::vector<int32_t> one_twice = {0, 0};
  const auto shared = PeerComm::make_group(one_twice);
  ASSERT_FALSE(shared);
  EXPECT_EQ(shared.error().message, "GPU 0 cannot be two ranks: each needs one of its own");
  const std::vector<int32_t> missing = {0, 100};
  const auto none = PeerComm::make_group(missing);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(none.error().message.find("rank 100 needs a GPU of its own"), std::string::npos);
}

}  // namespace
}  // namespace rudder::cuda
