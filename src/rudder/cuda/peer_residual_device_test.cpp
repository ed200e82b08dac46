// The sum of ranks and the residual norm in one kernel (kernels/peers/peer_residual.h): bits
// against the two kernels, over shapes, ways and divisions; graphs with ranks that come late; every
// way to fail; and ranks that differ in what follows the sum.
#include "rudder/cuda/kernels/peers/peer_residual.h"

#include <chrono>
#include <cstring>
#include <random>

#include "rudder/cuda/peer_test.h"
#include "rudder/tensor/dtype.h"

namespace rudder::cuda {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<uint8_t>;

enum class Out { kNone, kBf16, kBf16OverBranch, kFp8 };

struct ResidualCase {
  int64_t rows = 1;
  int64_t cols = 64;
  PeerWay way = PeerWay::kOneShot;
  int32_t row_blocks = 0;
  Out out = Out::kFp8;
  bool is_scaled = false;
  bool has_branch_norm = false;
  bool rounds = false;
  bool has_nans = false;  // among them words that are none on the wire

  size_t count() const { return static_cast<size_t>(rows * cols); }
  std::string to_string() const {
    return fmt::format("{} rows of {}, way {}, {} blocks a row, out {}{}{}{}{}", rows, cols,
                       static_cast<int>(way), row_blocks, static_cast<int>(out),
                       is_scaled ? ", scaled" : "", has_branch_norm ? ", norm of the branch" : "",
                       rounds ? ", rounds" : "", has_nans ? ", NaNs" : "");
  }
};

constexpr PeerWay kWays[] = {PeerWay::kOneShot, PeerWay::kTwoShot};

std::vector<ResidualCase> residual_cases() {
  std::vector<ResidualCase> cases;
  std::mt19937 engine(7);
  for (const int64_t cols : {64, 72, 512, 1000, 4096, 5120, 8192, 8200, 16384}) {
    for (const int64_t rows : {1, 2, 8, 31, 64, 130}) {
      for (const PeerWay way : kWays) {
        const uint32_t draw = engine();
        cases.push_back({rows, cols, way, static_cast<int32_t>(draw % 5 == 0 ? 0 : 1 << draw % 4),
                         static_cast<Out>(draw / 8 % 4), draw / 32 % 2 == 0, draw / 64 % 2 == 0,
                         draw / 128 % 4 == 0});
      }
    }
  }
  // Those of models, as they are divided without being told.
  for (const int64_t cols : {4096, 8192}) {
    for (const int64_t rows : {1, 8, 16, 17, 32, 33, 64, 65, 128}) {
      for (const PeerWay way : kWays) {
        cases.push_back({rows, cols, way, 0, Out::kFp8, true});
        cases.push_back({rows, cols, way, 0, Out::kBf16});
      }
    }
  }
  for (const PeerWay way : kWays) {
    cases.push_back({9, 4096, way, 0, Out::kBf16, false, false, false, true});
    cases.push_back({130, 8192, way, 0, Out::kNone, false, false, false, true});
  }
  return cases;
}

Bits draw_bits(size_t count, uint32_t seed, float scale) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, scale);
  Bits draws(509);
  for (uint16_t& draw : draws) draw = tensor::to_bf16(normal(engine)).bits;
  Bits bits(count);
  for (size_t i = 0; i < count; ++i) bits[i] = draws[(i * (2 * (seed % 97) + 3) + i / 509) % 509];
  return bits;
}
std::vector<float> draw_floats(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(1, 0.5f);
  std::vector<float> values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

// What a case works on, with room for the largest, and a copy of each of it for the two kernels.
class Buffers {
 public:
  Buffers(PeerRank& rank, const std::vector<ResidualCase>& cases) : rank_(rank) {
    size_t rows = 0, cols = 0, count = 0;
    for (const ResidualCase& c : cases) {
      rows = std::max(rows, static_cast<size_t>(c.rows));
      cols = std::max(cols, static_cast<size_t>(c.cols));
      count = std::max(count, c.count());
    }
    branch = rank.room<uint16_t>(count);
    x = rank.room<uint16_t>(count);
    out = rank.room<uint16_t>(count);
    out_scale = rank.room<float>(rows);
    row_scale = rank.room<float>(rows);
    for (float** one : {&column_scale, &norm, &branch_norm}) *one = rank.room<float>(cols);
    bias = rank.room<uint16_t>(cols);
  }

  void fill(const ResidualCase& c, uint32_t seed) {
    const auto put = [&](auto* to, const auto& values) {
      succeed(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(values[0]),
                              cudaMemcpyHostToDevice, rank_.stream));
      succeed(cudaStreamSynchronize(rank_.stream));
    };
    const auto rows = static_cast<size_t>(c.rows);
    const auto cols = static_cast<size_t>(c.cols);
    const uint32_t own = seed * 8 + static_cast<uint32_t>(rank_.index());
    Bits numbers = draw_bits(c.count(), own, 2.0f);
    for (size_t i = own % 5 * 4; c.has_nans && i + 8 < c.count(); i += 300) {
      std::fill_n(numbers.begin() + static_cast<std::ptrdiff_t>(i), 1 + i % 8, uint16_t{0xffff});
    }
    put(branch, numbers);
    put(x, draw_bits(c.count(), seed, 3.0f));
    put(out, Bits(c.count(), 0x7777));
    put(out_scale, std::vector<float>(rows, -1.0f));
    put(row_scale, draw_floats(rows, own));
    put(column_scale, draw_floats(cols, own + 1));
    put(bias, draw_bits(cols, own, 0.5f));
    put(norm, draw_floats(cols, seed + 2));
    put(branch_norm, draw_floats(cols, seed + 3));
  }

  PeerResidualParams params(const ResidualCase& c) const {
    PeerResidualParams params;
    params.links = rank_.comm.links(false);
    if (c.is_scaled) params.scales = {row_scale, column_scale, bias};
    params.way = c.way;
    params.row_blocks = c.row_blocks;
    ResidualNormParams& rest = params.norm;
    rest.rounds = c.rounds;
    rest.x = x;
    rest.delta = branch;
    if (c.has_branch_norm) rest.delta_norm = branch_norm;
    if (c.rows % 2 == 1) rest.delta_scale = 0.22f;
    if (c.rows % 3 == 1) rest.sum_scale = 0.75f;
    rest.norm = norm;
    rest.rows = c.rows;
    rest.hidden = c.cols;
    if (c.out == Out::kFp8) rest.out_scale = out_scale;
    if (c.out != Out::kNone) rest.out = c.out == Out::kBf16OverBranch ? branch : out;
    return params;
  }

  // All that an op writes.
  Bytes written(const ResidualCase& c) const {
    Bytes all;
    const auto add = [&](const auto* from, size_t count) {
      const auto values = rank_.to_host(from, count);
      const size_t begin = all.size();
      all.resize(begin + count * sizeof(values[0]));
      std::memcpy(all.data() + begin, values.data(), count * sizeof(values[0]));
    };
    add(x, c.count());
    add(c.out == Out::kBf16OverBranch ? branch : out, c.count());
    add(out_scale, static_cast<size_t>(c.rows));
    return all;
  }

  uint16_t* branch = nullptr;
  uint16_t* x = nullptr;
  uint16_t* out = nullptr;
  uint16_t* bias = nullptr;
  float* out_scale = nullptr;
  float* row_scale = nullptr;
  float* column_scale = nullptr;
  float* norm = nullptr;
  float* branch_norm = nullptr;

 private:
  PeerRank& rank_;
};

