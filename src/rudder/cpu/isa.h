// The instruction sets that the CPU backend has kernels for, and which of them this machine runs.
// Any thread; plain values.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "rudder/base/result.h"

namespace rudder::cpu {

// In order of preference, the last is best. Each needs all that the ones before it need.
enum class Isa : uint8_t {
  kPortable,    // no instruction set extension: the reference for the others
  kAvx2,        // AVX2, FMA and F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Bf16,  // and its dot products of bf16 and of bytes (VNNI)
  kAmx,         // and AMX tiles of bf16
};

std::string_view isa_name(Isa isa);  // "portable", "avx2", "avx512", "avx512-bf16", "amx"
Result<Isa> parse_isa(std::string_view name);

// What this processor and kernel run, worst first; never empty. For AMX the process asks the kernel
// for the right to use tiles, once.
const std::vector<Isa>& available_isas();

}  // namespace rudder::cpu
