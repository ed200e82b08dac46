// The fast CPU backend: weights packed once into panels of bf16 (or f32) and streamed once a
// product for all rows, kernels of the best instruction set that the machine has, every core.
// Made by apps at start; used by one thread, which the backend's own threads help.
//
// A row's result is the same, bit for bit, whatever shares its step, however its prompt was cut
// into chunks, and on any number of threads. Between instruction sets results differ by the
// rounding of fp32 sums only: bf16 products round x to bf16 on all of them.
#pragma once

#include <memory>
#include <optional>

#include "rudder/cpu/isa.h"
#include "rudder/ops/ops.h"

namespace rudder::cpu {

struct CpuOpsSettings {
  tensor::DType dtype = tensor::DType::kBF16;  // of weights and KV; kBF16 or kF32
  int num_threads = 0;                         // 0 = every core this process may use
  std::optional<Isa> isa;                      // the best available unless named
};

// Fails on a dtype other than those two and on an instruction set this machine does not have.
Result<std::unique_ptr<ops::Ops>> make_cpu_ops(const CpuOpsSettings& settings);

}  // namespace rudder::cpu
