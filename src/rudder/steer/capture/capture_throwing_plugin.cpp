// Plugins for tests that throw as they are loaded: in an initialiser where THROWS_AT_LOAD is 1,
// else in the entry function.
#include <stdexcept>

#include "rudder_capture_plugin.h"

namespace {

#if THROWS_AT_LOAD
struct ThrowsAtLoad {
  ThrowsAtLoad() { throw std::runtime_error("load"); }
} throws_at_load;
#endif

}  // namespace

extern "C" const rudder_capture_plugin* rudder_capture_plugin_entry(uint32_t) {
  throw std::runtime_error("entry");
}
