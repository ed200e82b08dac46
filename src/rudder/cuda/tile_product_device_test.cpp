// Products whose sums have one order in any number of rows: every way to cut them up.
#include "rudder/cuda/kernels/products/tile_product.h"

#include "rudder/cuda/kernels/products/ring_product.h"
#include "rudder/cuda/linear_test.h"
#include "rudder/cuda/shape_kernels.h"

namespace rudder::cuda {
namespace {

class TileProduct : public LinearDevice {
 protected:
  template <typename Launch>
  View run(const Case& c, const Operands& o, int64_t first, int64_t tokens, Launch launch) {
    const View y = poisoned({tokens, c.out}, c.out_dtype);
    bytes_of(y);  // all of its stream is done
    EXPECT_EQ(launch(product(c, o, first, tokens, y)), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return y;
  }
};

// Whatever the tile, in a cluster or in turn, and as the ring: with tiles, chunks and parts that
// are not full, with parts that have nothing, with more tiles than there are multiprocessors.
TEST_F(TileProduct, EveryShapeIsRightAndGivesTheBitsOfTheRing) {
  constexpr int64_t kTokens = 333;
  const Case cases[] = {{16, 16},
                        {304, 1008, DType::kBF16, DType::kBF16, true},
                        {1001, 336, DType::kBF16, DType::kBF16, true},
                        {80, 8192, DType::kBF16, DType::kF32},
                        {8208, 3600},
                        {17008, 720}};
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    for (Case c : cases) {
      if (dtype == DType::kF8E4M3 && c.out % 16 != 0) continue;
      c.dtype = dtype;
      const Operands o = make(c, kTokens);
      for (const int32_t splits : kRingSplits) {
        std::vector<uint8_t> want;
        const auto expect_same = [&](const std::string& name, int64_t tokens, auto launch) {
          const int64_t first = kTokens - tokens;
          const View y = run(c, o, first, tokens, launch);
          const std::vector<uint8_t> got = bytes_of(y);
          const std::string what =
              fmt::format("{}, {} parts, {} tokens of {}", name, splits, tokens, c.to_string());
          if (want.empty()) {
            want = got;
            if (c.out < 2000) expect_product(y, o, c, what);  // in fp64, on the host
          }
          const auto row_bytes = static_cast<int64_t>(want.size()) / kTokens;
          EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * row_bytes)) << what;
        };
        for (const bool side_by_side : {false, true}) {
          for (const int32_t rows : kTileRows) {
            const TileShape shape{rows, splits, side_by_side};
            if (!tile_takes(product(c, o, 0, kTokens, {}), shape)) continue;
            for (const int64_t tokens : {kTokens, int64_t{1}, int64_t{65}, int64_t{129}}) {
              expect_same(fmt::format("tiles of {}{}", rows, side_by_side ? " side by side" : ""),
                          tokens, [&](const GemvParams& p) {
                            return launch_tile_product(p, shape, kNumSms, nullptr);
                          });
            }
          }
        }
        for (const int32_t rows : kRingRows) {
          const RingShape shape{rows, splits};
          if (!ring_takes(product(c, o, 0, kRingMaxTokens, {}), shape)) continue;
          for (const int64_t tokens : {int64_t{1}, int64_t{40}, kRingMaxTokens}) {
            expect_same(fmt::format("ring of {}", rows), tokens, [&](const GemvParams& p) {
              return launch_ring_product(p, shape, kNumSms, nullptr);
            });
          }
        }
      }
    }
  }
}