void launch_two_kernels(const PeerResidualParams& params, cudaStream_t stream) {
  PeerSumParams sum;
  sum.links = params.links;
  sum.y = const_cast<void*>(params.norm.delta);
  sum.scales = params.scales;
  sum.rows = params.norm.rows;
  sum.cols = params.norm.hidden;
  succeed(launch_peer_sum(sum, stream));
  succeed(launch_residual_norm(params.norm, stream));
}

class PeerResidual : public PeerTest {};

TEST_P(PeerResidual, BitsAreThoseOfTheSumAndTheNorm) {
  const Comms comms = group();
  const std::vector<ResidualCase> cases = residual_cases();
  run_ranks(comms, [&](PeerRank& rank) {
    Buffers buffers(rank, cases);
    rank.all_have_allocated();
    for (size_t i = 0; i < cases.size(); ++i) {
      const ResidualCase& c = cases[i];
      const auto seed = static_cast<uint32_t>(i);
      PeerResidualParams params = buffers.params(c);
      params.norm.lets_next_begin = i % 2 == 1;
      buffers.fill(c, seed);
      launch_two_kernels(params, rank.stream);
      const Bytes expected = buffers.written(c);
      buffers.fill(c, seed);
      ASSERT_TRUE(has_peer_residual(params)) << c.to_string();
      succeed(launch_peer_residual_norm(params, rank.stream));
      ASSERT_TRUE(buffers.written(c) == expected)
          << "rank " << rank.index() << ": " << c.to_string();
    }
  });
  EXPECT_TRUE(comms[0]->status());
}

