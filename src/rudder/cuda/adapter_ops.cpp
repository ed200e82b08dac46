#include "rudder/cuda/adapter_ops.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/adapters/adapters.h"

namespace rudder::cuda {
namespace {

static_assert(kMostAdapterParts == ops::kMaxAdapterParts);

AdapterParams adapter_params(const ops::AdaptArgs& args) {
  const ops::AdapterWeights& weights = *args.weights;
  const int64_t tokens = args.x.num_rows();
  RUDDER_CHECK(args.x.dtype == tensor::DType::kBF16 && args.tokens.rows.num_rows() == tokens &&
                   args.tokens.groups.num_rows() <= tokens && args.out.num_rows() == tokens &&
                   weights.rank % 16 == 0 && args.mid.shape.numel() >= tokens * weights.mid_width(),
               "adapters of rank {} for {} rows", weights.rank, tokens);
  AdapterParams params;
  params.x = args.x.data;
  params.order = pointer<int32_t>(args.tokens.order);
  params.groups = static_cast<const ops::AdapterGroup*>(args.tokens.groups.data);
  params.tokens = tokens;
  params.in = weights.in();
  params.out = weights.out();
  params.most_groups = static_cast<int>(args.tokens.groups.num_rows());
  params.a = weights.a.data;
  params.b = weights.b.data;
  params.scales = pointer<float>(weights.scales);
  params.gains = pointer<float>(weights.gains);
  params.offsets = weights.offsets.empty() ? nullptr : pointer<float>(weights.offsets);
  params.parts = weights.num_parts;
  params.rank = weights.rank;
  std::ranges::copy(weights.part_end, params.part_end);
  params.mid = pointer<float>(args.mid);
  params.y = args.out.data;
  return params;
}

}  // namespace

void AdapterOps::shrink_adapters(const ops::AdaptArgs& args) {
  if (args.x.num_rows() == 0) return;
  const AdapterParams params = adapter_params(args);
  shrink_("shrink_adapters", args, [&](cudaStream_t stream, const ProductScales&) {
    return launch_shrink_adapters(params, stream);
  });
}

void AdapterOps::expand_adapters(const ops::AdaptArgs& args) {
  if (args.x.num_rows() == 0) return;
  AdapterParams params = adapter_params(args);
  expand_("expand_adapters", args, [&](cudaStream_t stream, const ProductScales& product) {
    params.product = product;
    return launch_expand_adapters(params, stream);
  });
}

}  // namespace rudder::cuda
