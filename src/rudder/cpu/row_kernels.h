// The formulas of one row (ops/args.h) on vector registers, and the packing of rows into tiles.
// Included by kernels_<isa>.cpp through simd.h.
#pragma once

#include <cstddef>

#include "rudder/cpu/kernels.h"
#include "rudder/cpu/simd.h"
#include "rudder/cpu/vector_math.h"

namespace rudder::cpu::RUDDER_CPU_ISA {

// f(i, count) for each run of up to 16 elements.
template <typename F>
inline void for_each_vec(int64_t width, F f) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) f(i, int64_t{kLanes});
  if (i < width) f(i, width - i);
}
inline Vec load_run(const float* from, int64_t count) {
  return count == kLanes ? load(from) : load_first(from, count);
}
inline void store_run(float* to, Vec x, int64_t count) {
  if (count == kLanes) {
    store(to, x);
  } else {
    store_first(to, x, count);
  }
}

// Copies one row into a row tile; `to` is the tile's first byte plus row * kStepBytes.
template <Element kElement>
void pack_row(const float* x, int64_t width, int64_t steps, std::byte* to) {
  constexpr int64_t kTileElements = kStepBytes / element_bytes(kElement);
  const int64_t tiles = (steps + kTileSteps - 1) / kTileSteps;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t i = 0; i < kTileElements; i += kLanes) {
      const int64_t left = width - tile * kTileElements - i;
      const float* from = x + tile * kTileElements + i;
      const Vec values = left >= kLanes ? load(from) : left > 0 ? load_first(from, left) : set(0);
      std::byte* at = to + tile * kTileBytes + i * element_bytes(kElement);
      if constexpr (kElement == Element::kBf16) {
        store_bf16(reinterpret_cast<uint16_t*>(at), values);
      } else {
        store(reinterpret_cast<float*>(at), values);
      }
    }
  }
}

template <Element kElement>
void pack_rows(const float* x, int64_t rows, int64_t width, int64_t steps, std::byte* a) {
  const int64_t tile_bytes = steps / kTileSteps * kTileBytes;
  for (int64_t r = 0; r < rows; ++r) {
    std::byte* to = a + r / kTileRows * tile_bytes + r % kTileRows * kStepBytes;
    pack_row<kElement>(x + r * width, width, steps, to);
  }
}

// rest = x - x rounded to bf16
inline void bf16_rest(const float* x, int64_t width, float* rest) {
  for_each_vec(width, [&](int64_t i, int64_t count) {
    const Vec values = load_run(x + i, count);
    uint16_t rounded[kLanes];
    store_bf16(rounded, values);
    uint32_t bits[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) bits[lane] = uint32_t{rounded[lane]} << 16;
    float wide[kLanes];
    std::memcpy(wide, bits, sizeof(wide));
    store_run(rest + i, values - load(wide), count);
  });
}

inline void add(float* x, const float* delta, int64_t width) {
  for_each_vec(width, [&](int64_t i, int64_t count) {
    store_run(x + i, load_run(x + i, count) + load_run(delta + i, count), count);
  });
}

inline void scale(float* x, float by, int64_t width) {
  for_each_vec(width, [&](int64_t i, int64_t count) {
    store_run(x + i, load_run(x + i, count) * set(by), count);
  });
}

inline void rms_norm(const float* x, const float* weight, float eps, int64_t width, float* out) {
  Vec squares[4] = {set(0), set(0), set(0), set(0)};
  for_each_vec(width, [&](int64_t i, int64_t count) {
    const Vec v = load_run(x + i, count);
    Vec& sums = squares[i / kLanes % 4];
    sums = fma(v, v, sums);
  });
  const float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const Vec inverse = set(1.0f / __builtin_sqrtf(total / static_cast<float>(width) + eps));
  for_each_vec(width, [&](int64_t i, int64_t count) {
    const Vec normed = load_run(x + i, count) * inverse * load_run(weight + i, count);
    store_run(out + i, normed, count);
  });
}

// max and min would lose NaN.
inline Vec clip(Vec x, Vec low, Vec high) {
  return where_less(x, low, low, where_less(high, x, high, x));
}