// A rank may need the sum alone where another goes on, as one whose rows are tapped does.
TEST_P(PeerResidual, RanksMayDifferInWhatFollowsTheSum) {
  const Comms comms = group();
  const std::vector<ResidualCase> cases = residual_cases();
  run_ranks(comms, [&](PeerRank& rank) {
    Buffers buffers(rank, cases);
    rank.all_have_allocated();
    for (size_t i = 0; i < cases.size(); ++i) {
      const ResidualCase& c = cases[i];
      const auto seed = static_cast<uint32_t>(i);
      PeerResidualParams params = buffers.params(c);
      buffers.fill(c, seed);
      launch_two_kernels(params, rank.stream);
      const Bytes expected = buffers.written(c);
      buffers.fill(c, seed);
      params.only_sums = (i + static_cast<size_t>(rank.index())) % 2 == 0;
      succeed(launch_peer_residual_norm(params, rank.stream));
      if (params.only_sums) succeed(launch_residual_norm(params.norm, rank.stream));
      ASSERT_TRUE(buffers.written(c) == expected)
          << "rank " << rank.index() << ": " << c.to_string();
    }
  });
  EXPECT_TRUE(comms[0]->status());
}

// On a stream, once in four times: the rank comes late. Most often by no more than an exchange
// takes, for which a sleep is too long, at times by more than a wait looks for no faults.
struct Delays {
  std::mt19937 engine;
  void enqueue(cudaStream_t stream) {
    const auto delay = [](void* of) {
      std::mt19937& draw = static_cast<Delays*>(of)->engine;
      if (draw() % 4 != 0) return;
      const std::chrono::microseconds late(draw() % (draw() % 8 == 0 ? 200 : 20));
      for (const auto begin = Clock::now(); Clock::now() - begin < late;) continue;
    };
    succeed(cudaLaunchHostFunc(stream, delay, this));
  }
};

// One graph of many cases, of which every kernel reads what the one before left in x, with ranks
// that come late to it and to some of its kernels. Scaled rows are divided in two.
void replay_residuals(const Comms& comms, bool is_scaled, int num_replays, int check_every) {
  std::vector<ResidualCase> cases;
  for (const int64_t rows : {1, 64, 9, 130, 2}) {
    for (const PeerWay way : kWays) {
      cases.push_back({rows, 4096, way, is_scaled ? 2 : 0, Out::kBf16OverBranch});
      cases.back().is_scaled = cases.back().has_branch_norm = is_scaled;
    }
  }
  const ResidualCase most = {130, 4096, PeerWay::kOneShot, 0, Out::kBf16OverBranch};
  run_ranks(comms, [&](PeerRank& rank) {
    Buffers buffers(rank, {most});
    buffers.fill(most, 1);
    auto* const first_x = rank.room<uint16_t>(most.count());
    auto* const first_branch = rank.room<uint16_t>(most.count());
    const auto copy = [&](uint16_t* to, const uint16_t* from) {
      succeed(cudaMemcpyAsync(to, from, most.count() * sizeof(*to), cudaMemcpyDeviceToDevice,
                              rank.stream));
    };
    copy(first_x, buffers.x);
    copy(first_branch, buffers.branch);
    PeerGatherParams meet{.links = rank.comm.links(false), .part = rank.room<float>(1), .rows = 1};
    meet.out = rank.room<float>(static_cast<size_t>(rank.count()));
    for (int i = 0; i <= rank.count(); ++i) meet.begin[i] = i;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    Delays delays{std::mt19937(static_cast<uint32_t>(rank.index()) + 100)};
    succeed(cudaStreamBeginCapture(rank.stream, cudaStreamCaptureModeThreadLocal));
    copy(buffers.x, first_x);
    copy(buffers.branch, first_branch);
    for (size_t i = 0; i < cases.size(); ++i) {
      if (i % 5 == 2) delays.enqueue(rank.stream);
      succeed(launch_peer_residual_norm(buffers.params(cases[i]), rank.stream));
      if (i % 4 == 1) succeed(launch_peer_gather(meet, rank.stream));
      if (i % 4 == 3) launch_two_kernels(buffers.params(cases[i]), rank.stream);
    }
    succeed(cudaStreamEndCapture(rank.stream, &graph));
    succeed(cudaGraphInstantiate(&exec, graph, 0));
    std::mt19937 engine(static_cast<uint32_t>(rank.index()));
    rank.all_have_allocated();
    for (size_t i = 0; i < cases.size(); ++i) {
      for (int j = 0; j < (i % 4 == 3 ? 2 : 1); ++j) {
        launch_two_kernels(buffers.params(cases[i]), rank.stream);
      }
    }
    const Bytes expected = buffers.written(most);
    for (int replay = 0; replay < num_replays; ++replay) {
      if (engine() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(engine() % 500));
      succeed(cudaGraphLaunch(exec, rank.stream));
      if (replay % check_every != 0) continue;  // ranks run ahead of each other
      ASSERT_TRUE(buffers.written(most) == expected)
          << "rank " << rank.index() << ", replay " << replay;
    }
    succeed(cudaStreamSynchronize(rank.stream));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  });
  EXPECT_TRUE(comms[0]->status());
}

