// Reconstructions: which dictionaries replace rows of a config by what they make of them. Lowering
// asks it, op by op.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "rudder/base/result.h"
#include "rudder/steer/op_spec.h"

namespace rudder::steer {

class Reconstructions {
 public:
  // A row is reconstructed by one dictionary, and a token carries one row at a time: else
  // kInvalidArgument with the spec's `where`. Ops that reconstruct nothing are taken as they are.
  Result<void> add(const OpSpec& spec);

  // Whether the op that replaces the row there, under that selector, is the first of its kind.
  bool is_first(tap::Point point, int32_t selector, const features::Dictionary* dictionary) {
    return ops_.emplace(point.index(), selector, dictionary).second;
  }

 private:
  struct Full {
    const features::Dictionary* dictionary = nullptr;
    int32_t read = 0;  // points
    int32_t write = 0;
  };
  std::vector<Full> full_;
  std::set<std::tuple<int32_t, int32_t, const features::Dictionary*>> ops_;
};

}  // namespace rudder::steer