TEST_F(TileProduct, TakesNoOtherShapes) {
  start_with(DType::kBF16);
  const Case c{304, 1008};
  const Operands o = make(c, 100);
  const View y = poisoned({100, c.out});
  const GemvParams good = product(c, o, 0, 100, y);
  EXPECT_TRUE(tile_takes(good, {128, 2, true}));
  GemvParams odd = good;
  odd.in = 1004;
  GemvParams askew = good;
  askew.x = static_cast<const char*>(good.x) + 2;
  GemvParams capped = good;
  capped.softcap = 30;
  GemvParams fp8 = good;
  fp8.is_fp8 = true;
  for (const auto& [params, shape] :
       std::vector<std::pair<GemvParams, TileShape>>{{good, {}},
                                                     {good, {112, 1, false}},
                                                     {good, {128, 3, false}},
                                                     {good, {128, 1, true}},
                                                     {good, {224, 2, false}},
                                                     {fp8, {224, 1, false}},
                                                     {fp8, {160, 2, false}},
                                                     {odd, {128, 1, false}},
                                                     {askew, {128, 1, false}},
                                                     {capped, {128, 1, false}}}) {
    EXPECT_FALSE(tile_takes(params, shape));
    EXPECT_EQ(launch_tile_product(params, shape, kNumSms, nullptr), cudaErrorInvalidValue);
  }
}

// All that a product may be measured with in batch-invariant mode, for few tokens and for many,
// with a soft-cap too.
TEST_F(TileProduct, EveryCandidateOfAFixedOrderGivesTheSameBits) {
  constexpr int64_t kTokens = 700;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const CublasLtApi* api = value_of(load_cublaslt(""));
  cublasLtHandle_t handle = nullptr;
  ASSERT_EQ(api->create(&handle), CUBLAS_STATUS_SUCCESS);
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    for (const Case& c : {Case{528, 2064, dtype, DType::kBF16, true},
                          Case{1104, 528, dtype, DType::kF32, false, 30}}) {
      auto shape_kernels = value_of(ShapeKernels::make(
          {api, handle, stream, {}}, {c.out, c.in, c.dtype, c.out_dtype, c.bias, 0}, true));
      ASSERT_TRUE(shape_kernels->has_fixed_order());
      const Operands o = make(c, kTokens);
      const CudaWeight& stored = cuda_weight(o.weight);
      bytes_of(o.x);  // all of the first stream is done
      std::vector<uint8_t> want;
      for (const int64_t tokens : {kTokens, int64_t{1}, int64_t{17}, int64_t{64}, int64_t{130}}) {
        const int64_t first = kTokens - tokens;
        const auto found = value_of(shape_kernels->candidates(bucket_of(tokens), 8));
        EXPECT_GT(found.size(), 1U);
        for (const PolicyEntry& entry : found) {
          EXPECT_TRUE(shape_kernels->settle(bucket_of(tokens), entry));
          const View y = poisoned({tokens, c.out}, c.out_dtype);
          bytes_of(y);
          const Result<bool> done = shape_kernels->run(
              {.x = o.x.rows(first, tokens).data,
               .x_scale = o.x_scale.empty() ? nullptr : o.x_scale.as<float>() + first,
               .weight = stored.weight.data,
               .w_scale = static_cast<const float*>(stored.scale.data),
               .bias = stored.bias.data,
               .y = y.data,
               .tokens = tokens,
               .softcap = c.softcap});
          ASSERT_TRUE(done) << done.error().to_string();
          ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
          const std::vector<uint8_t> got = bytes_of(y);
          if (want.empty()) {
            want = got;
            expect_product(y, o, c, c.to_string());
          }
          const auto row_bytes = static_cast<int64_t>(want.size()) / kTokens;
          EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * row_bytes))
              << tokens << " tokens of " << c.to_string() << ", kernel "
              << static_cast<int>(entry.kernel) << " of " << entry.algorithm[0];
        }
      }
      // Others take sums in another order.
      PolicyEntry other = value_of(shape_kernels->candidates(64, 1)).front();
      other.algorithm[1] = other.algorithm[1] == 1 ? 2 : 1;
      EXPECT_FALSE(shape_kernels->settle(64, other));
      EXPECT_FALSE(shape_kernels->settle(1, {ProductKernel::kGemv, {}, 0}));
    }
  }
  api->destroy(handle);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace rudder::cuda
