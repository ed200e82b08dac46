// Measures the highest rates of this device; bench ops prints its figures as a share of them. It
// allocates and frees its own memory and takes about a second.
#pragma once

#include <string>

#include "rudder/base/result.h"

namespace rudder::cuda {

struct Ceilings {
  double read_bytes_per_second = 0;  // of device memory, nothing written
  double copy_bytes_per_second = 0;  // read and written together
  double bf16_flops = 0;             // products of 8192 x 8192 x 8192, cuBLASLt's best
  double fp8_flops = 0;
};

Result<Ceilings> measure_ceilings(const std::string& cublaslt_path);

}  // namespace rudder::cuda
