// What of the CUDA backend needs no device: where memory goes, which shapes are taken, what errors
// say.
#include <cublas_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "rudder/cuda/arena_layout.h"
#include "rudder/cuda/attention_layers.h"
#include "rudder/cuda/check_bounds.h"
#include "rudder/cuda/cublaslt_api.h"
#include "rudder/cuda/cuda_ops.h"
#include "rudder/cuda/device_memory.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/kernels/products/low_bits.h"
#include "rudder/cuda/kernels/products/ring_shape.h"
#include "rudder/cuda/kernels/products/tile_shape.h"
#include "rudder/cuda/low_weight.h"
#include "rudder/cuda/product.h"
#include "rudder/cuda/qkv_params.h"

namespace rudder::cuda {
namespace {

using tensor::DType;

// What low-bit formats of files become, of how many bits and in which groups; what does not.
TEST(LowWeight, FormsOfFormats) {
  using ops::Codes;
  using ops::CodeTable;
  using ops::ScaleType;
  const auto stored = [](Codes codes, int32_t group, CodeTable table) {
    const auto format = low_stored_format(
        {.codes = codes, .scale = ScaleType::kF16, .group = group, .table = table});
    return format ? ops::format_name(*format) : format.error().message;
  };
  EXPECT_EQ(stored(Codes::kU4, 0, CodeTable::kNone), "U4 in groups of 128 with minima");
  EXPECT_EQ(stored(Codes::kU4, 256, CodeTable::kNone), "U4 in groups of 128 with minima");
  EXPECT_EQ(stored(Codes::kU4, 96, CodeTable::kNone), "U4 in groups of 32 with minima");
  EXPECT_EQ(stored(Codes::kI8, 16, CodeTable::kNone), "I8 in groups of 16 with minima");
  EXPECT_EQ(stored(Codes::kU4, 32, CodeTable::kE2M1), "I8 in groups of 32 with minima");
  EXPECT_EQ(stored(Codes::kU4, 40, CodeTable::kNone),
            "the CUDA backend multiplies no weights of U4 in groups of 40");
  EXPECT_EQ(stored(Codes::kU4, 64, CodeTable::kNf4),
            "the CUDA backend multiplies no weights of U4 of NF4 in groups of 64");
  EXPECT_EQ(stored(Codes::kF8E4M3, 128, CodeTable::kNone), "F8_E4M3 in groups of 128 with minima");
}

TEST(LowWeight, AFormIsANumberOfAPolicy) {
  EXPECT_EQ(low_id({}), 0);
  for (const LowBits form :
       {LowBits{LowCode::kU4, 128, true}, LowBits{LowCode::kI8, 16, false},
        LowBits{LowCode::kI8, 128, true, true}, LowBits{LowCode::kE4M3, 128, true}}) {
    EXPECT_NE(low_id(form), 0);
    EXPECT_EQ(low_of_id(low_id(form)), form);
  }
}

TEST(ArenaLayout, PiecesDoNotOverlapAndStayInside) {
  std::mt19937_64 random(3);
  ArenaLayout layout(1 << 20);
  struct Placed {
    size_t chunk;
    int64_t begin, end;
  };
  std::vector<int64_t> chunk_bytes;
  std::vector<Placed> placed;
  for (int i = 0; i < 2000; ++i) {
    const auto bytes = static_cast<int64_t>(random() % (i % 7 == 0 ? 3'000'000 : 5'000));
    const ArenaLayout::Piece piece = layout.place(bytes);
    if (piece.new_chunk_bytes > 0) {
      ASSERT_EQ(piece.chunk, chunk_bytes.size());
      chunk_bytes.push_back(piece.new_chunk_bytes);
    }
    ASSERT_LT(piece.chunk, chunk_bytes.size());
    EXPECT_EQ(piece.offset % ArenaLayout::kAlignment, 0);
    EXPECT_LE(piece.offset + bytes, chunk_bytes[piece.chunk]);
    placed.push_back({piece.chunk, piece.offset, piece.offset + std::max<int64_t>(bytes, 1)});
  }
  std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.chunk, a.begin) < std::pair(b.chunk, b.begin);
  });
  for (size_t i = 1; i < placed.size(); ++i) {
    if (placed[i].chunk != placed[i - 1].chunk) continue;
    EXPECT_LE(placed[i - 1].end, placed[i].begin);
  }
}

TEST(ArenaLayout, AChunkThatCouldNotBeMadeIsForgotten) {
  ArenaLayout layout(1 << 20);
  layout.place(100);
  const int64_t used = layout.used_bytes();
  const ArenaLayout::Piece large = layout.place(10 << 20);
  EXPECT_GT(large.new_chunk_bytes, 0);
  layout.undo_new_chunk();
  EXPECT_EQ(layout.used_bytes(), used);
  const ArenaLayout::Piece next = layout.place(100);
  EXPECT_EQ(next.chunk, 0U);
  EXPECT_EQ(next.new_chunk_bytes, 0);
}

TEST(Product, AlignmentOfRows) {
  EXPECT_EQ(row_alignment(3584, DType::kBF16), 16);
  EXPECT_EQ(row_alignment(4, DType::kBF16), 8);
  EXPECT_EQ(row_alignment(33, DType::kBF16), 2);
  EXPECT_EQ(row_alignment(33, DType::kF32), 4);
  EXPECT_EQ(row_alignment(48, DType::kF8E4M3), 16);
  EXPECT_EQ(row_alignment(40, DType::kF8E4M3), 8);
}

TEST(Product, Fp8NeedsMultiplesOf16) {
  EXPECT_EQ(product_refusal({.out = 33, .in = 7}), "");
  EXPECT_EQ(product_refusal({.out = 32, .in = 48, .dtype = DType::kF8E4M3}), "");
  const std::string why = product_refusal({.out = 33, .in = 48, .dtype = DType::kF8E4M3});
  EXPECT_NE(why.find("[48 -> 33] F8_E4M3"), std::string::npos) << why;
  EXPECT_NE(product_refusal({.out = 0, .in = 48}), "");
}

TEST(Gemv, TakesWhole16BytePieces) {
  EXPECT_TRUE(gemv_takes(8, false));
  EXPECT_FALSE(gemv_takes(4, false));
  EXPECT_FALSE(gemv_takes(24, true));
  EXPECT_TRUE(gemv_takes(3584, true));
}

// Of the products of a rank of four of a 70B's layer, the first guess keeps the multiprocessors at
// least four fifths as busy as the busiest.
TEST(RingShape, DividesWeightsEvenly) {
  constexpr int32_t kNumSms = 132;
  for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{
           {2560, 8192}, {8192, 2048}, {14336, 8192}, {8192, 7168}, {10240, 8192}, {57344, 8192}}) {
    for (const int32_t tokens : {1, 32, 64}) {
      GemvParams product;
      product.out = out;
      product.in = in;
      product.tokens = tokens;
      product.is_fp8 = true;
      const RingShape shape = guess_ring_shape(product, kNumSms, 0);
      ASSERT_TRUE(ring_takes(product, shape));
      const int64_t tiles = (out + shape.rows - 1) / shape.rows;
      const int64_t at_once = kNumSms / shape.splits;
      const int64_t most = (tiles + at_once - 1) / at_once * shape.rows * (in / shape.splits);
      EXPECT_LE(most * kNumSms * 8, out * in * 10) << out << " x " << in << ", " << tokens;
    }
  }
  EXPECT_EQ(guess_ring_shape({}, kNumSms, 1000), RingShape{});
}

