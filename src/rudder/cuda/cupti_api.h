// CUPTI's activity records: the library is opened when it is asked for, from where the toolkit puts
// it; its types are the toolkit's. Included where the build found cupti.h.
#pragma once

#include <cupti.h>
#include <dlfcn.h>

#include <initializer_list>
#include <type_traits>

namespace rudder::cuda {

struct CuptiApi {
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;

  // False: there is no such library.
  bool open() {
    for (const char* name :
         {"libcupti.so.13", "libcupti.so.12", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
          "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}) {
      void* const library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
      if (library == nullptr) continue;
      const auto find = [&](auto& function, const char* symbol) {
        function =
            reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
        return function != nullptr;
      };
      return find(enable, "cuptiActivityEnable") &&
             find(register_callbacks, "cuptiActivityRegisterCallbacks") &&
             find(flush_all, "cuptiActivityFlushAll") &&
             find(next_record, "cuptiActivityGetNextRecord");
    }
    return false;
  }
};

}  // namespace rudder::cuda
