// The copy engine's view of tensors: the driver's function that encodes maps. Included by .cu files
// only.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>

namespace rudder::cuda {

using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);

inline cudaError_t find_tensor_map_encoder(EncodeTensorMap* encode) {
  static std::atomic<EncodeTensorMap> known = nullptr;  // the search takes as long as a launch
  *encode = known;
  if (*encode != nullptr) return cudaSuccess;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = {};
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  known = *encode = reinterpret_cast<EncodeTensorMap>(function);
  return cudaSuccess;
}

}  // namespace rudder::cuda
