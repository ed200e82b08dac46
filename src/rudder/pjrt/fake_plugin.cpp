// Libraries that are no usable plugin, for tests: FAKE_MAJOR and FAKE_MINOR are the version that
// they tell, FAKE_SIZE the bytes of their table; with no FAKE_MAJOR they have no table at all. No
// function is there.
#include "rudder/pjrt/c_api.h"

#ifdef FAKE_MAJOR
namespace {
using rudder::pjrt::abi::Api;
Api table = {.header = {.struct_size = FAKE_SIZE},
             .version = {.header = {.struct_size = 24}, .major = FAKE_MAJOR, .minor = FAKE_MINOR},
             .functions = {}};
}  // namespace

extern "C" const Api* GetPjrtApi() {
  return &table;
}
#else
extern "C" int fake_plugin_has_nothing() {
  return 0;
}
#endif
