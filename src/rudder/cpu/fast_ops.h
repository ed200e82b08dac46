// The fast CPU backend: packs weights once into panels of bf16 (or f32), or of the codes that their
// file has (make_weight.h), reads them once for all rows of a product, uses the kernels of the best
// instruction set that the machine has, and every core. apps makes it at start; one thread calls
// it, and the backend's own threads help that thread.
//
// The result of a row has the same bits whatever other rows are in its step, however its prompt was
// cut into chunks, and on any number of threads. Between instruction sets, results differ only by
// the rounding of fp32 sums: bf16 products round x to bf16 on all of them, those of
// codes to I8 (ops::kI8InputGroup).
#pragma once

#include <memory>
#include <optional>

#include "rudder/cpu/host_comm.h"
#include "rudder/cpu/isa.h"
#include "rudder/ops/ops.h"

namespace rudder::cpu {

struct CpuOpsSettings {
  tensor::DType dtype = tensor::DType::kBF16;  // of weights and KV; kBF16 or kF32
  int num_threads = 0;                         // 0 = every core this process may use
  std::optional<Isa> isa;                      // the best available unless named
  std::shared_ptr<HostComm> comm = {};         // a rank of a group; null: alone
  std::optional<ops::KvFormat> kv = {};        // of codes; empty: numbers of `dtype`
};

// An Error for another dtype, or for an instruction set that this machine does not have.
Result<std::unique_ptr<ops::Ops>> make_cpu_ops(const CpuOpsSettings& settings);

}  // namespace rudder::cpu
