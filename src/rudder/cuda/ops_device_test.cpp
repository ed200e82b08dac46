// What of the backend is not an op: memory, copies, events, graphs, faults.
#include <span>
#include <thread>

#include "rudder/cuda/device_test.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/attention/plain_attention.h"
#include "rudder/testing/round_query_row.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

class OpsDevice : public DeviceTest {
 protected:
  void SetUp() override { start({}); }
};

TEST_F(OpsDevice, MemoryIsZeroedAndAligned) {
  for (const int64_t count : {0, 1, 63, 100'000, 50'000'000}) {
    const View view = value_of(ops_->allocate(DType::kI32, {count}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 256, 0U);
    const std::vector<uint8_t> bytes = bytes_of(view);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), static_cast<int64_t>(bytes.size()));
  }
  EXPECT_GT(ops_->available_memory(), int64_t{1} << 30);
}

TEST_F(OpsDevice, MoreMemoryThanThereIsIsAnErrorAndNothingElseBreaks) {
  const auto refused = ops_->allocate(DType::kU8, {int64_t{1} << 42});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
  EXPECT_TRUE(ops_->status());
  EXPECT_EQ(to_host(to_device(std::vector<float>{1, 2, 3}, {3})), (std::vector<float>{1, 2, 3}));
}

TEST_F(OpsDevice, UploadConverts) {
  // More than one piece of the upload's buffers, and a tail.
  for (const int64_t count : {1, 1000, 20'000'003}) {
    const std::vector<float> values = random(count);
    std::vector<uint16_t> bf16;
    std::vector<uint16_t> f16;
    for (const float v : values) {
      bf16.push_back(tensor::to_bf16(v).bits);
      f16.push_back(tensor::to_f16(v).bits);
    }
    const auto from = [&](DType dtype) -> View {
      if (dtype == DType::kF32) return {const_cast<float*>(values.data()), dtype, {count}};
      return {dtype == DType::kBF16 ? bf16.data() : f16.data(), dtype, {count}};
    };
    for (const DType stored : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const DType wanted : {DType::kF32, DType::kBF16}) {
        const View device = value_of(ops_->upload(from(stored), wanted));
        const std::vector<float> got = to_host(device);
        size_t wrong = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          float want =
              stored == DType::kF16 ? tensor::to_float(tensor::to_f16(values[i])) : values[i];
          if (wanted == DType::kBF16) want = tensor::to_float(tensor::to_bf16(want));
          wrong += got[i] == want ? 0 : 1;
        }
        EXPECT_EQ(wrong, 0U) << count << " from " << tensor::dtype_name(stored) << " to "
                             << tensor::dtype_name(wanted);
      }
    }
  }
  std::vector<int32_t> integers = {1, -2, 3};
  EXPECT_FALSE(ops_->upload({integers.data(), DType::kI32, {3}}, DType::kF32));
}

TEST_F(OpsDevice, CopiesAndEventsFromAnotherThread) {
  const View staging = value_of(ops_->allocate_staging(4 * 1000));
  const View back = value_of(ops_->allocate_staging(4 * 1000));
  const View device = value_of(ops_->allocate(DType::kI32, {1000}));
  for (int round = 0; round < 10; ++round) {
    for (int32_t i = 0; i < 1000; ++i) static_cast<int32_t*>(staging.data)[i] = i * round;
    ops_->copy_in(device, staging);
    ops_->copy_out(back, device);
    const auto event = ops_->make_event();
    ops_->record(*event);
    Result<void> waited;
    std::thread other([&] { waited = event->wait(); });
    other.join();
    ASSERT_TRUE(waited) << waited.error().to_string();
    EXPECT_TRUE(event->done());
    EXPECT_EQ(std::memcmp(staging.data, back.data, staging.bytes()), 0) << round;
  }
}

class Fp8OpsDevice : public DeviceTest {
 protected:
  static constexpr int64_t kIn = 256;

  void SetUp() override {
    CudaOpsSettings settings;
    settings.linear_dtype = DType::kF8E4M3;
    settings.tune = false;
    start(settings);
  }

