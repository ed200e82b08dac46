// Products on a device: every kernel that may multiply a shape against sums in fp64, and rows alone
// against rows in company.
#include <unistd.h>

#include <algorithm>

#include "rudder/cuda/cublaslt_api.h"
#include "rudder/cuda/device_info.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/kernels/products/low_product.h"
#include "rudder/cuda/linear_test.h"
#include "rudder/cuda/shape_kernels.h"

namespace rudder::cuda {
namespace {

constexpr int64_t kTokens[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 40, 100, 257};

TEST_F(LinearDevice, Bf16) {
  start_with(DType::kBF16);
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{64, 96},
                                                                        {8, 16},
                                                                        {24, 5},
                                                                        {72, 17},
                                                                        {512, 33},
                                                                        {1000, 300},
                                                                        {3584, 64},
                                                                        {33, 31},
                                                                        {1, 1},
                                                                        {301, 127},
                                                                        {100, 15}}) {
    for (const int64_t tokens : kTokens) {
      run_and_compare({out, in, DType::kBF16, DType::kBF16, tokens % 2 == 0}, tokens);
    }
  }
}

TEST_F(LinearDevice, Bf16ToLogits) {
  start_with(DType::kBF16);
  for (const auto& [in, out] :
       std::vector<std::pair<int64_t, int64_t>>{{64, 256}, {96, 307}, {1152, 2560}, {33, 40}}) {
    for (const int64_t tokens : kTokens) {
      run_and_compare({out, in, DType::kBF16, DType::kF32, false, tokens % 3 == 0 ? 30.0f : 0.0f},
                      tokens);
    }
  }
}

TEST_F(LinearDevice, Fp8) {
  start_with(DType::kF8E4M3);
  for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 96}, {16, 16}, {48, 32}, {80, 48}, {512, 1024}, {1008, 304}, {3584, 64}}) {
    for (const int64_t tokens : kTokens) {
      run_and_compare({out, in, DType::kF8E4M3, DType::kBF16, tokens % 2 == 0}, tokens);
    }
  }
}

TEST_F(LinearDevice, Fp8ToLogits) {
  start_with(DType::kF8E4M3);
  for (const int64_t tokens : kTokens) {
    run_and_compare({2560, 256, DType::kF8E4M3, DType::kF32, false, tokens % 3 == 0 ? 30.0f : 0.0f},
                    tokens);
  }
}

// Parts are stacked in their order, each of its own stored type.
TEST_F(LinearDevice, PartsAreStacked) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    const std::vector<float> w = random(96 * 64);
    std::vector<uint16_t> half;
    for (size_t i = 0; i < size_t{32} * 64; ++i) half.push_back(tensor::to_f16(w[i]).bits);
    const ops::LinearPart parts[] = {
        ops::wide_part({half.data(), DType::kF16, {32, 64}}),
        ops::wide_part({const_cast<float*>(w.data()) + 32 * 64, DType::kF32, {64, 64}})};
    const ops::LinearWeight stacked = value_of(ops_->make_linear(parts));
    EXPECT_EQ(stacked.out, 96);
    const CudaWeight& stored = cuda_weight(stacked);
    const Case c{96, 64, dtype};
    if (dtype == DType::kF8E4M3) {
      expect_quantised(scaled(stored.weight, stored.scale, 64), w, c);
    } else {
      EXPECT_EQ(to_host(stored.weight), w);
    }
  }
}

// What a checkpoint has as fp8 is not quantised again, whatever else is.
TEST_F(LinearDevice, StoredFp8KeepsItsBytes) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    std::vector<uint8_t> bytes(size_t{96} * 64);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 % 0x7f);
    std::vector<float> scales(96);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.001f * static_cast<float>(i + 1);
    const ops::LinearPart parts[] = {{.format = ops::kFp8Rows,
                                      .codes = {bytes.data(), DType::kF8E4M3, {32, 64}},
                                      .scales = {scales.data(), DType::kF32, {32, 1}}},
                                     {.format = ops::kFp8Rows,
                                      .codes = {bytes.data() + 32 * 64, DType::kF8E4M3, {64, 64}},
                                      .scales = {scales.data() + 32, DType::kF32, {64, 1}}}};
    const ops::LinearWeight stacked = value_of(ops_->make_linear(parts));
    EXPECT_EQ(stacked.input, ops::InputForm::kF8Rows);
    EXPECT_EQ(stacked.bytes, 96 * 64 + 96 * 4);
    EXPECT_EQ(bytes_of(cuda_weight(stacked).weight), bytes);
    EXPECT_EQ(to_host(cuda_weight(stacked).scale), scales);
  }
}

