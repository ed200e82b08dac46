// What the check and the figures of experts_bench share: numbers, the room of a list.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "rudder/cuda/bench_graphs.h"
#include "rudder/cuda/kernels/experts/expert_list.h"

namespace rudder::cuda {

inline uint64_t next_random() {
  static uint64_t state = 0x9E3779B97F4A7C15;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state >> 11;
}
inline double uniform() {
  return static_cast<double>(next_random() & 0xffffff) / 0x1000000;
}

inline uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline double of_bf16(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(uint32_t{bits} << 16));
}
inline double of_e4m3(uint8_t byte) {
  const int exponent = byte >> 3 & 15;
  const int mantissa = byte & 7;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return byte < 0x80 ? size : -size;
}

// Numbers of one of the two types, about normal.
struct Numbers {
  bool is_fp8 = false;
  std::vector<uint8_t> bytes;

  Numbers(int64_t count, bool fp8)
      : is_fp8(fp8), bytes(static_cast<size_t>(fp8 ? count : 2 * count)) {
    if (fp8) {
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(next_random()) & 0xBF;  // below 2
      return;
    }
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const uint16_t one =
          to_bf16(static_cast<float>(uniform() + uniform() - uniform() - uniform()));
      std::memcpy(&bytes[i], &one, 2);
    }
  }
  double at(int64_t i) const {
    if (is_fp8) return of_e4m3(bytes[static_cast<size_t>(i)]);
    uint16_t one = 0;
    std::memcpy(&one, &bytes[static_cast<size_t>(2 * i)], 2);
    return of_bf16(one);
  }
};

// Device memory of the list of so many pairs.
class ListRoom {
 public:
  ListRoom(int64_t pairs, int64_t experts)
      : runs_(most_runs(pairs, experts, 8)),
        numbers_(1 + 2 * pairs),
        counts_(experts + 1),
        hits_(2 * kHitSizes) {}
  ExpertList list(int32_t run) {
    return {runs_.data(),
            numbers_.data(),
            numbers_.data() + 1,
            numbers_.data() + 1 + (static_cast<int64_t>(numbers_.bytes() / 4) - 1) / 2,
            counts_.data(),
            hits_.data(),
            run};
  }
  double hit_experts() const {
    std::vector<int64_t> hits(2 * kHitSizes);
    must(cudaMemcpy(hits.data(), hits_.data(), hits_.bytes(), cudaMemcpyDeviceToHost), "hits");
    double lists = 0;
    double named = 0;
    for (size_t i = 0; i < hits.size(); i += 2) {
      lists += static_cast<double>(hits[i]);
      named += static_cast<double>(hits[i + 1]);
    }
    return named / std::max(lists, 1.0);
  }

 private:
  Buffer<ExpertRun> runs_;
  Buffer<int32_t> numbers_;
  Buffer<int32_t> counts_;
  Buffer<int64_t> hits_;
};

template <typename T>
std::vector<T> read(const Buffer<T>& buffer) {
  std::vector<T> out(buffer.bytes() / sizeof(T));
  must(cudaMemcpy(out.data(), buffer.data(), buffer.bytes(), cudaMemcpyDeviceToHost), "read");
  return out;
}

// Prints what is wrong.
bool check_experts(cudaStream_t stream);

}  // namespace rudder::cuda
