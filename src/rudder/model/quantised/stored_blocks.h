// Blocks of a GGUF file as a weight of ops::WeightFormat: its codes, scales and minima, each with
// the number that the block has. The binder reads with it what a backend keeps as it is stored.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "rudder/ops/args.h"
#include "rudder/weights/packed_tensor.h"

namespace rudder::model {

// Nothing: the numbers of the type are no codes, or they are not known here.
std::optional<ops::WeightFormat> format_of_blocks(const weights::BlockType& type);

// The tensor, whose type has a format, in rows of the model's order; its views point into `memory`.
ops::LinearPart split_blocks(const weights::PackedTensor& packed,
                             std::vector<std::vector<std::byte>>& memory);

}  // namespace rudder::model