TEST_P(PeerResidual, GraphsReplayWhileRanksComeLate) {
  for (const bool is_scaled : {false, true}) replay_residuals(group(), is_scaled, 300, 10);
}

class SlowPeerResidual : public PeerTest {};

TEST_P(SlowPeerResidual, HundredThousandReplaysWhileRanksComeLate) {
  replay_residuals(group(), false, 100'000, 500);
}
TEST_P(SlowPeerResidual, HundredThousandReplaysOfScaledRowsWhileRanksComeLate) {
  replay_residuals(group(), true, 100'000, 500);
}

TEST_P(PeerResidual, ARankThatDoesNotComeIsAnErrorInTime) {
  for (const PeerWay way : kWays) {
    const Comms comms = group(PeerComm::kPatienceMs);
    std::barrier<> alone(1);
    PeerRank rank(*comms[1], alone);
    comms[1]->open();
    const ResidualCase c = {64, 8192, way};
    Buffers buffers(rank, {c});
    buffers.fill(c, 1);
    const auto begin = Clock::now();
    for (int i = 0; i < 200; ++i) {
      succeed(launch_peer_residual_norm(buffers.params(c), rank.stream));
    }
    succeed(cudaStreamSynchronize(rank.stream));
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(3000))
        << "one wait, not two hundred: " << c.to_string();
    const Result<void> status = comms[0]->status();
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("did not come to an exchange with rank 1 within 2000 ms"),
              std::string::npos)
        << status.error().message;
  }
}

TEST_P(PeerResidual, RanksAtDifferentRowsOrWaysFail) {
  for (const PeerWay way : kWays) {
    for (const bool differ_in_way : {false, true}) {
      const Comms comms = group(2000);
      run_ranks(comms, [&](PeerRank& rank) {
        ResidualCase c = {4, 4096, way};
        if (rank.index() == 0 && !differ_in_way) c.rows = 5;
        if (rank.index() == 0 && differ_in_way) {
          c.way = way == PeerWay::kOneShot ? PeerWay::kTwoShot : PeerWay::kOneShot;
        }
        Buffers buffers(rank, {c});
        buffers.fill(c, 1);
        rank.all_have_allocated();
        succeed(launch_peer_residual_norm(buffers.params(c), rank.stream));
        succeed(cudaStreamSynchronize(rank.stream));
      });
      const Result<void> status = comms[0]->status();
      ASSERT_FALSE(status);
      EXPECT_NE(status.error().message.find("are at different ops or rows"), std::string::npos)
          << status.error().message;
    }
  }
}

