#include "rudder/cuda/feature_ops.h"

#include "rudder/base/check.h"
#include "rudder/cuda/elements.h"
#include "rudder/cuda/kernels/features/encode.h"
#include "rudder/cuda/kernels/features/read_features.h"
#include "rudder/cuda/kernels/taps/tapped_rows.h"
#include "rudder/cuda/tap_params.h"

namespace rudder::cuda {
namespace {

ReadFeaturesParams read_features_params(const ops::ReadFeaturesArgs& args, int num_blocks) {
  const tap::DictionaryHead& head = args.head;
  const int64_t rows = args.x.shape[0];
  RUDDER_CHECK(args.x.dtype == tensor::DType::kBF16 && args.x.shape[1] == head.d_in,
               "features of {} rows of {}", tensor::dtype_name(args.x.dtype), args.x.shape[1]);
  ReadFeaturesParams params;
  params.image = pointer<float>(args.image);
  params.num_features = head.num_features;
  params.k = head.k;
  params.needs_all = args.needs_all();
  if (!args.listed.empty()) {
    params.listed = pointer<int32_t>(args.listed);
    params.num_listed = static_cast<int32_t>(args.listed.shape[0]);
    params.values = pointer<float>(args.values);
  }
  if (!args.top.empty()) {
    params.top = static_cast<ops::TopFeature*>(args.top.data);
    params.num_top = static_cast<int32_t>(args.top.shape[1]);
  }
  EncodeParams& product = params.product;
  product.x = args.x.data;
  product.rows = rows;
  product.width = args.x.shape[1];
  product.num_blocks = num_blocks;
  if (params.needs_all) {
    const int64_t row_floats = tap::feature_row_floats(head.num_features);
    RUDDER_CHECK(args.scratch.shape[0] >= rows && args.scratch.shape[1] == row_floats,
                 "{} for {} features of {} rows", args.scratch.shape.to_string(), head.num_features,
                 rows);
    product.features = pointer<float>(args.scratch);
    product.largest = product.features + tap::feature_tiles_begin(row_floats);
    product.feature_stride = row_floats;
  } else {
    product.features = params.values;
    product.feature_stride = params.num_listed;
  }
  return params;
}

}  // namespace

void FeatureOps::encode(const ops::EncodeArgs& args) {
  RUDDER_CHECK(args.x.dtype == tensor::DType::kBF16, "a row of {} is encoded",
               tensor::dtype_name(args.x.dtype));
  run_("encode", {&args.x}, [&](cudaStream_t stream) {
    const cudaError_t error = launch_encode(encode_params(args, num_sms_), stream);
    if (error != cudaSuccess) return error;
    return launch_tapped_residual_norm(rows_of(args), params_behind_encode(args), stream);
  });
}

void FeatureOps::read_features(const ops::ReadFeaturesArgs& args) {
  run_("read_features", {&args.x, &args.image}, [&](cudaStream_t stream) {
    return launch_read_features(read_features_params(args, num_sms_), stream);
  });
}

}  // namespace rudder::cuda