  struct Fp8Rows {
    View values;
    View scale;
  };
  Fp8Rows fp8_rows(int64_t tokens, int64_t width) {
    return {poisoned({tokens, width}, DType::kF8E4M3), poisoned({tokens}, DType::kF32)};
  }
  std::vector<float> numbers(const Fp8Rows& rows) {
    std::vector<float> out = to_host(rows.values);
    const std::vector<float> scale = to_host(rows.scale);
    const size_t width = out.size() / scale.size();
    for (size_t i = 0; i < out.size(); ++i) out[i] *= scale[i / width];
    return out;
  }
  ops::LinearWeight weight(int64_t out, bool bias) {
    const std::vector<float> w = random(out * kIn, 0.05f);
    const std::vector<float> b = random(out);
    ops::LinearPart part = ops::wide_part({const_cast<float*>(w.data()), DType::kF32, {out, kIn}});
    if (bias) part.bias = {const_cast<float*>(b.data()), DType::kF32, {out}};
    return value_of(ops_->make_linear({&part, 1}));
  }
  // The product in `y`; `read_first`: the host reads it before any other op does, so that its
  // scales are applied in memory.
  void multiply(const Fp8Rows& x, const ops::LinearWeight& weight, const View& y, bool read_first) {
    ops_->linear({.x = x.values, .x_scale = x.scale, .weight = &weight, .out = y});
    if (read_first) bytes_of(y);
  }
  static void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                           double tolerance, const std::string& what) {
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(double{got[i]} - double{want[i]}, 2);
      norm += std::pow(double{want[i]}, 2);
    }
    EXPECT_GT(norm, 0) << what;
    EXPECT_LE(std::sqrt(difference / norm), tolerance) << what;  // a NaN fails
  }
};

// What reads a product right after it, and what reads it from memory, see the same numbers, but for
// one rounding to bf16.
TEST_F(Fp8OpsDevice, AProductsReaderAppliesItsScales) {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kHeadDim = 64;
  constexpr int64_t kQkv = (kHeads + 2) * kHeadDim;
  const ops::LinearWeight qkv_weight = weight(kQkv, true);
  const ops::LinearWeight gate_up = weight(2 * 1152, false);
  const ops::LinearWeight down = weight(512, true);
  const View rope = to_device(random(600 * kHeadDim), {600, 2, kHeadDim / 2}, DType::kF32);
  const View wide_norm = to_device(random(kHeads * kHeadDim), {kHeads * kHeadDim}, DType::kF32);
  const View head_norm = to_device(random(kHeadDim), {kHeadDim}, DType::kF32);
  const View norm = to_device(random(512), {512}, DType::kF32);
  for (const int64_t tokens : {40, 200, 600}) {
    const View x = to_device(random(tokens * kIn), {tokens, kIn});
    const Fp8Rows in = fp8_rows(tokens, kIn);
    ops_->quantise({.x = x, .out = in.values, .out_scale = in.scale});
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < tokens; ++t) positions.push_back(t);
    const View rows = to_device(positions);
    const std::vector<float> residual = random(tokens * 512);
    std::vector<float> q[2], cache[2], acted[2], normed[2], sums[2];
    for (const bool read_first : {false, true}) {
      const View qkv = poisoned({tokens, kQkv});
      const View q_out = poisoned({tokens, kHeads * kHeadDim});
      const ops::KvLayer kv{value_of(ops_->allocate(DType::kBF16, {40, 2, 1, 16 * kHeadDim})), 16,
                            1, kHeadDim};
      multiply(in, qkv_weight, qkv, read_first);
      ops_->qkv_prep({.qkv = qkv,
                      .num_heads = kHeads,
                      .q_norm = {tokens < 100 ? wide_norm : head_norm, 1e-5f},
                      .k_norm = {},
                      .rope = rope,
                      .rope_row = rows,
                      .kv_slot = rows,
                      .kv = kv,
                      .q_out = q_out});
      q[read_first] = to_host(q_out);
      cache[read_first] = to_host(kv.storage);

      // The scale of the result is where that of the operand was, as in a model.
      const Fp8Rows operand = fp8_rows(tokens, kIn);
      ops_->quantise({.x = x, .out = operand.values, .out_scale = operand.scale});
      const View both = poisoned({tokens, 2 * 1152});
      const Fp8Rows out{poisoned({tokens, 1152}, DType::kF8E4M3), operand.scale};
      multiply(operand, gate_up, both, read_first);
      ops_->gated_act({both, ops::Activation::kSilu, out.values, out.scale});
      acted[read_first] = numbers(out);

      ops_->quantise({.x = x, .out = operand.values, .out_scale = operand.scale});
      const View delta = poisoned({tokens, 512});
      const View sum = to_device(residual, {tokens, 512});
      const Fp8Rows normed_out{poisoned({tokens, 512}, DType::kF8E4M3), operand.scale};
      multiply(operand, down, delta, read_first);
      ops_->residual_norm({.x = sum,
                           .delta = delta,
                           .delta_norm = {},
                           .norm = {norm, 1e-5f},
                           .out = normed_out.values,
                           .out_scale = normed_out.scale});
      normed[read_first] = numbers(normed_out);
      sums[read_first] = to_host(sum);
    }
    const std::string what = fmt::format("{} tokens", tokens);
    expect_close(q[0], q[1], 6e-3, "q, " + what);
    expect_close(cache[0], cache[1], 6e-3, "k and v, " + what);
    expect_close(acted[0], acted[1], 2e-2, "acted, " + what);
    expect_close(sums[0], sums[1], 6e-3, "sums, " + what);
    expect_close(normed[0], normed[1], 2e-2, "normed, " + what);
  }
}

