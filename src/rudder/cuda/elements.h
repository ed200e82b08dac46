// Tensors and element types in the form that kernels take, and casts of values for the device.
// Plain functions; the thread of the Ops.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>
#include <string>

#include "rudder/base/result.h"
#include "rudder/cuda/kernels/kv_type.h"
#include "rudder/cuda/kernels/rows/rows.h"
#include "rudder/cuda/uploader.h"
#include "rudder/ops/args.h"
#include "rudder/tensor/view.h"

namespace rudder::cuda {

// Where the elements are, as the kernel's own type of the same bytes.
template <typename T>
T* pointer(const tensor::View& view) {
  return static_cast<T*>(view.data);
}

// Of the cache's format (check_stored()).
KvType kv_type_of(const ops::KvLayer& kv);

// The sizes of an op's arguments, for the message of a fault.
std::string shapes(std::initializer_list<const tensor::View*> views);

// f32, f16 or bf16: what may become one of them on the device.
bool castable(tensor::DType dtype);
// Of a castable type, or F8E4M3.
Element element_of(tensor::DType dtype);

// Brings a host tensor to `device`, which has its number of elements, converted to its type. An
// Error where that is not possible.
Result<void> upload_cast(Uploader& uploader, const tensor::View& host, const tensor::View& device,
                         cudaStream_t stream);

}  // namespace rudder::cuda
