// Readers: what other threads read and copy of the device's memory by (ops::ReaderOps). CudaOps
// owns the one object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "rudder/base/log.h"
#include "rudder/cuda/copy_lane.h"
#include "rudder/cuda/product.h"
#include "rudder/ops/ops.h"

namespace rudder::cuda {

class Readers final : public ops::ReaderOps {
 public:
  using Make = std::function<Result<std::unique_ptr<ops::Ops>>()>;
  // `make`: ops like the owner's, without kernels to measure.
  Readers(int32_t device, Make make) : device_(device), make_(std::move(make)) {}

  std::unique_ptr<ops::Ops> make_reader() const override {
    Result<std::unique_ptr<ops::Ops>> reader = make_();
    if (reader) return std::move(*reader);
    log_warn("{}", reader.error().to_string());
    return nullptr;
  }
  int64_t reader_bytes() const override { return kWorkspaceBytes; }
  Result<std::unique_ptr<ops::CopyLane>> make_lane() const override {
    return CudaLane::make(device_);
  }

 private:
  const int32_t device_;
  const Make make_;
};

}  // namespace rudder::cuda
