#define RUDDER_CPU_ISA avx512
#include "rudder/cpu/kernel_table.h"

namespace rudder::cpu::avx512 {

const Kernels& kernels() {
  static const Kernels table = vector_kernels();
  return table;
}

}  // namespace rudder::cpu::avx512
