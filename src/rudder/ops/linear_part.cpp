#include "rudder/base/check.h"
#include "rudder/ops/args.h"

namespace rudder::ops {

LinearPart wide_part(const View& weight, const View& bias) {
  const Result<WeightFormat> format = wide_format(weight.dtype);
  RUDDER_CHECK(format.has_value(), "a wide weight of {}", tensor::dtype_name(weight.dtype));
  LinearPart part;
  part.format = *format;
  part.codes = weight;
  part.bias = bias;
  return part;
}

}  // namespace rudder::ops