// The stream over the weight adds a row in the same order whatever shares the call.
TEST_F(LinearDevice, FewTokensGiveTheSameBitsInAnyCompany) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    const Case c{304, 1008, dtype, DType::kBF16, true};
    const Operands o = make(c, kGemvMaxTokens);
    const View all = poisoned({kGemvMaxTokens, c.out});
    ops_->linear({.x = o.x, .x_scale = o.x_scale, .weight = &o.weight, .out = all});
    const std::vector<uint8_t> want = bytes_of(all);
    for (int64_t count = 1; count < kGemvMaxTokens; ++count) {
      const int64_t first = kGemvMaxTokens - count;
      const View y = poisoned({count, c.out});
      ops_->linear({.x = o.x.rows(first, count),
                    .x_scale = o.x_scale.empty() ? View{} : o.x_scale.rows(first, count),
                    .weight = &o.weight,
                    .out = y});
      const std::vector<uint8_t> got = bytes_of(y);
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * c.out * 2))
          << count << " rows of " << c.to_string();
    }
  }
}

// So does every way to stream it.
TEST_F(LinearDevice, EveryVariantGivesTheSameBits) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{
             {16, 16}, {1008, 304}, {3584, 4608}, {18944, 112}}) {
      for (const int64_t tokens : {1, 8, 13, 16}) {
        const Case c{out, in, dtype, DType::kBF16, tokens == 8};
        const Operands o = make(c, tokens);
        const CudaWeight& stored = cuda_weight(o.weight);
        std::vector<uint8_t> want;
        for (int32_t variant = 0; variant < gemv_variants(tokens); ++variant) {
          const View y = poisoned({tokens, out});
          bytes_of(y);
          GemvParams params;
          params.weight = stored.weight.data;
          params.x = o.x.data;
          params.x_scale = static_cast<const float*>(o.x_scale.data);
          params.w_scale = static_cast<const float*>(stored.scale.data);
          params.bias = stored.bias.data;
          params.y = y.data;
          params.out = out;
          params.in = in;
          params.tokens = static_cast<int32_t>(tokens);
          params.is_fp8 = dtype == DType::kF8E4M3;
          params.variant = variant;
          ASSERT_EQ(launch_gemv(params, nullptr), cudaSuccess);
          ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
          const std::vector<uint8_t> got = bytes_of(y);
          if (variant == 0) want = got;
          EXPECT_EQ(got, want) << variant << " for " << tokens << " tokens of " << c.to_string();
        }
      }
    }
  }
}

// Each algorithm that the library proposes, not only its first.
TEST_F(LinearDevice, EveryCandidate) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    start_with(dtype);
    const CublasLtApi* api = value_of(load_cublaslt(""));
    cublasLtHandle_t handle = nullptr;
    ASSERT_EQ(api->create(&handle), CUBLAS_STATUS_SUCCESS);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    const View workspace = value_of(ops_->allocate(DType::kU8, {int64_t{32} << 20}));
    for (const bool logits : {false, true}) {
      const Case c{512, 768, dtype, logits ? DType::kF32 : DType::kBF16, !logits};
      auto shape_kernels =
          value_of(ShapeKernels::make({api, handle, stream, {workspace.data, workspace.bytes()}},
                                      {c.out, c.in, c.dtype, c.out_dtype, c.bias, 0}));
      for (const int64_t tokens : {1, 12, 24, 64, 200}) {
        const Operands o = make(c, tokens);
        bytes_of(o.x);  // all of the first stream is done
        const CudaWeight& stored = cuda_weight(o.weight);
        const auto found = value_of(shape_kernels->candidates(bucket_of(tokens), 8));
        int outer = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          const View y = poisoned({tokens, c.out}, c.out_dtype);
          bytes_of(y);
          const Result<bool> done =
              shape_kernels->run({.x = o.x.data,
                                  .x_scale = static_cast<const float*>(o.x_scale.data),
                                  .weight = stored.weight.data,
                                  .w_scale = static_cast<const float*>(stored.scale.data),
                                  .bias = stored.bias.data,
                                  .y = y.data,
                                  .tokens = tokens,
                                  .softcap = 0},
                                 found[i]);
          EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
          const std::string what =
              fmt::format("candidate {} (kernel {}) for {} tokens of {}", i,
                          static_cast<int>(found[i].kernel), tokens, c.to_string());
          EXPECT_TRUE(done) << what << ": " << done.error().to_string();
          outer += found[i].kernel == ProductKernel::kOuter ? 1 : 0;
          expect_product(y, o, c, what);
        }
        fmt::print("  {} tokens of {}: {} candidates, {} with the library's scales\n", tokens,
                   c.to_string(), found.size(), outer);
      }
    }
    api->destroy(handle);
    cudaStreamDestroy(stream);
  }
}

