// InStack: which part of a tensor that holds a product of all experts belongs to one of them. Plain
// data; the list of tensors says it (tensors.h), stacked_experts.h reads by it.
#pragma once

#include <cstdint>

namespace rudder::model {

// How a tensor of all experts has the `parts` of one, of `rows` each.
enum class StackForm : uint8_t {
  kInTurn,  // [experts, in, parts * rows], a row of each part in turn; packed numbers lie as
            // [experts, parts * rows, in]
  kBehind,  // [experts, parts * rows, in], the parts one behind the other
};

// Where a part lies in one tensor of all experts.
struct InStack {
  int64_t experts = 0;  // 0: the part has a tensor of its own
  int64_t expert = 0;
  int64_t part = 0;
  int64_t parts = 1;
  StackForm form = StackForm::kInTurn;
};

}  // namespace rudder::model
