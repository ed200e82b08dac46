#include "rudder/model/host_table.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "rudder/model/binder.h"
#include "rudder/model/weight_budget.h"

namespace rudder::model {

Result<ops::View> place_table_on_host(const ops::View& stored, ops::Ops& ops) {
  RUDDER_TRY(const ops::WeightFormat file, ops::wide_format(stored.dtype));
  RUDDER_TRY(const ops::WeightFormat device, ops.stored_format(file));
  ops::View out{nullptr, table_dtype(device), stored.shape};
  RUDDER_TRY(const ops::View memory, ops.allocate_staging(static_cast<int64_t>(out.bytes())));
  out.data = memory.data;
  if (out.dtype == stored.dtype) {
    std::memcpy(out.data, stored.data, out.bytes());
    return out;
  }
  const int64_t width = stored.shape[1];
  for (int64_t row = 0; row < stored.num_rows(); ++row) {
    const std::vector<float> values = values_of(stored.rows(row, 1));
    if (out.dtype == tensor::DType::kF32) {
      std::ranges::copy(values, out.as<float>() + row * width);
    } else {
      std::ranges::transform(values, out.as<tensor::BF16>() + row * width, tensor::to_bf16);
    }
  }
  return out;
}

}  // namespace rudder::model
