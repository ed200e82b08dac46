// InStack: which part of a tensor that holds a product of all experts belongs to one of them. Plain
// data; the list of tensors says it (tensors.h), stacked_experts.h reads by it.
#pragma once

#include <cstdint>

namespace rudder::model {

// Where a part lies in one tensor of all experts, [experts, in, rows * step]: of one of them, and
// of its rows every `step`-th. Packed numbers lie as [experts, rows * step, in].
struct InStack {
  int64_t experts = 0;  // 0: the part has a tensor of its own
  int64_t expert = 0;
  int64_t first_row = 0;
  int64_t step = 1;
};

}  // namespace rudder::model
