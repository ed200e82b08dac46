#include "rudder/cpu/memory_bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "rudder/cpu/device_memory.h"

namespace rudder::cpu {
namespace {

constexpr int kPasses = 5;

template <typename F>
double best_seconds(F f) {
  double best = 1e30;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

size_t last_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<size_t>(bytes) : size_t{32} << 20;
}

Result<double> measure_read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes) {
  constexpr size_t kPiece = size_t{256} << 10;
  const size_t pieces = std::max<size_t>(1, bytes / kPiece);
  RUDDER_TRY(const Buffer buffer, Buffer::make(pieces * kPiece));
  std::memset(buffer.data(), 1, buffer.bytes());  // every page its own memory
  const auto* from = static_cast<const std::byte*>(buffer.data());
  std::vector<float> sink(pieces);
  const double seconds = best_seconds([&] {
    pool.parallel_for(static_cast<int64_t>(pieces), [&](int64_t piece) {
      sink[static_cast<size_t>(piece)] =
          kernels.read(from + static_cast<size_t>(piece) * kPiece, int64_t{kPiece});
    });
  });
  return static_cast<double>(buffer.bytes()) / seconds;
}

Result<double> measure_product_rate(ThreadPool& pool, const Kernels& kernels, Element element) {
  constexpr int64_t kRows = 64;
  constexpr int64_t kPanels = 4;
  constexpr int64_t kSteps = 256;
  constexpr int kRepeats = 200;
  RUDDER_TRY(const Buffer panels, Buffer::make(kPanels * kSteps * kStepBytes));
  std::memset(panels.data(), 0x3c, panels.bytes());  // small positive numbers in f32 and bf16
  struct Work {
    Buffer rows;
    Buffer out;
  };
  std::vector<Work> work(static_cast<size_t>(pool.num_threads()));
  for (Work& one : work) {
    RUDDER_TRY(one.rows, Buffer::make(kRows * kSteps * 4));
    RUDDER_TRY(one.out, Buffer::make(kRows * kPanels * kPanelWidth * sizeof(float)));
    std::memset(one.rows.data(), 0x3c, one.rows.bytes());
  }
  const double seconds = best_seconds([&] {
    pool.parallel_for(pool.num_threads(), [&](int64_t i) {
      PanelProduct args;
      args.a = static_cast<const std::byte*>(work[static_cast<size_t>(i)].rows.data());
      args.rows = kRows;
      args.panels = static_cast<const std::byte*>(panels.data());
      args.num_panels = kPanels;
      args.steps = kSteps;
      args.out = static_cast<float*>(work[static_cast<size_t>(i)].out.data());
      args.ld = kPanels * kPanelWidth;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        kernels.product[static_cast<int>(element)](args);
      }
    });
  });
  const int64_t depth = kSteps * 4 / static_cast<int64_t>(element_bytes(element));
  return 2.0 * kRows * kPanels * kPanelWidth * static_cast<double>(depth) * kRepeats *
         pool.num_threads() / seconds;
}

}  // namespace rudder::cpu
