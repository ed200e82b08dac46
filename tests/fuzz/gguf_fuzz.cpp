// A steering module in a .gguf file.
#include "steer_model.h"

namespace rudder::fuzz {

void fuzz_gguf(std::string_view input) {
  const CpuBound bound(5);
  require_module(input, ".gguf");
}

}  // namespace rudder::fuzz