// There is a way to cut up every product with the splits that its shape has, for few tokens and for
// many.
TEST(TileShape, EveryShapeHasWaysWithItsSplits) {
  constexpr int32_t kNumSms = 132;
  for (const bool is_fp8 : {false, true}) {
    for (const auto& [out, in] : std::vector<std::pair<int64_t, int64_t>>{
             {16, 16}, {1152, 896}, {4608, 3584}, {3584, 18944}, {37888, 3584}, {152064, 3584}}) {
      const int32_t splits = fixed_splits(out, in, is_fp8);
      GemvParams product;
      product.out = out;
      product.in = in;
      product.is_fp8 = is_fp8;
      product.tokens = kRingMaxTokens;
      bool has_ring = false;
      for (int n = 0; !has_ring; ++n) {
        const RingShape shape = guess_ring_shape(product, kNumSms, n);
        ASSERT_GT(shape.rows, 0) << out << " x " << in;
        has_ring = shape.splits == splits;
      }
      for (const int32_t tokens : {65, 512, 8191}) {
        product.tokens = tokens;
        const TileShape shape = guess_tile_shape(product, splits, kNumSms, 0);
        EXPECT_TRUE(tile_takes(product, shape)) << out << " x " << in;
        EXPECT_EQ(shape.splits, splits);
      }
      EXPECT_EQ(guess_tile_shape(product, splits, kNumSms, 1000), TileShape{});
    }
  }
}

