#define RUDDER_CPU_ISA portable
#include "rudder/cpu/kernel_table.h"

namespace rudder::cpu::portable {

const Kernels& kernels() {
  static const Kernels table = vector_kernels();
  return table;
}

}  // namespace rudder::cpu::portable