TEST_F(LinearDevice, RefusesWhatItCannotStore) {
  start_with(DType::kF8E4M3);
  std::vector<float> values(33 * 48);
  const ops::LinearPart odd = ops::wide_part({values.data(), DType::kF32, {33, 48}});
  const auto refused = ops_->make_linear({&odd, 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
}

class LowBitsDevice : public LinearDevice {
 protected:
  std::vector<uint8_t> product(const ops::LinearWeight& weight, const View& x) {
    const View y = poisoned({x.shape[0], weight.out});
    ops_->linear({.x = x, .x_scale = {}, .weight = &weight, .out = y});
    return bytes_of(y);
  }
};

// Where batches shall not matter, tiles of more tokens give a row the bits of tiles of fewer.
TEST_F(LowBitsDevice, RowsHaveTheSameBitsInAnyCompany) {
  start({.tune = false, .batch_invariant = true});
  constexpr int64_t kAll = 277;
  for (const bool is_u4 : {true, false}) {
    const ops::LinearWeight weight = make_low(328, 1096, is_u4);
    const View x = to_device(random(kAll * weight.in), {kAll, weight.in});
    const std::vector<uint8_t> want = product(weight, x);
    for (const int64_t count : {1, 13, 32, 33, 64, 65, 128, 131, 256}) {
      const int64_t first = kAll - count;
      const std::vector<uint8_t> got = product(weight, x.rows(first, count));
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin() + first * weight.out * 2))
          << count << " rows of " << ops::format_name(weight.format);
    }
  }
}

// Blocks that share a sum add it up in the same order, whichever of them is done first.
TEST_F(LowBitsDevice, SumsOfPartsHaveTheSameBitsEachTime) {
  start({.tune = false});
  const ops::LinearWeight weight = make_low(1160, 4104, true);
  for (const int64_t tokens : {1, 7, 19, 50, 131}) {
    const View x = to_device(random(tokens * weight.in), {tokens, weight.in});
    const std::vector<uint8_t> want = product(weight, x);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(product(weight, x), want) << tokens << " tokens";
  }
}

// Every way to multiply: about the same results, and the same bits each time.
TEST_F(LowBitsDevice, EveryShape) {
  start({.tune = false});
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const CublasLtApi* api = value_of(load_cublaslt(""));
  const View parts = value_of(ops_->allocate(DType::kU8, {low_parts_bytes(132)}));
  const View flags = value_of(ops_->allocate(DType::kI32, {low_num_flags(132)}));
  const View room = value_of(ops_->allocate(DType::kU8, {int64_t{32} << 20}));
  for (const bool is_u4 : {true, false}) {
    const ops::LinearWeight weight = make_low(1160, 4104, is_u4);
    const CudaWeight& stored = cuda_weight(weight);
    const PolicyKey key{weight.out, weight.in, DType::kBF16,      DType::kBF16,
                        false,      0,         low_id(stored.low)};
    const auto kernels = value_of(ShapeKernels::make({api,
                                                      nullptr,
                                                      stream,
                                                      {room.data, room.bytes()},
                                                      132,
                                                      static_cast<float*>(parts.data),
                                                      static_cast<uint32_t*>(flags.data)},
                                                     key));
    for (const int64_t tokens : {1, 5, 8, 13, 29, 61, 100, 200}) {
      const View x = to_device(random(tokens * weight.in), {tokens, weight.in});
      const std::vector<uint8_t> want = product(weight, x);
      for (const PolicyEntry& entry : value_of(kernels->candidates(bucket_of(tokens), 16))) {
        const std::string what = fmt::format(
            "shape {} {} {} {} for {} tokens of {}", entry.algorithm[0], entry.algorithm[1],
            entry.algorithm[2], entry.algorithm[3], tokens, ops::format_name(weight.format));
        std::vector<uint8_t> first;
        for (int turn = 0; turn < 3; ++turn) {
          const View y = poisoned({tokens, weight.out});
          bytes_of(y);
          ASSERT_TRUE(kernels->run({.x = x.data,
                                    .weight = stored.weight.data,
                                    .w_scale = static_cast<const float*>(stored.scale.data),
                                    .y = y.data,
                                    .tokens = tokens},
                                   entry))
              << what;
          ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << what;
          const std::vector<uint8_t> got = bytes_of(y);
          if (turn == 0) first = got;
          ASSERT_EQ(got, first) << what;
        }
        const auto* const one = reinterpret_cast<const uint16_t*>(want.data());
        const auto* const other = reinterpret_cast<const uint16_t*>(first.data());
        for (int64_t i = 0; i < tokens * weight.out; ++i) {
          const float wanted = tensor::to_float(tensor::BF16{one[i]});
          const float got = tensor::to_float(tensor::BF16{other[i]});
          ASSERT_NEAR(got, wanted, 0.02F * std::abs(wanted) + 0.02F) << what << ", at " << i;
        }
      }
    }
  }
  cudaStreamDestroy(stream);
}

