#include "rudder/cuda/shape_kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/cuda/device_status.h"
#include "rudder/cuda/kernels/products/gemv.h"
#include "rudder/cuda/kernels/products/linear_epilogue.h"
#include "rudder/cuda/kernels/products/low_product.h"
#include "rudder/cuda/kernels/products/ring_product.h"
#include "rudder/cuda/kernels/products/tile_product.h"

namespace rudder::cuda {

using tensor::DType;

namespace {

// Of batch-invariant kernels: what they must take, and what they are asked for, since a kernel that
// is good for one is fair for the others.
constexpr int64_t kMostTokensForAll = int64_t{1} << 15;
constexpr int64_t kTokensToAskFor[] = {256, 64, 1024, 16, kMostTokensForAll};

constexpr int kRingGuesses = 4;
constexpr int kFixedGuesses = 12;

RingShape ring_shape(const PolicyEntry& entry) {
  return {static_cast<int32_t>(entry.algorithm[0]), static_cast<int32_t>(entry.algorithm[1])};
}

// Of all tokens, where `tokens` is 0: then it is as that of so many tokens, without splits.
LowShape low_shape_of(const PolicyEntry& entry, int64_t tokens) {
  if (entry.algorithm[0] == 0) return low_shape_for_all(tokens);
  return {static_cast<int32_t>(entry.algorithm[0]), static_cast<int32_t>(entry.algorithm[1]),
          entry.algorithm[2] != 0, static_cast<LowWay>(entry.algorithm[3])};
}
std::array<uint64_t, 8> algorithm_of(const LowShape& shape) {
  return {static_cast<uint64_t>(shape.tokens), static_cast<uint64_t>(shape.blocks),
          uint64_t{shape.splits}, static_cast<uint64_t>(shape.way)};
}
bool is_low_shape(const LowBits& form, int64_t bucket, const LowShape& shape) {
  for (int n = 0; low_shape(form, bucket, n).tokens != 0; ++n) {
    if (low_shape(form, bucket, n) == shape) return true;
  }
  return false;
}
PolicyEntry entry_of(const RingShape& shape) {
  return {ProductKernel::kRing,
          {static_cast<uint64_t>(shape.rows), static_cast<uint64_t>(shape.splits)},
          0};
}
TileShape tile_shape(const PolicyEntry& entry) {
  return {static_cast<int32_t>(entry.algorithm[0]), static_cast<int32_t>(entry.algorithm[1]),
          entry.algorithm[2] != 0};
}
PolicyEntry entry_of(const TileShape& shape) {
  return {ProductKernel::kTile,
          {static_cast<uint64_t>(shape.rows), static_cast<uint64_t>(shape.splits),
           uint64_t{shape.side_by_side}},
          0};
}

Result<void> launched(cudaError_t error, const char* kernel) {
  RUDDER_CUDA_TRY(error, kernel, "");
  return {};
}

}  // namespace

Result<std::unique_ptr<ShapeKernels>> ShapeKernels::make(const Device& device, const PolicyKey& key,
                                                         bool fixes_order) {
  const bool is_fp8 = key.dtype == DType::kF8E4M3;
  const int32_t splits = fixes_order && key.low == 0 && gemv_takes(key.in, is_fp8)
                             ? fixed_splits(key.out, key.in, is_fp8)
                             : 0;
  std::unique_ptr<ShapeKernels> shape_kernels(new ShapeKernels(device, key, splits));
  if (key.low != 0) return shape_kernels;
  ProductShape shape{key.out, key.in, key.dtype, key.out_dtype, false, ScaleMode::kUnit};
  // Into f32 the library has no bias of bf16, and before the scales a bias is not the bias.
  shape.bias = key.bias && key.out_dtype == DType::kBF16 && !shape_kernels->is_fp8();
  RUDDER_TRY(shape_kernels->unit_, Product::make(*device.api, device.handle, shape));
  if (shape_kernels->is_fp8()) {
    shape.scales = ScaleMode::kOuter;
    shape.bias = key.bias && key.out_dtype == DType::kBF16;
    RUDDER_TRY(shape_kernels->outer_, Product::make(*device.api, device.handle, shape));
  }
  return shape_kernels;
}

Result<void> ShapeKernels::add_candidates(Product& product, ProductKernel kernel, int64_t bucket,
                                          int max_algorithms, std::vector<PolicyEntry>& out) {
  RUDDER_TRY(const std::vector<Product::Algorithm> found,
             product.candidates(bucket, device_.workspace.bytes, max_algorithms));
  for (const Product::Algorithm& algorithm : found) out.push_back({kernel, algorithm.data, 0});
  return {};
}

std::vector<PolicyEntry> ShapeKernels::fixed_candidates(int64_t bucket, int most) const {
  std::vector<PolicyEntry> out;
  const GemvParams product = own_params({.tokens = bucket});
  const auto is_enough = [&] { return static_cast<int>(out.size()) == most; };
  for (int n = 0; bucket <= kRingMaxTokens && !is_enough(); ++n) {
    const RingShape shape = guess_ring_shape(product, device_.num_sms, n);
    if (shape.rows == 0) break;
    if (shape.splits == fixed_splits_) out.push_back(entry_of(shape));
  }
  for (int n = 0; bucket > kRingMaxTokens && !is_enough(); ++n) {
    const TileShape shape = guess_tile_shape(product, fixed_splits_, device_.num_sms, n);
    if (shape.rows == 0) break;
    out.push_back(entry_of(shape));
  }
  return out;
}

Result<std::vector<PolicyEntry>> ShapeKernels::candidates(int64_t bucket, int max_algorithms) {
  if (has_fixed_order()) return fixed_candidates(bucket, std::min(max_algorithms, kFixedGuesses));
  std::vector<PolicyEntry> out;
  if (key_.low != 0) {
    const LowBits form = low_of_id(key_.low);
    for (int n = 0; n == 0 || max_algorithms > 1; ++n) {
      const LowShape shape = low_shape(form, bucket, n);
      if (shape.tokens == 0) break;
      out.push_back({ProductKernel::kLow, algorithm_of(shape), 0});
    }
    return out;
  }
  if (bucket <= kGemvMaxTokens && gemv_takes(key_.in, is_fp8())) {
    for (uint64_t variant = 0; variant < static_cast<uint64_t>(gemv_variants(bucket)); ++variant) {
      out.push_back({ProductKernel::kGemv, {variant}, 0});
    }
    if (max_algorithms <= 1) return out;
  }
  for (int n = 0; max_algorithms > 1 && n < kRingGuesses; ++n) {
    const GemvParams product = own_params({.tokens = bucket});
    const RingShape shape = guess_ring_shape(product, device_.num_sms, n);
    if (!ring_takes(product, shape)) break;
    out.push_back(entry_of(shape));
  }
  RUDDER_TRY_VOID(add_candidates(*unit_, ProductKernel::kUnit, bucket, max_algorithms, out));
  if (outer_ != nullptr && max_algorithms > 1) {
    // Not every library has it for every shape: one way less, no fault.
    (void)add_candidates(*outer_, ProductKernel::kOuter, bucket, max_algorithms, out);
  }
  return out;
}

Result<std::vector<PolicyEntry>> ShapeKernels::candidates_for_all(int max_algorithms) {
  if (key_.low != 0) return std::vector<PolicyEntry>{{ProductKernel::kLow, {}, 0}};
  const auto takes_all = [&](const Product::Algorithm& algorithm) {
    for (int64_t bucket = 1; bucket <= kMostTokensForAll; bucket = bucket_of(bucket + 1)) {
      for (const int64_t tokens : {bucket, least_tokens(bucket)}) {
        if (!unit_->accepts(algorithm, tokens, device_.workspace.bytes)) return false;
      }
    }
    return true;
  };
  std::vector<PolicyEntry> out;
  for (const int64_t tokens : kTokensToAskFor) {
    const Result<std::vector<Product::Algorithm>> found =
        unit_->candidates(tokens, device_.workspace.bytes, max_algorithms, true);
    if (!found) continue;  // others may have some
    for (const Product::Algorithm& algorithm : *found) {
      const bool is_known = std::ranges::any_of(
          out, [&](const PolicyEntry& entry) { return entry.algorithm == algorithm.data; });
      if (!is_known && takes_all(algorithm)) {
        out.push_back({ProductKernel::kUnit, algorithm.data, 0});
      }
    }
  }
  if (!out.empty()) return out;
  return fail(ErrorCode::kUnsupported,
              fmt::format("no batch-invariant kernel multiplies {}", unit_->shape().to_string()),
              "batch-invariant");
}

bool ShapeKernels::settle(int64_t bucket, const PolicyEntry& entry) {
  RUDDER_CHECK(bucket_index(bucket) < kNumTokenBuckets, "{} tokens", bucket);
  if ((entry.kernel == ProductKernel::kLow) != (key_.low != 0)) return false;
  if (has_fixed_order()) {
    const bool is_ours =
        entry.kernel == ProductKernel::kRing || entry.kernel == ProductKernel::kTile;
    if (!is_ours || entry.algorithm[1] != static_cast<uint64_t>(fixed_splits_)) return false;
  }
  if (entry.kernel == ProductKernel::kLow) {
    const LowShape shape = low_shape_of(entry, bucket);
    if (!is_low_shape(low_of_id(key_.low), bucket, shape)) return false;
  } else if (entry.kernel == ProductKernel::kGemv) {
    if (bucket > kGemvMaxTokens || !gemv_takes(key_.in, is_fp8()) ||
        entry.algorithm[0] >= static_cast<uint64_t>(gemv_variants(bucket))) {
      return false;
    }
  } else if (entry.kernel == ProductKernel::kRing) {
    if (!ring_takes(own_params({.tokens = bucket}), ring_shape(entry))) return false;
  } else if (entry.kernel == ProductKernel::kTile) {
    if (!tile_takes(own_params({.tokens = bucket}), tile_shape(entry))) return false;
  } else {
    Product* product = entry.kernel == ProductKernel::kOuter ? outer_.get() : unit_.get();
    const Product::Algorithm algorithm{entry.algorithm};
    if (product == nullptr) return false;
    for (const int64_t tokens : {bucket, least_tokens(bucket)}) {
      if (!product->accepts(algorithm, tokens, device_.workspace.bytes)) return false;
    }
  }
  buckets_[bucket_index(bucket)] = entry;
  return true;
}

Result<void> ShapeKernels::settle_by_guess(int64_t bucket) {
  RUDDER_TRY(const std::vector<PolicyEntry> found, candidates(bucket, 1));
  RUDDER_CHECK(settle(bucket, found.front()));  // candidates() has asked the same questions
  return {};
}

const PolicyEntry* ShapeKernels::settled(int64_t bucket) const {
  const std::optional<PolicyEntry>& entry = buckets_.at(bucket_index(bucket));
  return entry ? &*entry : nullptr;
}

bool ShapeKernels::fetches_ahead(int64_t tokens) const {
  if (for_all_) return false;
  const PolicyEntry* const entry = settled(bucket_of(tokens));
  return entry != nullptr && fetches_ahead(tokens, *entry);
}

bool ShapeKernels::fetches_ahead(int64_t tokens, const PolicyEntry& entry) const {
  return tokens <= kRingMaxTokens &&
         (entry.kernel == ProductKernel::kRing || entry.kernel == ProductKernel::kLow);
}

Result<bool> ShapeKernels::run(const Args& args) {
  if (for_all_) return run(args, *for_all_);
  const int64_t bucket = bucket_of(args.tokens);
  const PolicyEntry* entry = settled(bucket);
  if (entry == nullptr) {
    RUDDER_TRY_VOID(settle_by_guess(bucket));
    entry = settled(bucket);
  }
  return run(args, *entry);
}

Result<bool> ShapeKernels::run(const Args& args, const PolicyEntry& entry) {
  if (entry.kernel == ProductKernel::kLow) {
    RUDDER_TRY_VOID(run_low(args, entry));
    return false;
  }
  if (entry.kernel == ProductKernel::kGemv || entry.kernel == ProductKernel::kRing) {
    RUDDER_TRY_VOID(run_own(args, entry));
    return false;
  }
  if (entry.kernel == ProductKernel::kTile) {
    RUDDER_TRY_VOID(run_tiles(args, entry));
    return false;
  }
  Product& product = entry.kernel == ProductKernel::kOuter ? *outer_ : *unit_;
  const Product::Operands operands{.x = args.x,
                                   .weight = args.weight,
                                   .bias = args.bias,
                                   .x_scale = args.x_scale,
                                   .w_scale = args.w_scale,
                                   .y = args.y,
                                   .tokens = args.tokens};
  RUDDER_TRY_VOID(product.run(operands, {entry.algorithm}, device_.workspace, device_.stream));
  const bool scale = is_fp8() && entry.kernel == ProductKernel::kUnit;
  if (scale && args.reader_scales) return true;
  RUDDER_TRY_VOID(finish(args, scale, key_.bias && !product.shape().bias));
  return false;
}

GemvParams ShapeKernels::own_params(const Args& args) const {
  GemvParams params;
  params.weight = args.weight;
  params.x = args.x;
  params.x_scale = args.x_scale;
  params.w_scale = args.w_scale;
  params.bias = args.bias;
  params.y = args.y;
  params.out = key_.out;
  params.in = key_.in;
  params.tokens = static_cast<int32_t>(args.tokens);
  params.softcap = args.softcap;
  params.is_fp8 = is_fp8();
  params.y_is_f32 = key_.out_dtype == DType::kF32;
  return params;
}

Result<void> ShapeKernels::run_own(const Args& args, const PolicyEntry& entry) {
  GemvParams params = own_params(args);
  if (entry.kernel == ProductKernel::kRing) {
    return launched(launch_ring_product(params, ring_shape(entry), device_.num_sms, device_.stream),
                    "ring");
  }
  params.variant = static_cast<int32_t>(entry.algorithm[0]);
  return launched(launch_gemv(params, device_.stream), "gemv");
}

Result<void> ShapeKernels::run_low(const Args& args, const PolicyEntry& entry) {
  LowProductParams params;
  params.weight = args.weight;
  params.row_factor = args.w_scale;
  params.x = args.x;
  params.bias = args.bias;
  params.y = args.y;
  params.form = low_of_id(key_.low);
  params.out = key_.out;
  params.in = key_.in;
  params.tokens = static_cast<int32_t>(args.tokens);
  params.softcap = args.softcap;
  params.y_is_f32 = key_.out_dtype == DType::kF32;
  params.room = device_.workspace.data;
  params.room_bytes = static_cast<int64_t>(device_.workspace.bytes);
  params.parts = device_.low_parts;
  params.flags = device_.low_flags;
  return launched(
      launch_low_product(params, low_shape_of(entry, args.tokens), device_.num_sms, device_.stream),
      "low product");
}

// A soft-cap has a pass of its own: y is f32 then, so the bits are those of kRing.
Result<void> ShapeKernels::run_tiles(const Args& args, const PolicyEntry& entry) {
  RUDDER_CHECK(args.softcap == 0.0f || key_.out_dtype == DType::kF32);
  GemvParams params = own_params(args);
  params.softcap = 0.0f;
  RUDDER_TRY_VOID(launched(
      launch_tile_product(params, tile_shape(entry), device_.num_sms, device_.stream), "tile"));
  return finish(args, false, false);
}

Result<void> ShapeKernels::finish(const Args& args, bool scale, bool bias) {
  if (!scale && !bias && args.softcap == 0.0f) return {};
  ScaleRowsColsParams params;
  params.y = args.y;
  params.y_is_f32 = key_.out_dtype == DType::kF32;
  params.x_scale = scale ? args.x_scale : nullptr;
  params.w_scale = scale ? args.w_scale : nullptr;
  params.bias = bias ? args.bias : nullptr;
  params.rows = args.tokens;
  params.cols = key_.out;
  params.softcap = args.softcap;
  return launched(launch_scale_rows_cols(params, device_.stream), "scale_rows_cols");
}

}  // namespace rudder::cuda
