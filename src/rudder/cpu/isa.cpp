#include "rudder/cpu/isa.h"

#include <cpuid.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace rudder::cpu {
namespace {

constexpr Isa kAll[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};

// Tile state is large, so Linux gives it to a process only on request (arch_prctl, since 5.16).
bool request_tiles() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

// CPUID leaf 7: AMX-BF16 is bit 22 of EDX, AMX-TILE bit 24 (not every compiler knows their names).
bool has_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kBf16AndTile = (1u << 22) | (1u << 24);
  return (edx & kBf16AndTile) == kBf16AndTile;
}

// Clang 14 has no name for it.
bool has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool runs(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Isa::kAvx512Bf16:
      return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    case Isa::kAmx:
      return has_amx() && request_tiles();
  }
  return false;
}

std::vector<Isa> detect() {
  std::vector<Isa> found;
  for (const Isa isa : kAll) {
    if (!runs(isa)) break;
    found.push_back(isa);
  }
  return found;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512-bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : kAll) {
    if (isa_name(isa) == name) return isa;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is none of portable, avx2, avx512, avx512-bf16, amx", name),
              "cpu_isa");
}

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

}  // namespace rudder::cpu
