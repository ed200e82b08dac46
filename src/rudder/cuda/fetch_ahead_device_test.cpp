// Ops that are told what is multiplied next: they write the bits that they write without.
#include "rudder/cuda/device_test.h"

namespace rudder::cuda {
namespace {

using tensor::DType;
using tensor::View;

class FetchAheadDevice : public DeviceTest {
 protected:
  static constexpr int64_t kWidth = 1152;

  void SetUp() override {
    CudaOpsSettings settings;
    settings.tune = false;
    start(settings);
    const std::vector<float> values = random(kRows * kWidth);
    const ops::LinearPart part{
        .weight = {const_cast<float*>(values.data()), DType::kF32, {kRows, kWidth}}, .bias = {}};
    weight_ = value_of(ops_->make_linear({&part, 1}));
  }
  const ops::LinearWeight* next(bool is_named) const { return is_named ? &weight_ : nullptr; }

 private:
  static constexpr int64_t kRows = 20'000;  // more than are fetched
  ops::LinearWeight weight_;
};

// Few rows have blocks beside them that do nothing else, many have not.
constexpr int64_t kAllTokens[] = {1, 2, 7, 31, 64, 65, 128, 129};

TEST_F(FetchAheadDevice, ActivationsHaveTheSameBits) {
  for (const int64_t tokens : kAllTokens) {
    for (const bool is_fp8 : {false, true}) {
      const View x = to_device(random(tokens * 2 * kWidth), {tokens, 2 * kWidth});
      std::vector<uint8_t> out[2];
      for (const bool is_named : {false, true}) {
        const View y = poisoned({tokens, kWidth}, is_fp8 ? DType::kF8E4M3 : DType::kBF16);
        const View scale = is_fp8 ? poisoned({tokens}, DType::kF32) : View{};
        ops_->gated_act({.x = x, .out = y, .out_scale = scale, .next = next(is_named)});
        out[is_named] = bytes_of(y);
        if (!is_fp8) continue;
        const std::vector<uint8_t> scales = bytes_of(scale);
        out[is_named].insert(out[is_named].end(), scales.begin(), scales.end());
      }
      EXPECT_TRUE(out[0] == out[1]) << tokens << " tokens" << (is_fp8 ? ", fp8" : "");
    }
  }
  EXPECT_TRUE(ops_->status());
}

TEST_F(FetchAheadDevice, HeadsHaveTheSameBits) {
  constexpr int32_t kHeads = 4;
  constexpr int32_t kHeadDim = 64;
  constexpr int64_t kQkv = (kHeads + 2) * kHeadDim;
  const View rope = to_device(random(200 * kHeadDim), {200, 2, kHeadDim / 2}, DType::kF32);
  const View wide_norm = to_device(random(kHeads * kHeadDim), {kHeads * kHeadDim}, DType::kF32);
  for (const int64_t tokens : kAllTokens) {
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < tokens; ++t) positions.push_back(t);
    const View rows = to_device(positions);
    for (const bool has_norm : {false, true}) {
      const View qkv = to_device(random(tokens * kQkv), {tokens, kQkv});
      std::vector<uint8_t> out[2];
      for (const bool is_named : {false, true}) {
        const View q = poisoned({tokens, kHeads * kHeadDim});
        const ops::KvLayer kv{value_of(ops_->allocate(DType::kBF16, {16, 2, 1, 16 * kHeadDim})), 16,
                              1, kHeadDim};
        ops_->qkv_prep({.qkv = qkv,
                        .num_heads = kHeads,
                        .q_norm = {has_norm ? wide_norm : View{}, 1e-5f},
                        .k_norm = {},
                        .rope = rope,
                        .rope_row = rows,
                        .kv_slot = rows,
                        .kv = kv,
                        .q_out = q,
                        .next = next(is_named)});
        out[is_named] = bytes_of(q);
        const std::vector<uint8_t> cache = bytes_of(kv.storage);
        out[is_named].insert(out[is_named].end(), cache.begin(), cache.end());
      }
      EXPECT_TRUE(out[0] == out[1]) << tokens << " tokens" << (has_norm ? ", a norm" : "");
    }
  }
  EXPECT_TRUE(ops_->status());
}

}  // namespace
}  // namespace rudder::cuda
