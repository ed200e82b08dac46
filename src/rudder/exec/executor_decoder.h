// The KV cache of an executor and the decoder that reads it. A decoder of the options' own keeps
// the KV itself, so the device has none. Called once, when the executor is made.
#pragma once

#include <memory>
#include <span>

#include "rudder/exec/device_executor.h"

namespace rudder::exec {

Result<KvMemory> make_kv(const model::MakeOwnKvDecoder& make, const DeviceExecutor::Model& model,
                         const step::Capacity& capacity);

// What lies beside the weights, for Decoder::make; it outlives the decoder.
struct DecoderMemory {
  std::span<const ops::KvLayer> kv;
  const model::HiddenPool& kept;
  const ops::View& sampled_rows;
  std::span<const model::LayerState> states;
};
Result<std::unique_ptr<model::Decoder>> make_decoder(const model::MakeOwnKvDecoder& make,
                                                     const DeviceExecutor::Model& model,
                                                     const step::Capacity& capacity,
                                                     const DecoderMemory& memory);

}  // namespace rudder::exec
