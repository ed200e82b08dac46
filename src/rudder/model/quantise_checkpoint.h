// Writes a checkpoint in fewer bits: the products of the layers become codes with scales, by round
// to nearest, in the format of compressed-tensors
// (https://github.com/vllm-project/compressed-tensors); everything else is copied: embedding, head,
// norms, biases, tokenizer. `rudder quantise` calls it, on one thread; it works on every core.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "rudder/base/progress.h"
#include "rudder/base/result.h"
#include "rudder/model/channel_scales.h"
#include "rudder/model/group_rounding.h"
#include "rudder/weights/checkpoint.h"

namespace rudder::model {

// fp8, w8a8: a scale a row; w8a16: a scale a row; w4a16: a scale for 128 inputs.
inline constexpr std::array<QuantiseScheme, 4> kQuantiseSchemes = {{
    {.name = "fp8",
     .format = "float-quantized",
     .bits = 8,
     .is_float = true,
     .group = 0,
     .quantises_inputs = true},
    {.name = "w8a8", .format = "int-quantized", .bits = 8, .quantises_inputs = true},
    {.name = "w8a16", .format = "pack-quantized", .bits = 8},
    {.name = "w4a16", .format = "pack-quantized", .bits = 4, .group = 128},
}};
const QuantiseScheme* find_scheme(std::string_view name);  // null: there is none

// `folder` is created; it may not hold a model yet. Progress is in bytes that were read.
// With `scales` (channel_scales.h) tensors are changed by them before they are rounded or copied.
// config.json is written last: a folder that has one is whole. kUnsupported, with the tensor: it is
// quantised already, or its inputs are no multiple of the group.
Result<void> quantise_checkpoint(const weights::Checkpoint& checkpoint,
                                 const QuantiseScheme& scheme, const std::string& folder,
                                 const ProgressFn& progress, const ChannelScales& scales = {});

}  // namespace rudder::model
