// Quantisation: reads a checkpoint's description of its fp8 (E4M3) weights: config.json's
// "quantization_config" in the formats of compressed-tensors, ModelOpt and the fp8 method of
// AutoFP8, or ModelOpt's hf_quant_config.json. The loader binds weights and scales by it. Formats
// that no kernel here multiplies (int8, int4, scales of blocks, other methods) are an Error that
// names the field. Load time, one thread.
//
// docs/contracts/checkpoints.md says which formats are read and what each backend stores.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/weights/checkpoint.h"
#include "rudder/weights/name_pattern.h"

namespace rudder::model {

// Of a weight [out, in]: one scale, one a channel of the output, or as the file has it.
enum class WeightScales : uint8_t { kTensor, kChannel, kAny };

struct Quantisation {
  struct Group {
    std::vector<weights::NamePattern> targets;  // none: every linear module
    WeightScales scales = WeightScales::kAny;
    bool wide_inputs = false;  // the weight alone is quantised
  };

  std::vector<Group> groups;  // none: nothing is quantised
  std::vector<weights::NamePattern> excluded;

  // The first group that a linear module is in; null: it is stored wide.
  Result<const Group*> group_of(std::string_view module) const;
};

// Errors name the file and the key.
Result<Quantisation> read_quantisation(const weights::Checkpoint& checkpoint);

}  // namespace rudder::model