// A replay reads what the device's memory holds then, and gives the bits of the same ops run one by
// one.
TEST_F(OpsDevice, AGraphGivesTheBitsOfItsOps) {
  constexpr int64_t kHidden = 256;
  for (const int64_t tokens : {1, 5, 48}) {
    const std::vector<float> w = random(512 * kHidden, 0.05f);
    const ops::LinearPart part =
        ops::wide_part({const_cast<float*>(w.data()), DType::kF32, {512, kHidden}});
    const ops::LinearWeight gate_up = value_of(ops_->make_linear({&part, 1}));
    const View norm = to_device(random(kHidden), {kHidden}, DType::kF32);
    const View x = value_of(ops_->allocate(DType::kBF16, {tokens, kHidden}));
    const View normed = poisoned({tokens, kHidden});
    const View wide = poisoned({tokens, 512});
    const View out = poisoned({tokens, kHidden});
    const auto step = [&] {
      ops::ResidualNormArgs norm_args;
      norm_args.x = x;
      norm_args.norm = {norm, 1e-5f};
      norm_args.out = normed;
      ops_->residual_norm(norm_args);
      ops_->linear({.x = normed, .x_scale = {}, .weight = &gate_up, .out = wide});
      ops_->gated_act({wide, ops::Activation::kSilu, out, {}});
    };
    const auto set_x = [&](const std::vector<float>& values) {
      const View staging = value_of(ops_->allocate_staging(tokens * kHidden * 2));
      auto* to = static_cast<uint16_t*>(staging.data);
      for (const float v : values) *to++ = tensor::to_bf16(v).bits;
      ops_->copy_in(x, staging);
    };
    const std::vector<float> first = random(tokens * kHidden);
    const std::vector<float> second = random(tokens * kHidden);
    set_x(first);
    step();
    const auto want_first = bytes_of(out);
    set_x(second);
    step();
    const auto want_second = bytes_of(out);
    EXPECT_NE(want_first, want_second);

    ops_->graph_ops()->begin_capture();
    step();
    auto graph = ops_->graph_ops()->end_capture();
    ASSERT_TRUE(graph) << graph.error().to_string();
    set_x(first);
    ops_->graph_ops()->replay(**graph);
    EXPECT_EQ(bytes_of(out), want_first) << tokens;
    set_x(second);
    ops_->graph_ops()->replay(**graph);
    ops_->graph_ops()->replay(**graph);
    EXPECT_EQ(bytes_of(out), want_second) << tokens;
    EXPECT_TRUE(ops_->status());
  }
}

constexpr ops::KvFormat kKvFormats[] = {
    {DType::kBF16}, {DType::kF8E4M3}, ops::kFp8TokenKv, ops::kInt8TokenKv};

// One step's attention over a cache whose blocks lie scattered; the third sequence is padding.
struct AttentionCase {
  int64_t head_dim = 0;
  int32_t window = 0;
  int32_t q_len = 0;
  ops::KvFormat kv = {DType::kBF16};

  std::string to_string() const {
    return fmt::format("head_dim {}, window {}, q_len {}, {}", head_dim, window, q_len,
                       ops::kv_format_name(kv));
  }
};

class AttentionDevice : public OpsDevice {
 protected:
  static constexpr int64_t kHeads = 8;
  static constexpr int64_t kKvHeads = 2;
  static constexpr int64_t kMaxBlocks = 64;