// What is measured is kept, found again, and gives the same results.
TEST_F(LinearDevice, PreparedFromMeasurementsAndFromTheFile) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const std::string path = fmt::format("{}policy-{}-{}.json", ::testing::TempDir(), ::getpid(),
                                         tensor::dtype_name(dtype));
    std::remove(path.c_str());
    for (const bool again : {false, true}) {
      CudaOpsSettings settings;
      settings.linear_dtype = dtype;
      settings.policy_path = path;
      start(settings);
      const Case c{1024, 512, dtype, DType::kBF16, true};
      const Operands o = make(c, 100);
      const std::vector<float> head_values = random(256 * 512);
      const ops::LinearPart part =
          ops::wide_part({const_cast<float*>(head_values.data()), DType::kF32, {256, 512}});
      const ops::LinearWeight head = value_of(ops_->make_linear({&part, 1}));
      const auto prepared = ops_->prepare({.max_tokens = 300,
                                           .max_rows = 20,
                                           .max_seqs = 20,
                                           .hidden = 512,
                                           .max_linear_in = 512,
                                           .head = &head,
                                           .linears = {&o.weight, 1},
                                           .attention = {}});
      ASSERT_TRUE(prepared) << prepared.error().to_string() << (again ? " (again)" : "");
      const View y = poisoned({100, c.out});
      ops_->linear({.x = o.x, .x_scale = o.x_scale, .weight = &o.weight, .out = y});
      expect_product(y, o, c, c.to_string() + " as prepared");
    }
    const PolicyIdentity here = [] {
      const DeviceInfo info = value_of(open_device());
      return PolicyIdentity{info.name, info.driver,
                            static_cast<int64_t>(value_of(load_cublaslt(""))->version()),
                            kOwnKernelsVersion};
    }();
    EXPECT_EQ(read_policy(path, here).size(), 13U + 6U);  // 1..320 tokens, 1..32 rows
  }
}

// A reader measures nothing: it multiplies as what it reads beside has measured, also where that is
// not the library's first guess.
TEST_F(LinearDevice, AReaderTakesWhatWasMeasured) {
  start_with(DType::kBF16);
  const Case c{512, 768, DType::kBF16, DType::kF32};
  constexpr int64_t kTokens = 60;
  const Operands o = make(c, kTokens);
  const CublasLtApi* api = value_of(load_cublaslt(""));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  {
    DeviceMemory memory(stream);
    DeviceStatus status("reader");
    const auto policy = std::make_shared<KernelPolicy>(PolicyIdentity{});
    LinearSettings settings;
    settings.tune = false;
    const auto reader = value_of(Linear::make(*api, settings, {}, memory, stream, status, policy));
    const PolicyKey key{c.out, c.in, c.dtype, c.out_dtype, false, bucket_of(kTokens)};
    const View workspace = value_of(ops_->allocate(DType::kU8, {int64_t{32} << 20}));
    cublasLtHandle_t handle = nullptr;
    ASSERT_EQ(api->create(&handle), CUBLAS_STATUS_SUCCESS);
    auto shape_kernels = value_of(
        ShapeKernels::make({api, handle, stream, {workspace.data, workspace.bytes()}}, key));
    PolicyEntry measured = value_of(shape_kernels->candidates(key.bucket, 8)).back();
    measured.microseconds = 123.4;
    policy->set(key, measured);  // when the reader is there
    const View y = poisoned({kTokens, c.out}, c.out_dtype);
    bytes_of(y);
    reader->multiply(o.x, {}, o.weight, y, 0, false, "linear");
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_NE(reader->to_table().find("123.4 us"), std::string::npos) << reader->to_table();
    expect_product(y, o, c, "as measured");
    shape_kernels.reset();
    api->destroy(handle);
  }
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace rudder::cuda
