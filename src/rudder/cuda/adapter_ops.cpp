#include "rudder/cuda/adapter_ops.h"

#include <algorithm>

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/adapters/adapters.h"

namespace rudder::cuda {

static_assert(kMostAdapterParts == ops::kMaxAdapterParts);

int64_t AdapterOps::mid_floats(int64_t num_tokens, int64_t mid_width) const {
  return num_tokens * kMostAdapterSlices * mid_width;
}

void AdapterOps::add_adapters(const ops::AddAdaptersArgs& args) {
  const ops::AdapterWeights& weights = *args.weights;
  const int64_t tokens = args.x.num_rows();
  RUDDER_CHECK(args.x.dtype == tensor::DType::kBF16 && args.rows.num_rows() == tokens &&
                   args.out.num_rows() == tokens && weights.rank % 16 == 0 &&
                   args.mid.shape[0] >= tokens * adapter_slices(weights.in()) * weights.mid_width(),
               "adapters of rank {} for {} rows", weights.rank, tokens);
  if (tokens == 0) return;
  AdapterParams params;
  params.x = args.x.data;
  params.rows = pointer<int32_t>(args.rows);
  params.tokens = tokens;
  params.in = weights.in();
  params.out = weights.out();
  params.a = weights.a.data;
  params.b = weights.b.data;
  params.scales = pointer<float>(weights.scales);
  params.parts = weights.num_parts;
  params.rank = weights.rank;
  std::ranges::copy(weights.part_end, params.part_end);
  params.mid = pointer<float>(args.mid);
  params.y = args.out.data;
  run_(args, [&](cudaStream_t stream, const ProductScales& product) {
    params.product = product;
    return launch_add_adapters(params, stream);
  });
}

}  // namespace rudder::cuda