TEST(DeviceStatus, KeepsTheFirstFaultWithOpShapesAndWhatCameBefore) {
  DeviceStatus status("7");
  EXPECT_TRUE(status.status());
  for (const char* op : {"attention", "embed", "linear", "attention"}) status.note(op);
  status.check(cudaSuccess, "linear", [] { return std::string("not called"); });
  EXPECT_FALSE(status.failed());
  status.check(cudaErrorIllegalAddress, "attention", [] { return std::string("[3, 64] BF16"); });
  status.check(cudaErrorLaunchFailure, "later");
  ASSERT_TRUE(status.failed());
  const std::string text = status.status().error().to_string();
  for (const char* part : {"attention", "[3, 64] BF16", "stream 7", "the attention of 1 layers",
                           "embed linear attention", "700"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
  EXPECT_EQ(text.find("later"), std::string::npos);
}

TEST(CublasLt, AMissingLibraryIsNamedWithThePlacesTried) {
  const auto loaded = load_cublaslt("/nowhere/libcublasLt.so");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(loaded.error().where, "cublaslt-path");
  EXPECT_NE(loaded.error().message.find("/nowhere/libcublasLt.so"), std::string::npos);
  EXPECT_EQ(cublaslt_candidates("").front().rfind("libcublasLt.so.", 0), 0U);
}

TEST(CublasLt, AnotherLibraryOrVersionIsRefused) {
  EXPECT_EQ(cublaslt_refusal(CUBLAS_VERSION), "");
  EXPECT_EQ(cublaslt_refusal(CUBLAS_VERSION + 1), "");  // a later patch
  const std::string older = cublaslt_refusal(CUBLAS_VERSION - 10'000);
  EXPECT_NE(older.find("version"), std::string::npos) << older;
  EXPECT_NE(cublaslt_refusal(0), "");
  const auto loaded = load_cublaslt("libm.so.6");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(loaded.error().message.find("it has no cublasLtCreate"), std::string::npos)
      << loaded.error().message;
}

// A slow kernel is no fallback of a tuned one: the shape is refused by name, before any step.
TEST(AttentionLayers, AShapeWithoutATunedKernelIsRefused) {
  DeviceMemory memory(nullptr);
  AttentionLayers layers(memory, nullptr, 132, {});
  const auto prepare = [&](AttentionLayers& of, int32_t heads, int32_t kv_heads, int32_t head_dim,
                           int32_t block_size, bool has_gate = false) {
    ops::AttentionShape shape;
    shape.has_gate = has_gate;
    shape.num_heads = heads;
    shape.kv.num_kv_heads = kv_heads;
    shape.kv.head_dim = head_dim;
    shape.kv.block_size = block_size;
    return of.prepare(std::span(&shape, 1), 4, 64);
  };
  for (const auto& [heads, kv_heads, head_dim, block_size] :
       {std::array{32, 8, 80, 16}, std::array{32, 8, 160, 16}, std::array{32, 8, 128, 32},
        std::array{64, 2, 128, 16}, std::array{7, 2, 128, 16}, std::array{8, 8, 520, 16}}) {
    const Result<void> prepared = prepare(layers, heads, kv_heads, head_dim, block_size);
    ASSERT_FALSE(prepared) << head_dim;
    EXPECT_EQ(prepared.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(prepared.error().message.find(fmt::format("head_dim {}", head_dim)),
              std::string::npos)
        << prepared.error().message;
  }
  const Result<void> gated = prepare(layers, 32, 4, 512, 16, true);
  ASSERT_FALSE(gated);
  EXPECT_NE(gated.error().message.find("under a gate it is head_dim 256 at most"),
            std::string::npos)
      << gated.error().message;
  AttentionLayers plain(memory, nullptr, 132, {.plain = true});
  EXPECT_TRUE(prepare(plain, 32, 4, 512, 16, true));
  EXPECT_TRUE(prepare(plain, 32, 8, 80, 16));
  EXPECT_FALSE(prepare(plain, 8, 8, 584, 16));
}

// Rows of one part: in bf16, of the sizes that models have.
TEST(AttentionLayers, ALatentRowWithoutAKernelIsRefused) {
  DeviceMemory memory(nullptr);
  AttentionLayers layers(memory, nullptr, 132, {});
  struct Refused {
    int32_t row;
    int32_t values;
    DType dtype;
  };
  for (const Refused& one : {Refused{576, 512, DType::kF8E4M3}, Refused{576, 448, DType::kBF16},
                             Refused{128, 64, DType::kBF16}, Refused{512, 448, DType::kBF16}}) {
    ops::AttentionShape shape;
    shape.num_heads = 20;
    shape.kv.storage.dtype = one.dtype;
    shape.kv.num_kv_heads = 1;
    shape.kv.head_dim = one.row;
    shape.kv.parts = 1;
    shape.value_dim = one.values;
    const Result<void> prepared = layers.prepare(std::span(&shape, 1), 4, 64);
    ASSERT_FALSE(prepared) << one.row;
    EXPECT_EQ(prepared.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(prepared.error().message.find("rows are kept in bf16"), std::string::npos)
        << prepared.error().message;
  }
}

// A rank whose heads are one head has as many weights as a norm per head has.
TEST(QkvParams, ANormThatSpansRanksIsOverAllHeads) {
  std::array<float, 128> weights = {};
  std::array<uint16_t, 256> qkv = {};
  const auto view_of = [](auto& values, DType dtype, int64_t rows) {
    return ops::View{values.data(), dtype, {rows, std::ssize(values) / rows}};
  };
  const auto params_of = [&](int64_t k_weights, bool spans_ranks) {
    ops::QkvPrepArgs args;
    args.qkv = view_of(qkv, DType::kBF16, 1);
    args.q_out = args.qkv;
    args.num_heads = 2;
    args.kv.num_kv_heads = 1;
    args.kv.head_dim = 64;
    args.q_norm.weight = {weights.data(), DType::kF32, {128}};
    args.k_norm.weight = {weights.data(), DType::kF32, {k_weights}};
    args.norms_span_ranks = spans_ranks;
    return qkv_params(args);
  };
  EXPECT_TRUE(params_of(64, true).k_norm_is_wide);
  EXPECT_TRUE(params_of(64, true).q_norm_is_wide);
  EXPECT_FALSE(params_of(64, false).k_norm_is_wide);
  EXPECT_TRUE(params_of(64, false).q_norm_is_wide);
}

TEST(CudaOps, WithoutADeviceThereIsATypedError) {
  if (num_cuda_devices() > 0) GTEST_SKIP() << "there is a device";
  const auto ops = make_cuda_ops({});
  ASSERT_FALSE(ops);
  EXPECT_EQ(ops.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(ops.error().where, "device");
  CudaOpsSettings settings;
  settings.linear_dtype = DType::kF32;
  EXPECT_EQ(make_cuda_ops(settings).error().where, "dtype");
}

}  // namespace
}  // namespace rudder::cuda
