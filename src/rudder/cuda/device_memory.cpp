#include "rudder/cuda/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rudder/cuda/device_status.h"

namespace rudder::cuda {

using tensor::View;

DeviceMemory::~DeviceMemory() {
  for (void* chunk : chunks_) cudaFree(chunk);
  for (void* pinned : pinned_) cudaFreeHost(pinned);
}

Result<View> DeviceMemory::allocate_raw(tensor::DType dtype, const tensor::Shape& shape) {
  View view{nullptr, dtype, shape};
  const ArenaLayout::Piece piece = layout_.place(static_cast<int64_t>(view.bytes()));
  if (piece.new_chunk_bytes > 0) {
    void* chunk = nullptr;
    const cudaError_t error = cudaMalloc(&chunk, static_cast<size_t>(piece.new_chunk_bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();  // not the stream's fault: the next launch must not find it
      layout_.undo_new_chunk();
      return tl::unexpected(device_error(
          error, "allocate",
          fmt::format("{} {}, {} bytes", shape.to_string(), dtype_name(dtype), view.bytes())));
    }
    chunks_.push_back(chunk);
  }
  view.data = static_cast<char*>(chunks_[piece.chunk]) + piece.offset;
  return view;
}

Result<View> DeviceMemory::allocate(tensor::DType dtype, const tensor::Shape& shape) {
  RUDDER_TRY(View view, allocate_raw(dtype, shape));
  RUDDER_CUDA_TRY(cudaMemsetAsync(view.data, 0, view.bytes(), stream_), "allocate",
                  shape.to_string());
  return view;
}

Result<View> DeviceMemory::allocate_pinned(int64_t bytes) {
  View view{nullptr, tensor::DType::kU8, {bytes}};
  const size_t size = std::max<size_t>(view.bytes(), 1);
  RUDDER_CUDA_TRY(cudaHostAlloc(&view.data, size, cudaHostAllocDefault), "allocate_staging",
                  fmt::format("{} bytes", bytes));
  pinned_.push_back(view.data);
  std::memset(view.data, 0, size);
  return view;
}

}  // namespace rudder::cuda
