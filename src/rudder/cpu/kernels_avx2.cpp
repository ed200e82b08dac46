#define RUDDER_CPU_ISA avx2
#include "rudder/cpu/kernel_table.h"

namespace rudder::cpu::avx2 {

const Kernels& kernels() {
  static const Kernels table = vector_kernels();
  return table;
}

}  // namespace rudder::cpu::avx2
