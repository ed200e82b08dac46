#include "embedded_model.h"

#include <cstddef>

// One pair of symbols a file, made by CMake from the lists of files (rudder_embed).
#define RUDDER_EMBEDDED_FILE(name, symbol) \
  extern "C" const std::byte symbol[];     \
  extern "C" const std::byte symbol##_end[];
#include "demo_files.inc"
#undef RUDDER_EMBEDDED_FILE

namespace rudder::apps {

std::vector<weights::MemoryFile> embedded_model() {
#define RUDDER_EMBEDDED_FILE(name, symbol) {name, {symbol, symbol##_end}},
  return {
#include "demo_files.inc"
  };
#undef RUDDER_EMBEDDED_FILE
}

}  // namespace rudder::apps
