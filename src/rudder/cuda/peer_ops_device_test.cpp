// Ops whose ranks wait for each other, against their parts.
#include "rudder/cuda/peer_test.h"

namespace rudder::cuda {
namespace {

class PeerOps : public PeerTest {};

// As the kernels' rule chooses them at few rows and at many.
TEST_P(PeerOps, SumAndNormAreTheirParts) {
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
    // Another weight for each rank, which it may fetch.
    const ops::View stored{const_cast<uint16_t*>(branch.data()), tensor::DType::kBF16, {64, kCols}};
    const ops::LinearPart part{.weight = stored, .bias = {}};
    const ops::LinearWeight next = ops.make_linear({&part, 1}).value();
    struct Side {
      ops::View branch, x, out;
    };
    const std::vector<int64_t> all_rows = {1, 16, 64, 128, 129, kMostRows};
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
    ops.comm()->open();
    ops.record(*done);
    EXPECT_TRUE(done->wait());
    barrier.arrive_and_wait();
    for (size_t i = 0; i < all_rows.size(); ++i) {
      const int64_t rows = all_rows[i];
      ops.residual_norm({.x = whole[i].x.rows(0, rows),
                         .delta = whole[i].branch.rows(0, rows),
                         .norm = {.weight = norm},
                         .out = whole[i].out.rows(0, rows),
                         .sums_ranks = true,
                         .next = &next});
      ops.sum_ranks(parts[i].branch.rows(0, rows));
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

INSTANTIATE_TEST_SUITE_P(Gpus, PeerOps, peer_groups(), gpus_of);

}  // namespace
}  // namespace rudder::cuda