inline void uclip_norm(const float* x, const float* alpha, const float* weight, int64_t width,
                       float* out) {
  for_each_vec(width, [&](int64_t i, int64_t count) {
    const Vec clipped = clip(load_run(x + i, count) * load_run(alpha + i, count), set(-1), set(1));
    store_run(out + i, clipped * load_run(weight + i, count), count);
  });
}

inline void rotate(float* x, const float* table, int64_t half) {
  for_each_vec(half, [&](int64_t i, int64_t count) {
    const Vec cosine = load_run(table + i, count);
    const Vec sine = load_run(table + half + i, count);
    const Vec a = load_run(x + i, count);
    const Vec b = load_run(x + half + i, count);
    store_run(x + i, a * cosine - b * sine, count);
    store_run(x + half + i, b * cosine + a * sine, count);
  });
}

inline Vec relu(Vec x) {
  return where_less(x, set(0), set(0), x);
}

template <typename F>
void gated(const float* gate, const float* up, int64_t width, float* out, F act) {
  for_each_vec(width, [&](int64_t i, int64_t count) {
    store_run(out + i, act(load_run(gate + i, count)) * load_run(up + i, count), count);
  });
}

inline void clamped_swiglu(const float* gate, const float* up, int64_t width, float* out) {
  const Vec limit = set(ops::kSwigluLimit);
  for_each_vec(width, [&](int64_t i, int64_t count) {
    const Vec g = load_run(gate + i, count);
    const Vec u = clip(load_run(up + i, count), set(-ops::kSwigluLimit), limit);
    const Vec turned = silu(where_less(limit, g, limit, g) * set(ops::kSwigluSlope));
    store_run(out + i, (u + set(1)) * (turned * set(1 / ops::kSwigluSlope)), count);
  });
}

inline void limited_silu(const float* gate, const float* up, int64_t width, float* out) {
  const Vec limit = set(ops::kSiluLimit);
  for_each_vec(width, [&](int64_t i, int64_t count) {
    const Vec g = load_run(gate + i, count);
    const Vec u = clip(load_run(up + i, count), set(-ops::kSiluLimit), limit);
    store_run(out + i, silu(where_less(limit, g, limit, g)) * u, count);
  });
}

inline void gated_act(const float* gate, const float* up, int64_t width, ops::Activation activation,
                      float* out) {
  switch (activation) {
    case ops::Activation::kSilu:
      return gated(gate, up, width, out, [](Vec x) { return silu(x); });
    case ops::Activation::kGeluTanh:
      return gated(gate, up, width, out, [](Vec x) { return gelu_tanh(x); });
    case ops::Activation::kGelu:
      return gated(gate, up, width, out, [](Vec x) { return gelu(x); });
    case ops::Activation::kRelu:
      return gated(gate, up, width, out, [](Vec x) { return relu(x); });
    case ops::Activation::kClampedSwiglu:
      return clamped_swiglu(gate, up, width, out);
    case ops::Activation::kLimitedSilu:
      return limited_silu(gate, up, width, out);
  }
}

inline Vec capped(Vec x, float cap) {
  return tanh(x * set(1.0f / cap)) * set(cap);
}

// Four streams at once: one does not keep enough lines in flight.
inline float read(const std::byte* from, int64_t bytes) {
  const int64_t quarter = bytes / 4;
  Vec highs[4] = {set(0), set(0), set(0), set(0)};
  for (int64_t i = 0; i < quarter; i += kStepBytes) {
#pragma GCC unroll 4
    for (int64_t stream = 0; stream < 4; ++stream) {
      const std::byte* at = from + stream * quarter + i;
      highs[stream] = max(load(reinterpret_cast<const float*>(at)), highs[stream]);
    }
  }
  return highest(max(max(highs[0], highs[1]), max(highs[2], highs[3])));
}

inline void soft_cap(float* x, int64_t width, float cap) {
  for_each_vec(width, [&](int64_t i, int64_t count) {
    store_run(x + i, capped(load_run(x + i, count), cap), count);
  });
}

}  // namespace rudder::cpu::RUDDER_CPU_ISA