TEST_P(PeerResidual, ARankThatFailsEndsTheWaitOfAll) {
  for (const PeerWay way : kWays) {
    const Comms comms = group(60'000);
    const auto begin = Clock::now();
    run_ranks(comms, [&](PeerRank& rank) {
      const ResidualCase c = {128, 8192, way};
      Buffers buffers(rank, {c});
      buffers.fill(c, 1);
      rank.all_have_allocated();
      if (rank.index() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        rank.comm.fail({ErrorCode::kOverloaded, "no memory", "device"});
        return;
      }
      succeed(launch_peer_residual_norm(buffers.params(c), rank.stream));
      succeed(cudaStreamSynchronize(rank.stream));
    });
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(20'000));
    const Result<void> status = comms[1]->status();
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "no memory");
  }
}

TEST_P(PeerResidual, WhatThereIsNoKernelForIsRefused) {
  const Comms comms = group();
  std::barrier<> alone(1);
  PeerRank rank(*comms[0], alone);
  const ResidualCase c = {2, 64};
  const Buffers buffers(rank, {c});
  PeerResidualParams params = buffers.params(c);
  EXPECT_FALSE(params.links.is_open);
  EXPECT_EQ(launch_peer_residual_norm(params, rank.stream), cudaErrorInvalidValue);
  EXPECT_TRUE(has_peer_residual(params));
  params.norm.norm_alpha = params.norm.norm;
  EXPECT_FALSE(has_peer_residual(params)) << "a norm that clips";
  params = buffers.params(c);
  params.norm.hidden = 60;
  EXPECT_FALSE(has_peer_residual(params)) << "rows that are not aligned";
  params.norm.hidden = 2 * kMaxNormWidth;
  EXPECT_FALSE(has_peer_residual(params)) << "rows that are too wide";
}

// The op, against its parts: as the kernels' rule chooses them at few rows and at many.
TEST_P(PeerResidual, TheOpIsItsParts) {
  const std::vector<int32_t> devices = GetParam();
  Result<std::vector<std::unique_ptr<ops::Ops>>> made = make_cuda_ranks({}, devices);
  ASSERT_TRUE(made) << made.error().to_string();
  constexpr int64_t kCols = 4096;
  constexpr int64_t kMostRows = 200;
  std::barrier<> barrier(std::ssize(*made));
  const auto run = [&](ops::Ops& ops, int32_t device, uint32_t index) {
    use_device(device);
    const auto upload = [&](const Bits& bits) {
      const ops::View host{
          const_cast<uint16_t*>(bits.data()), tensor::DType::kBF16, {kMostRows, kCols}};
      return ops.upload(host, tensor::DType::kBF16).value();
    };
    const Bits branch = draw_bits(kMostRows * kCols, index + 5, 2.0f);
    const Bits x = draw_bits(kMostRows * kCols, 3, 2.0f);
    const std::vector<float> weight = draw_floats(kCols, 4);
    const ops::View norm =
        ops.upload({const_cast<float*>(weight.data()), tensor::DType::kF32, {kCols}},
                   tensor::DType::kF32)
            .value();
    struct Side {
      ops::View branch, x, out;
    };
    const std::vector<int64_t> all_rows = {1, 16, 17, 64, 128, 129, kMostRows};
    std::vector<Side> whole, parts;
    for (size_t i = 0; i < all_rows.size(); ++i) {
      whole.push_back({upload(branch), upload(x), upload(x)});
      parts.push_back({upload(branch), upload(x), upload(x)});
    }
    const auto host = [&](const ops::View& view, int64_t rows) {
      Bits bits(static_cast<size_t>(rows * kCols));
      succeed(cudaMemcpy(bits.data(), view.data, bits.size() * 2, cudaMemcpyDeviceToHost));
      return bits;
    };
    const auto done = ops.make_event();
    ops.rank_ops()->comm()->open();
    ops.record(*done);
    EXPECT_TRUE(done->wait());
    barrier.arrive_and_wait();
    for (size_t i = 0; i < all_rows.size(); ++i) {
      const int64_t rows = all_rows[i];
      ops.residual_norm({.x = whole[i].x.rows(0, rows),
                         .delta = whole[i].branch.rows(0, rows),
                         .norm = {.weight = norm},
                         .out = whole[i].out.rows(0, rows),
                         .sums_ranks = true});
      ops.rank_ops()->sum_ranks(parts[i].branch.rows(0, rows));
      ops.residual_norm({.x = parts[i].x.rows(0, rows),
                         .delta = parts[i].branch.rows(0, rows),
                         .norm = {.weight = norm},
                         .out = parts[i].out.rows(0, rows)});
    }
    ops.record(*done);
    EXPECT_TRUE(done->wait());
    barrier.arrive_and_wait();  // a copy may wait for the device
    for (size_t i = 0; i < all_rows.size(); ++i) {
      EXPECT_EQ(host(whole[i].x, all_rows[i]), host(parts[i].x, all_rows[i])) << all_rows[i];
      EXPECT_EQ(host(whole[i].out, all_rows[i]), host(parts[i].out, all_rows[i])) << all_rows[i];
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < made->size(); ++i) {
    threads.emplace_back([&, i] { run(*(*made)[i], devices[i], static_cast<uint32_t>(i)); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of wide rows the kernels need a GPU of their own.
INSTANTIATE_TEST_SUITE_P(Gpus, PeerResidual, ::testing::Values(Gpus{0, 1}, Gpus{0, 1, 2, 3}),
                         gpus_of);
INSTANTIATE_TEST_SUITE_P(Slow, SlowPeerResidual, ::testing::Values(Gpus{0, 1}, Gpus{0, 1, 2, 3}),
                         gpus_of);

}  // namespace
}  // namespace rudder::cuda
