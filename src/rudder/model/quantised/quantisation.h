// Quantisation: a checkpoint's description of its quantised weights: config.json's
// "quantization_config" in the formats of compressed-tensors, ModelOpt, the fp8 method, GPTQ, AWQ,
// bitsandbytes, HQQ and MXFP4, or ModelOpt's hf_quant_config.json. The binder takes weights and
// scales by it. What is not read is an Error that names the field. Load time, one thread.
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

// How the tensors of a module are laid out (quantised/low_bits.h reads all but the first two).
enum class StoredAs : uint8_t {
  kWide,
  kFp8Rows,
  kFp8Blocks,
  kPacked,  // integers of compressed-tensors
  kInt8,
  kNvfp4,
  kMxfp4,
  kMxfp4Stack,  // of all experts in one tensor (stacked_experts.h)
  kGptq,
  kAwq,
  kNf4,
  kHqq
};

struct Quantisation {
  struct Group {
    std::vector<weights::NamePattern> targets;  // none: every linear module
    WeightScales scales = WeightScales::kAny;
    bool wide_inputs = false;  // the weight alone is quantised
    StoredAs as = StoredAs::kFp8Rows;
    int32_t bits = 8;
    int32_t inputs = 0;  // of a row that share a scale; 0: all of them
    int32_t rows = 1;    // that share it
    bool symmetric = true;
    bool reorders = false;        // each input says its group
    bool zeros_less_one = false;  // a zero is stored less one
  };

  std::vector<Group> groups;  // none: nothing is quantised
  std::vector<weights::NamePattern> excluded;

  // The first group that a linear module is in; null: it is stored wide.
  Result<const Group*> group_of(std::string_view module) const;
};

// Errors name the file and the key.
Result<Quantisation> read_quantisation(const weights::Checkpoint& checkpoint);

}  // namespace rudder::model
