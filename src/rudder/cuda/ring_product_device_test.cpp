// The product whose weights go through a ring: every way to cut it up.
#include "rudder/cuda/kernels/products/ring_product.h"

#include "rudder/cuda/kernels/measure/pause.h"
#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/linear_test.h"

namespace rudder::cuda {
namespace {

class RingProduct : public LinearDevice {
 protected:
  View run(const Case& c, const Operands& o, int64_t first, int64_t tokens,
           const RingShape& shape) {
    const View y = poisoned({tokens, c.out}, c.out_dtype);
    bytes_of(y);  // all of its stream is done
    EXPECT_EQ(launch_ring_product(product(c, o, first, tokens, y), shape, kNumSms, nullptr),
              cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return y;
  }
};

// A row is added in the same order whatever shares the call: with more tiles than there are
// multiprocessors, with rows, chunks and parts that are not full, with fewer chunks than slots or
// parts.
TEST_F(RingProduct, EveryShapeIsRightAndGivesTheSameBitsInAnyCompany) {
  const Case cases[] = {{16, 16},
                        {304, 1008, DType::kBF16, DType::kBF16, true},
                        {1001, 200, DType::kBF16, DType::kBF16, true},
                        {48, 8192, DType::kBF16, DType::kF32, false, 20},
                        {8208, 3600},
                        {34000, 720}};
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    for (Case c : cases) {
      if (dtype == DType::kF8E4M3 && c.out % 16 != 0) continue;
      c.dtype = dtype;
      const Operands o = make(c, kRingMaxTokens);
      for (const int32_t rows : kRingRows) {
        for (const int32_t splits : kRingSplits) {
          if (!ring_takes(product(c, o, 0, kRingMaxTokens, {}), {rows, splits})) continue;
          const std::string what =
              fmt::format("{} rows, {} parts of {}", rows, splits, c.to_string());
          const View all = run(c, o, 0, kRingMaxTokens, {rows, splits});
          if (c.out < 2000) expect_product(all, o, c, what);  // in fp64, on the host
          const std::vector<uint8_t> want = bytes_of(all);
          const auto row_bytes = static_cast<int64_t>(want.size()) / kRingMaxTokens;
          for (const int64_t tokens : {1, 8, 9, 33, 50}) {
            const int64_t first = kRingMaxTokens - tokens;
            const std::vector<uint8_t> got = bytes_of(run(c, o, first, tokens, {rows, splits}));
            EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * row_bytes))
                << tokens << " tokens, " << what;
          }
        }
      }
    }
  }
}

// Also where the kernel that writes x has let it begin before it waited for the one in front of it.
TEST_F(RingProduct, ReadsWhatAKernelThatLetItBeginHasWritten) {
  start_with(DType::kF8E4M3);
  const Case c{8208, 3600, DType::kF8E4M3};
  const Operands o = make(c, kRingMaxTokens);
  QuantiseParams quantise;
  const View act = to_device(random(kRingMaxTokens * c.in), {kRingMaxTokens, c.in});
  quantise.x = act.data;
  quantise.rows = kRingMaxTokens;
  quantise.width = c.in;
  quantise.out = o.x.data;
  quantise.out_scale = o.x_scale.as<float>();
  bytes_of(o.x);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  for (const RingShape& shape : {RingShape{64, 1}, RingShape{96, 4}, RingShape{128, 2}}) {
    ASSERT_EQ(launch_quantise(quantise, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<uint8_t> want = bytes_of(run(c, o, 0, kRingMaxTokens, shape));
    for (const bool lets_next_begin : {false, true}) {
      quantise.lets_next_begin = lets_next_begin;
      const View y = poisoned({kRingMaxTokens, c.out});
      bytes_of(y);
      for (int repeat = 0; repeat < 20; ++repeat) {
        ASSERT_EQ(cudaMemsetAsync(o.x.data, 0x7f, o.x.bytes(), stream), cudaSuccess);  // NaN
        ASSERT_EQ(launch_pause(20'000, lets_next_begin, kNumSms, stream), cudaSuccess);
        ASSERT_EQ(launch_quantise(quantise, stream), cudaSuccess);
        ASSERT_EQ(launch_ring_product(product(c, o, 0, kRingMaxTokens, y), shape, kNumSms, stream),
                  cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        ASSERT_TRUE(bytes_of(y) == want) << shape.rows << " rows, " << shape.splits << " parts";
      }
    }
  }
  cudaStreamDestroy(stream);
}

TEST_F(RingProduct, TakesNoOtherShapes) {
  start_with(DType::kBF16);
  const Case c{304, 1008};
  const Operands o = make(c, kRingMaxTokens);
  const View y = poisoned({kRingMaxTokens, c.out});
  const GemvParams good = product(c, o, 0, kRingMaxTokens, y);
  EXPECT_TRUE(ring_takes(good, {64, 2}));
  GemvParams many = good;
  many.tokens = kRingMaxTokens + 1;
  GemvParams odd = good;
  odd.in = 1004;
  GemvParams askew = good;
  askew.x = static_cast<const char*>(good.x) + 2;
  for (const auto& [params, shape] :
       std::vector<std::pair<GemvParams, RingShape>>{{good, {}},
                                                     {good, {40, 1}},
                                                     {good, {64, 3}},
                                                     {many, {64, 1}},
                                                     {odd, {64, 1}},
                                                     {askew, {64, 1}}}) {
    EXPECT_FALSE(ring_takes(params, shape));
    EXPECT_EQ(launch_ring_product(params, shape, kNumSms, nullptr), cudaErrorInvalidValue);
  }
}

}  // namespace
}  // namespace rudder::cuda
