// Measures the machine's ceilings, of which benches print their figures as a share. Called by
// benches and once at start; takes a fraction of a second.
#pragma once

#include <cstddef>

#include "rudder/base/result.h"
#include "rudder/base/thread_pool.h"
#include "rudder/cpu/kernels.h"

namespace rudder::cpu {

// Bytes per second that all threads together read from a buffer of `bytes`, once through; the best
// of a few passes. The buffer must be several times the last cache (last_cache_bytes) to be memory.
Result<double> measure_read_bandwidth(ThreadPool& pool, const Kernels& kernels, size_t bytes);

// Floating-point operations per second of this instruction set's product on operands that stay in
// each core's cache, all threads.
Result<double> measure_product_rate(ThreadPool& pool, const Kernels& kernels, Element element);

size_t last_cache_bytes();

}  // namespace rudder::cpu
