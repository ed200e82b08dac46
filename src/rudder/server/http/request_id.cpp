#include "rudder/server/http/request_id.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace rudder::server {

uint64_t random_bits() {
  thread_local std::mt19937_64 generator = [] {  // one seeding a thread
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return generator();
}

bool is_request_id(std::string_view offered) {
  constexpr size_t kMaxLength = 128;
  return !offered.empty() && offered.size() <= kMaxLength &&
         std::all_of(offered.begin(), offered.end(),
                     [](char ch) { return ch > ' ' && ch < 0x7f && ch != '"'; });
}

std::string make_request_id(std::string_view offered) {
  if (is_request_id(offered)) return std::string(offered);
  const uint64_t high = random_bits();
  return fmt::format("{:016x}{:016x}", high, random_bits());
}

}  // namespace rudder::server
