// A steering module in a .npz file.
#include "steer_model.h"

namespace rudder::fuzz {

void fuzz_npz(std::string_view input) {
  const CpuBound bound(5);
  require_module(input, ".npz");
}

}  // namespace rudder::fuzz
