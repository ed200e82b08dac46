#include "rudder/cpu/kernels.h"

#include "rudder/base/check.h"

namespace rudder::cpu {

const Kernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return portable::kernels();
    case Isa::kAvx2:
      return avx2::kernels();
    case Isa::kAvx512:
      return avx512::kernels();
    case Isa::kAvx512Bf16:
      return avx512_bf16::kernels();
    case Isa::kAmx:
      return amx::kernels();
  }
  RUDDER_CHECK(false, "instruction set {}", static_cast<int>(isa));
}

}  // namespace rudder::cpu
