// The entry of a libFuzzer program: gives its inputs to the target of this program,
// RUDDER_FUZZ_TARGET.
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rudder::fuzz {
void RUDDER_FUZZ_TARGET(std::string_view input);
}  // namespace rudder::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  rudder::fuzz::RUDDER_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
