#define RUDDER_CPU_ISA avx512_bf16
#include "rudder/cpu/kernel_table.h"

namespace rudder::cpu::avx512_bf16 {

const Kernels& kernels() {
  static const Kernels table = vector_kernels();
  return table;
}

}  // namespace rudder::cpu::avx512_bf16
