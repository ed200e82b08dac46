#include "rudder/cuda/stream.h"

namespace rudder::cuda {

Result<std::unique_ptr<Stream>> Stream::make() {
  cudaStream_t handle = nullptr;
  RUDDER_CUDA_TRY(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking), "stream", "");
  return std::make_unique<Stream>(handle);
}

Result<std::unique_ptr<SideStream>> SideStream::make() {
  RUDDER_TRY(std::unique_ptr<Stream> stream, Stream::make());
  cudaEvent_t fork = nullptr;
  RUDDER_CUDA_TRY(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming), "stream", "");
  return std::make_unique<SideStream>(std::move(stream), fork);
}

cudaError_t SideStream::copy_out(void* to, const void* from, size_t bytes, cudaStream_t after) {
  cudaError_t error = cudaEventRecord(fork_, after);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(handle(), fork_, 0);
  if (error != cudaSuccess || bytes == 0) return error;
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, handle());
}

CudaEvent::CudaEvent(DeviceStatus& status, ops::Comm* comm) : status_(status), comm_(comm) {
  status_.check(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming), "make_event");
}

CudaEvent::~CudaEvent() {
  if (handle_ != nullptr) cudaEventDestroy(handle_);
}

Result<void> CudaEvent::wait() {
  if (!status_.failed()) status_.check(cudaEventSynchronize(handle_), "Event::wait");
  if (comm_ == nullptr) return status_.status();
  if (status_.failed()) comm_->fail(status_.status().error());
  return comm_->status();
}

bool CudaEvent::done() {
  if (status_.failed()) return true;  // wait() does not block and says why
  const cudaError_t found = cudaEventQuery(handle_);
  if (found == cudaErrorNotReady) return false;
  status_.check(found, "Event::done");
  return true;
}

void CudaEvent::record(cudaStream_t stream) {
  if (handle_ != nullptr) status_.check(cudaEventRecord(handle_, stream), "record");
}

Result<std::unique_ptr<CudaGraph>> end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  RUDDER_CUDA_TRY(cudaStreamEndCapture(stream, &graph), "end_capture", "");
  cudaGraphExec_t handle = nullptr;
  const cudaError_t made = cudaGraphInstantiate(&handle, graph, 0);
  cudaGraphDestroy(graph);
  RUDDER_CUDA_TRY(made, "end_capture", "the graph could not be made");
  auto out = std::make_unique<CudaGraph>(handle);
  RUDDER_CUDA_TRY(cudaGraphUpload(handle, stream), "end_capture", "upload");
  return out;
}

}  // namespace rudder::cuda
