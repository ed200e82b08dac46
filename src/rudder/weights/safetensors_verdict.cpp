// Reads files from standard input, each as a 4-byte little-endian length and its bytes, and prints
// '1' for each that parse_safetensors accepts and '0' for each that it refuses. For
// tools/safetensors_check.py, which has a reader of its own to compare with.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "rudder/weights/safetensors.h"

int main() {
  std::string verdicts;
  uint8_t length[4];
  while (std::fread(length, 1, 4, stdin) == 4) {
    const size_t size = length[0] | length[1] << 8 | length[2] << 16 | size_t{length[3]} << 24;
    std::vector<std::byte> bytes(size);
    if (std::fread(bytes.data(), 1, size, stdin) != size) return 1;
    verdicts += rudder::weights::parse_safetensors(bytes, "stdin") ? '1' : '0';
  }
  std::fwrite(verdicts.data(), 1, verdicts.size(), stdout);
  return 0;
}
