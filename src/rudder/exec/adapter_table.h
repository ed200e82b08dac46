// AdapterTable: the adapters on the device. A row of it holds the matrices of one adapter for every
// product of the rank's layers; plans name the adapter of a row, steps the row of a token. Part of
// DeviceExecutor: its worker thread uses it. The device memory is the Ops'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/exec/upload_ring.h"
#include "rudder/lora/adapter.h"
#include "rudder/model/adapted_products.h"
#include "rudder/ops/ops.h"
#include "rudder/step/plan.h"

namespace rudder::exec {

class AdapterTable {
 public:
  // Allocates the table, with no adapter in it, and tells the products' weights of it. kUnsupported
  // ("enable-lora"): the backend has no AdapterOps; else an Error is the device's. `ops` outlives
  // the table, the table the weights.
  static Result<std::unique_ptr<AdapterTable>> make(ops::Ops& ops,
                                                    std::vector<model::AdaptedProduct> products,
                                                    const lora::TableSize& size,
                                                    int32_t max_tokens);
  // Device bytes that make() allocates; `spec` is that of the rank's part and stage.
  static int64_t device_bytes(const model::ModelSpec& spec, const lora::TableSize& size,
                              int32_t max_tokens, ops::Ops& ops);

  // Enqueues the plan's edits. An Error is the device's.
  Result<void> apply(const step::StepPlan& plan);

  // Of ForwardBatch: scratch of steps with adapters.
  struct Scratch {
    ops::View mid;  // f32
    ops::View act;
  };
  const Scratch& scratch() const { return scratch_; }
  const lora::TableSize& size() const { return size_; }

 private:
  struct Product {
    model::AdaptedProduct described;
    std::shared_ptr<ops::AdapterWeights> weights;
  };

  AdapterTable(ops::Ops& ops, const lora::TableSize& size) : ops_(ops), size_(size) {}

  Result<void> add(model::AdaptedProduct product);
  Result<void> upload(int32_t row, const lora::Adapter& adapter);
  Result<void> upload(int32_t row, const lora::Adapter& adapter, const Product& product);

  ops::Ops& ops_;
  const lora::TableSize size_;
  std::vector<Product> products_;
  Scratch scratch_;
  std::unique_ptr<UploadRing> uploads_;
  // Scratch: a row of a product as it lies on the device.
  std::vector<std::byte> a_;
  std::vector<std::byte> b_;
  std::vector<float> scales_;
  std::vector<float> gains_;
  std::vector<float> offsets_;
};

}  // namespace rudder::exec