  void make(const AttentionCase& c) {
    kv_lens_ = {c.q_len, 100, 0, 257, 1000};
    std::vector<int32_t> q_begin = {0};
    for (const int32_t kv_len : kv_lens_) {
      q_begin.push_back(q_begin.back() + std::min(c.q_len, std::max(kv_len, 1)));
    }
    tokens_ = q_begin.back();
    const auto rows = static_cast<int64_t>(kv_lens_.size()) + 1;
    std::vector<int32_t> table(static_cast<size_t>(rows * kMaxBlocks));
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<int32_t>((i * 7) % table.size());  // no factor in common: each once
    }
    batch_ = {.q_begin = to_device(q_begin),
              .kv_len = to_device(kv_lens_),
              .table_row = to_device(std::vector<int32_t>{0, 1, 2, 3, 4}),
              .block_table = to_device(table),
              .max_q_len = c.q_len,
              .max_kv_len = 1000};
    batch_.block_table.shape = {rows, kMaxBlocks};
    const int64_t blocks = rows * kMaxBlocks;
    kv_ = to_device(random(blocks * 2 * kKvHeads * 16 * c.head_dim),
                    {blocks, 2, kKvHeads, 16 * c.head_dim});
    if (c.kv.has_codes()) {
      // Any byte but NaN's is a value; of int8 those of the lower half.
      std::vector<uint8_t> bytes(static_cast<size_t>(kv_.shape.numel()));
      for (uint8_t& byte : bytes)
        byte = static_cast<uint8_t>((random_() % 0x48) | (random_() & 0x80));
      kv_ = value_of(ops_->upload({bytes.data(), c.kv.dtype, kv_.shape}, c.kv.dtype));
    }
    layer_ = {kv_, 16, kKvHeads, static_cast<int32_t>(c.head_dim)};
    if (c.kv.scales_tokens) {
      constexpr int64_t kWidth = 2 * kKvHeads * 16 + 16;  // other layers' are beside them
      std::vector<float> scales(static_cast<size_t>(blocks * kWidth));
      for (float& scale : scales) scale = 0.02f + 1e-4f * static_cast<float>(random_() % 1000);
      layer_.token_scales =
          value_of(ops_->upload({scales.data(), DType::kF32, {blocks, kWidth}}, DType::kF32));
    } else if (c.kv.has_codes()) {
      const std::vector<float> scales = {0.3f, 1.7f, 2.5f, 0.06f};
      layer_.k_scale = value_of(
          ops_->upload({const_cast<float*>(scales.data()), DType::kF32, {2}}, DType::kF32));
      layer_.v_scale = value_of(
          ops_->upload({const_cast<float*>(scales.data()) + 2, DType::kF32, {2}}, DType::kF32));
    }
    q_ = to_device(random(tokens_ * kHeads * c.head_dim), {tokens_, kHeads * c.head_dim});
  }

  // Makes all but the second sequence and the padding trees, each token behind a random one.
  void make_trees(const AttentionCase& c) {
    const std::vector<uint8_t> bytes = bytes_of(batch_.q_begin);
    const auto* q_begin = reinterpret_cast<const int32_t*>(bytes.data());
    std::vector<uint64_t> ancestors(static_cast<size_t>(tokens_), 0);
    for (size_t s = 0; s < kv_lens_.size(); ++s) {
      if (s == 1 || kv_lens_[s] == 0) continue;
      const auto rows = std::span(ancestors).subspan(static_cast<size_t>(q_begin[s]));
      rows[0] = 1;
      for (size_t i = 1; i < static_cast<size_t>(c.q_len); ++i) {
        rows[i] = rows[random_() % i] | uint64_t{1} << i;
      }
    }
    const View host{ancestors.data(), DType::kI64, {tokens_}};
    batch_.ancestors = value_of(ops_->upload(host, DType::kI64));
    batch_.max_q_len = std::min(c.q_len, kv_lens_[1]);
  }

  std::vector<float> tuned(const AttentionCase& c) {
    const View out = poisoned({tokens_, kHeads * c.head_dim});
    ops_->begin_attention(batch_);
    ops_->attention({.q = q_,
                     .kv = layer_,
                     .num_heads = kHeads,
                     .scale = scale(c),
                     .window = c.window,
                     .softcap = 0,
                     .out = out});
    return to_host(out);
  }

  std::vector<float> plain(const AttentionCase& c, const View& q) {
    const View out = poisoned({tokens_, kHeads * c.head_dim});
    bytes_of(out);  // all that was enqueued is done
    PlainAttentionParams params;
    params.q = q.data;
    params.kv.data = kv_.data;
    params.kv.type = kv_type_of(layer_);
    params.kv.scales.tokens = pointer<float>(layer_.token_scales);
    if (c.kv.scales_tokens) params.kv.scales.token_pitch = layer_.token_scales.shape[1];
    params.kv.scales.k = static_cast<const float*>(layer_.k_scale.data);
    params.kv.scales.v = static_cast<const float*>(layer_.v_scale.data);
    params.q_begin = static_cast<const int32_t*>(batch_.q_begin.data);
    params.kv_len = static_cast<const int32_t*>(batch_.kv_len.data);
    params.table_row = static_cast<const int32_t*>(batch_.table_row.data);
    params.block_table = static_cast<const int32_t*>(batch_.block_table.data);
    params.max_blocks = kMaxBlocks;
    params.ancestors = static_cast<const uint64_t*>(batch_.ancestors.data);
    params.num_seqs = static_cast<int32_t>(kv_lens_.size());
    params.num_tokens = static_cast<int32_t>(tokens_);
    params.num_heads = kHeads;
    params.num_kv_heads = kKvHeads;
    params.head_dim = static_cast<int32_t>(c.head_dim);
    params.block_size = 16;
    params.window = c.window;
    params.scale = scale(c);
    params.out = out.data;
    EXPECT_EQ(launch_plain_attention(params, nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return to_host(out);
  }

  static float scale(const AttentionCase& c) {
    return 1 / std::sqrt(static_cast<float>(c.head_dim));
  }

  // q as attention over an fp8 cache may round it.
  View rounded_q(const AttentionCase& c) {
    std::vector<float> rounded = to_host(q_);
    const auto head_dim = static_cast<size_t>(c.head_dim);
    for (size_t i = 0; i < rounded.size(); i += head_dim) {
      testing::round_query_row(std::span(rounded).subspan(i, head_dim));
    }
    return to_device(rounded, q_.shape);
  }

  // Of each row of a head what is nearer to `got`: the plain kernel's result for its own q, or for
  // the rounded one.
  std::vector<double> nearest(const AttentionCase& c, const std::vector<float>& got) {
    const std::vector<float> exact = plain(c, q_);
    std::vector<double> want(exact.begin(), exact.end());
    if (c.kv != ops::KvFormat{DType::kF8E4M3}) return want;
    const std::vector<float> rounded = plain(c, rounded_q(c));
    const auto head_dim = static_cast<size_t>(c.head_dim);
    for (size_t row = 0; row < want.size(); row += head_dim) {
      const auto distance = [&](const std::vector<float>& other) {
        double furthest = 0;
        for (size_t i = row; i < row + head_dim; ++i) {
          furthest = std::max(furthest, std::abs(double{got[i]} - other[i]));
        }
        return furthest;
      };
      if (distance(rounded) >= distance(exact)) continue;
      std::copy_n(rounded.begin() + static_cast<std::ptrdiff_t>(row), head_dim,
                  want.begin() + static_cast<std::ptrdiff_t>(row));
    }
    return want;
  }

  void expect_agreement(const AttentionCase& c) {
    const std::vector<float> got = tuned(c);
    const std::vector<double> want = nearest(c, got);
    double largest = 0;
    for (const double v : want) largest = std::max(largest, std::abs(v));
    expect_near(got, want, std::vector<double>(want.size(), 0.01 * largest), kHeads * c.head_dim,
                c.to_string());
  }

  std::vector<int32_t> kv_lens_;
  int64_t tokens_ = 0;
  ops::AttentionBatch batch_;
  View kv_;
  ops::KvLayer layer_;
  View q_;
};

TEST_F(AttentionDevice, TheTunedKernelsAgreeWithThePlainOne) {
  for (const int64_t head_dim : {64, 96, 128, 256}) {
    for (const int32_t window : {0, 37}) {
      for (const int32_t q_len : {1, 3, 40, 70, 130}) {  // split, split where tiles are few, tiled
        for (const ops::KvFormat& kv : kKvFormats) {
          const AttentionCase c{head_dim, window, q_len, kv};
          make(c);
          expect_agreement(c);
        }
      }
    }
  }
}

// Split under a mask, and token by token where rows must not depend on their company; the plain
// kernel goes along a path.
TEST_F(AttentionDevice, OfTreesTheTunedKernelsAgreeWithThePlainOne) {
  for (const bool batch_invariant : {false, true}) {
    start({.batch_invariant = batch_invariant});
    for (const int64_t head_dim : {64, 96, 128, 256}) {
      for (const int32_t q_len : {2, 9, 17, 64}) {
        for (const ops::KvFormat& kv : kKvFormats) {
          if (batch_invariant && kv.scales_tokens) continue;
          const AttentionCase c{head_dim, 0, q_len, kv};
          make(c);
          make_trees(c);
          expect_agreement(c);
        }
      }
    }
  }
}

}  // namespace
}  // namespace rudder::cuda
